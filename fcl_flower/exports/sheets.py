"""Finished runs as sheets: columns and rows for other programs."""

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from fcl_flower.core.errors import refuse
from fcl_flower.results.result import Result
from fcl_flower.results.run_folder import runs_in

Row: TypeAlias = Mapping[str, Any]

MEASURES = (
    *("average_accuracy", "forgetting", "backward_transfer", "learning_accuracy"),
    *("balanced_accuracy", "macro_f1"),
)
COSTS = (
    *("bytes_up", "bytes_down", "nominal_bytes_up", "nominal_bytes_down"),
    *("model_bytes", "seconds", "peak_memory", "multiply_adds"),
)
ACCURACY_COLUMNS = ("label", "seed", "client", "after_task", "task", "accuracy")
ROUND_COLUMNS = (
    *("label", "seed", "round", "task", "clients", "failed", "loss", "valid_loss"),
    *("valid_accuracy", "bytes_up", "bytes_down", "seconds"),
)
CLASS_COLUMNS = (*("label", "seed", "name", "tested", "recall", "precision", "f1"),)
RUN_COLUMNS = (
    *("label", "seed", "strategy", "local_only", "scenario", "dataset", "model"),
    *("clients", "tasks", "rounds", *MEASURES, *COSTS),
)


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table of numbers and words.

    Attributes:
        name: of its file, without an ending.
        columns: names, all different.
        rows: a value for each column: a string, a number, a bool, or None if unknown.
    """

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    @classmethod
    def of(cls, name: str, columns: Sequence[str], rows: Iterable[Row]) -> "Sheet":
        """Return the sheet of some rows by column; what a row lacks is None."""
        values = (tuple(row.get(column) for column in columns) for row in rows)
        return cls(name, tuple(columns), tuple(values))


def finished_runs(folders: Sequence[Path]) -> list[Result]:
    """Return the runs in some folders, each of a run or of a study, in their order.

    Raises:
        ConfigError: in one of them is no run, or one that has not finished: numbers of
            its middle would pass for those of its end.
    """
    found: list[Result] = []
    for folder in folders:
        inside = runs_in(folder)
        if not inside:
            expected = "one of a finished run, or of a study with such"
            raise refuse("folder", str(folder), expected)
        for run in inside:
            if not (run / "summary.json").is_file():
                expected = "a finished run; fcl report shows one so far"
                raise refuse("folder", str(run), expected)
            found.append(Result.load(run))
    return found


def run_sheets(results: Sequence[Result]) -> list[Sheet]:
    """Return what was measured: each accuracy, each round, each run.

    Each class, too, where clients have counted by class.
    """
    sheets = [
        Sheet.of("accuracy", ACCURACY_COLUMNS, _each(results, Result.table)),
        Sheet.of("rounds", ROUND_COLUMNS, _each(results, _rounds)),
        Sheet.of("runs", RUN_COLUMNS, (result.summary for result in results)),
    ]
    classes = Sheet.of("classes", CLASS_COLUMNS, _each(results, _classes))
    return [*sheets, classes] if classes.rows else sheets


def write_csv(sheet: Sheet, folder: Path) -> Path:
    """Write a sheet with its columns in the first line; what is unknown is empty.

    Numbers stand as Python prints them, so that they are read as they were.
    """
    path = folder / f"{sheet.name}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(sheet.columns)
        lines.writerows(sheet.rows)
    return path


def _each(
    results: Iterable[Result], rows: Callable[[Result], Iterable[Row]]
) -> Iterable[Row]:
    """Yield the rows of each run, which say whose they are."""
    for result in results:
        whose = {key: result.summary[key] for key in ("label", "seed")}
        yield from (whose | dict(row) for row in rows(result))


def _classes(result: Result) -> Iterable[Row]:
    found: Iterable[Row] = result.summary.get("per_class", ())
    return found


def _rounds(result: Result) -> Iterable[Row]:
    """Yield each round; of those who took part or failed, and of bytes, how many."""
    for line in result.rounds:
        people = {key: len(line[key]) for key in ("clients", "failed")}
        sizes = {key: sum(line[key].values()) for key in ("bytes_up", "bytes_down")}
        yield line | people | sizes
