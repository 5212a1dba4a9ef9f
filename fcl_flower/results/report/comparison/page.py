"""The page of several runs of the identical scenario, side by side."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fcl_flower.core.errors import ConfigError
from fcl_flower.results.report.comparison.grouping import (
    Entry,
    entries,
    pairs,
    require_identical_scenario,
)
from fcl_flower.results.report.comparison.progress import (
    progress_section,
    training_section,
)
from fcl_flower.results.report.comparison.runs import runs_section
from fcl_flower.results.report.comparison.side_by_side import side_by_side_section
from fcl_flower.results.report.comparison.transfer_gain import gain_sections, verdict
from fcl_flower.results.report.comparison.under_way import under_way_section
from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.content import Block, Chart, charts_of
from fcl_flower.results.report.html.page import page, write_page
from fcl_flower.results.report.reader import Run, read_run
from fcl_flower.results.report.so_far import read_so_far


def write_comparison(folder: Path, runs: Sequence[Path]) -> Path:
    """Write ``comparison.html`` into ``folder`` and return its path.

    Args:
        folder: where the page is put; made if it does not exist.
        runs: see `comparison_page`.

    Raises:
        ConfigError: see `comparison_page`.
    """
    return write_page(folder / "comparison.html", comparison_page(folder, runs))


def comparison_page(folder: Path, runs: Sequence[Path], *, live: bool = False) -> str:
    """Return the page of some runs.

    Runs with the same label are one row, mean and standard deviation over their
    seeds. A federated run is paired with the run of the same seed that its summary
    names as its local-only counterpart; their difference is the transfer gain. A run
    that is under way has a row of its own and is in no mean.

    Args:
        folder: where the page is put, from which links to the runs start.
        runs: run folders, at least one.
        live: see `page`; then there are no links.

    Raises:
        ConfigError: a file is missing or wrong, a label has two runs of one seed, or
            the runs are not of the identical scenario.
    """
    rows, read = _read(runs, read_so_far)
    first = read[0].summary
    labels = dict.fromkeys(run.summary.label for run in read)
    seeds = sorted({run.summary.seed for run in read})
    models = dict.fromkeys(run.summary.model for run in read)
    steps = dict.fromkeys(run.summary.steps for run in read)
    return page(
        f"{numbers.plural(len(labels), 'method')} on {first.scenario}",
        f"{first.dataset or first.data}, model {' or '.join(models)}, "
        f"{numbers.plural(first.clients, 'client')}, "
        f"{numbers.plural(first.tasks, first.full_noun)}, {' or '.join(steps)}, "
        f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}",
        _body(rows, None if live else folder),
        f"Made from the files in {', '.join(path.name for path in runs)}.",
        live=live,
    )


def comparison_charts(runs: Sequence[Path]) -> list[Chart]:
    """Return the charts of the page that compares some finished runs, in their order.

    Args:
        runs: run folders, at least one.

    Raises:
        ConfigError: see `comparison_page`; one of the runs has not finished.
    """
    rows, _ = _read(runs, read_run)
    return charts_of(_body(rows, Path()))


def require_comparable(runs: Sequence[Path]) -> None:
    """Refuse finished runs whose numbers cannot be set side by side.

    Args:
        runs: run folders, at least one.

    Raises:
        ConfigError: see `comparison_page`; one of the runs has not finished.
    """
    _read(runs, read_run)


def _read(
    runs: Sequence[Path], read_one: Callable[[Path], Run]
) -> tuple[list[Entry], list[Run]]:
    """Return the runs by label, and as they were given.

    Raises:
        ConfigError: see `comparison_page`.
    """
    if not runs:
        raise ConfigError("runs is empty, expected at least one run folder to compare")
    read = [read_one(path) for path in runs]
    require_identical_scenario(read)
    return entries(read), read


def _body(rows: Sequence[Entry], folder: Path | None) -> Iterator[Block]:
    summary = rows[0].runs[0].summary
    finished = [entry for entry in rows if not entry.under_way]
    paired = pairs(finished)
    yield from map(verdict, paired)
    if len(finished) < len(rows):
        yield under_way_section([entry for entry in rows if entry.under_way])
    if finished:
        yield side_by_side_section(finished, folder)
    if summary.tasks > 1 or summary.hidden is not None:
        yield progress_section(rows)
    yield training_section(rows)
    if finished:
        yield from gain_sections(paired, summary.noun)
    yield runs_section(rows, folder)
