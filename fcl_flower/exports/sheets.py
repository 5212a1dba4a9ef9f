"""Finished runs as sheets for other programs: accuracies, rounds, runs and methods.

A method's row has mean and deviation over seeds, and a paired test of its accuracy
against a reference.
"""

import csv
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from fcl_flower.core.errors import require_extra, unknown_name
from fcl_flower.results import tables
from fcl_flower.results.events import Summary, Trained
from fcl_flower.results.measures import Paired, mean_measured, paired
from fcl_flower.results.record import Record, runs_in
from fcl_flower.results.report.comparison import require_comparable
from fcl_flower.results.tables import COSTS, MEASURES, SPREAD

Row: TypeAlias = Mapping[str, Any]

COLUMNS = {
    "accuracy": ("label", "seed", "client", "after_task", "task", "accuracy"),
    "rounds": (
        *("label", "seed", "round", "task", "clients", "failed", "loss", "valid_loss"),
        *("valid_accuracy", "bytes_up", "bytes_down", "seconds"),
    ),
    "runs": (
        *("label", "seed", "strategy", "local_only", "scenario", "dataset", "model"),
        *("clients", "tasks", "rounds"),
        *(m.key for m in MEASURES if m.key in Summary.model_fields and not m.place),
    ),
    "classes": ("label", "seed", "name", "tested", "recall", "precision", "f1"),
}
TESTED = {
    "difference": "difference",
    "difference_deviation": "deviation",
    "difference_margin": "margin",
    "pairs": "pairs",
    "p": "p",
}
"""The columns of a test over seeds, and what `Paired` calls them."""
METHOD_COLUMNS = (
    "label",
    "seeds",
    *(f"{key}_{what}" for key, what in product(SPREAD, ("mean", "deviation"))),
    *COSTS,
    *("reference", *TESTED, "p_adjusted"),
    *("client_difference", "client_margin", "client_pairs"),
)

Unit = TypeVar("Unit", bound=int | tuple[int, int])
"""The unit that each method measures once: a seed, or a client of a seed."""


class Sheet(NamedTuple):
    """A table, with the name of its file.

    A value that a row lacks, or that is None, is unknown. A value without a column is
    left out.
    """

    name: str
    columns: Sequence[str]
    rows: Sequence[Row]


def finished_runs(folders: Sequence[Path]) -> list[Record]:
    """Read the runs in folders, each of a run or of a study, grouped by label.

    Raises:
        ConfigError: see `require_comparable`, since a method is a mean over its runs.
    """
    paths = [run for folder in folders for run in runs_in(folder) or [folder]]
    return [run for group in require_comparable(paths) for run in group.runs]


def run_sheets(runs: Sequence[Record]) -> list[Sheet]:
    """Make the sheets of accuracies, rounds and runs.

    There is a sheet of classes, too, if clients have counted by class.
    """
    rows: dict[str, list[Row]] = {name: [] for name in COLUMNS}
    for run in runs:
        summary = run.summary.content()
        name = {key: summary[key] for key in ("label", "seed")}
        rows["accuracy"] += (
            name | {"client": c, "after_task": t, "task": i, "accuracy": float(value)}
            for (c, t, i), value in np.ndenumerate(run.accuracy)
            if not np.isnan(value)
        )
        rows["rounds"] += (name | _round(event) for event in run.rounds)
        rows["runs"].append(summary)
        rows["classes"] += (name | row for row in summary.get("per_class", ()))
    return [
        Sheet(name, columns, rows[name])
        for name, columns in COLUMNS.items()
        if rows[name] or name != "classes"
    ]


def _round(event: Trained) -> dict[str, Any]:
    line = event.line()
    counts = {key: len(line[key]) for key in ("clients", "failed")}
    sizes = {key: sum(line[key].values()) for key in ("bytes_up", "bytes_down")}
    return line | counts | sizes


def write_csv(sheet: Sheet, folder: Path) -> Path:
    """Write a sheet with its columns in the first line; an unknown value is empty.

    Numbers stand as Python prints them, so they are read back unchanged.
    """
    path = folder / f"{sheet.name}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.DictWriter(file, sheet.columns, extrasaction="ignore")
        lines.writeheader()
        lines.writerows(sheet.rows)
    return path


def write_parquet(sheet: Sheet, folder: Path) -> Path:
    """Write a sheet as Parquet; an unknown value is null."""
    with require_extra("frames", "format parquet"):
        import pyarrow as pa
        from pyarrow import parquet
    path = folder / f"{sheet.name}.parquet"
    columns = {name: [row.get(name) for row in sheet.rows] for name in sheet.columns}
    parquet.write_table(pa.table(columns), path)
    return path


# ---- significance


def adjusted(values: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values for their number, in the same order.

    Holm (Scandinavian Journal of Statistics 1979): of m values the k-th smallest, from
    0, is multiplied by m - k. The result is at most 1, and at least the one before.
    Differences with a value below 0.05 are then wrong in one of twenty tables, not in
    one of twenty rows. A test without a value (None) does not count.
    """
    ordered = sorted((p, place) for place, p in enumerate(values) if p is not None)
    results: list[float | None] = [None] * len(values)
    least = 0.0
    for rank, (p, place) in enumerate(ordered):
        least = max(least, min(1.0, (len(ordered) - rank) * p))
        results[place] = least
    return results


# ---- methods compared


def methods_sheet(runs: Sequence[Record], reference: str | None = None) -> Sheet:
    """Compare methods, a row for each in the order in which they first occur.

    The test is over the seeds, whose runs are independent. ``client_margin`` is that of
    the mean over all clients of all seeds. It is too narrow if the clients of a run
    gain or lose together.

    Args:
        runs: finished runs, at least one.
        reference: label of the method against whose accuracy the others are tested;
            None for the method with the highest mean.
    """
    rows = tables.rows([run.summary.content() for run in runs])
    labels = [row["label"] for row in rows]
    if reference is not None and reference not in labels:
        raise unknown_name("reference", reference, labels)
    best = max(rows, key=lambda row: (row["average_accuracy"] or {"mean": -1})["mean"])
    against = reference or best["label"]
    by_seed: dict[str, dict[int, float]] = {label: {} for label in labels}
    by_client: dict[str, dict[tuple[int, int], float]] = {label: {} for label in labels}
    for run in runs:
        label, seed, final = run.about.label, run.about.seed, run.accuracy[:, -1]
        if run.summary.average_accuracy is not None:
            by_seed[label][seed] = run.summary.average_accuracy
        for client, value in enumerate(mean_measured(final, axis=1)):
            if not np.isnan(value):
                by_client[label][seed, client] = float(value)
    tests, clients = _tests(by_seed, against), _tests(by_client, against)
    corrected = adjusted([None if test is None else test.p for test in tests])
    lines = []
    for row, test, p, of_clients in zip(rows, tests, corrected, clients, strict=True):
        line = row | {"seeds": len(row["seeds"]), "p_adjusted": p}
        for key, what in product(SPREAD, ("mean", "deviation")):
            line[f"{key}_{what}"] = (row[key] or {}).get(what)
        if test is not None:
            line["reference"] = against
            line |= {column: getattr(test, key) for column, key in TESTED.items()}
        if of_clients is not None:
            line["client_difference"] = of_clients.difference
            line["client_margin"] = of_clients.margin
            line["client_pairs"] = of_clients.pairs
        lines.append(line)
    return Sheet("methods", METHOD_COLUMNS, lines)


def _tests(
    values: Mapping[str, Mapping[Unit, float]], against: str
) -> list[Paired | None]:
    """Test each method over the units that both have measured; None without any."""
    other, tests = values[against], list[Paired | None]()
    for label, own in values.items():
        units = sorted(own.keys() & other.keys()) if label != against else ()
        differences = [own[unit] - other[unit] for unit in units]
        tests.append(paired(differences) if differences else None)
    return tests


# ---- the sheet of methods as a table for a paper

_NOTE = (
    r"% For booktabs. Mean $\pm$ standard deviation over seeds; bold: highest accuracy."
)
_TEST = (
    "% Difference of accuracy to {reference}, seed by seed; p of the two-sided paired "
    "t-test, Holm-adjusted."
)
_ESCAPED = str.maketrans(
    {mark: f"\\{mark}" for mark in "&%$#_{}"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
    }
)


def write_latex(methods: Sheet, folder: Path) -> Path:
    """Write the sheet of `methods_sheet` as a file that a paper includes."""
    path = folder / f"{methods.name}.tex"
    path.write_text(latex(methods), encoding="utf-8")
    return path


def latex(methods: Sheet) -> str:
    """Write the sheet of `methods_sheet` as a ``tabular``."""
    rows = methods.rows
    columns = {
        measure.key: measure.column
        for measure in tables.COLUMNS
        if not measure.place  # what is not of the final models
        and any(row.get(f"{measure.key}_mean") is not None for row in rows)
    }
    accuracies = (row.get("average_accuracy_mean") for row in rows)
    best = max((mean for mean in accuracies if mean is not None), default=None)
    lines, notes = [["method", *columns.values()]], [_NOTE]
    for row in rows:
        cells = [row["label"].translate(_ESCAPED)]
        for key in columns:
            mean, deviation = row.get(f"{key}_mean"), row.get(f"{key}_deviation")
            bold = key == "average_accuracy" and mean == best
            cells.append(_number(mean, deviation, bold=bold))
        lines.append(cells)
    if reference := next(filter(None, (row.get("reference") for row in rows)), None):
        notes.append(_TEST.format(reference=" ".join(reference.split())))
        lines[0] += ["difference", "$p$"]
        for cells, row in zip(lines[1:], rows, strict=True):
            small = (row.get("p_adjusted") or 1.0) < 0.001
            p = "$<0.001$" if small else _number(row.get("p_adjusted"))
            cells += [_number(row.get("difference")), p]
    head, *body = (" & ".join(cells) + r" \\" for cells in lines)
    start = rf"\begin{{tabular}}{{l{'r' * (len(lines[0]) - 1)}}}"
    ends = r"\bottomrule", r"\end{tabular}", ""
    return "\n".join([*notes, start, r"\toprule", head, r"\midrule", *body, *ends])


def _number(
    mean: float | None, deviation: float | None = None, *, bold: bool = False
) -> str:
    if mean is None:
        return "--"
    number = rf"\mathbf{{{mean:z.3f}}}" if bold else f"{mean:z.3f}"
    return f"${number}$" if deviation is None else rf"${number} \pm {deviation:.3f}$"
