"""The page of several runs of the identical scenario, side by side."""

from collections.abc import Iterator, Sequence
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
from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.content import Block, Chart, charts_of
from fcl_flower.results.report.html.page import write_page
from fcl_flower.results.report.reader import Run, read_run


def write_comparison(folder: Path, runs: Sequence[Path]) -> Path:
    """Write ``comparison.html`` into ``folder`` and return its path.

    Runs with the same label are one row, mean and standard deviation over their
    seeds. A federated run is paired with the run of the same seed that its summary
    names as its local-only counterpart; their difference is the transfer gain.

    Args:
        folder: where the page is put; made if it does not exist.
        runs: run folders, at least one.

    Raises:
        ConfigError: a file is missing or wrong, a label has two runs of one seed, or
            the runs are not of the identical scenario.
    """
    if not runs:
        raise ConfigError("runs is empty, expected at least one run folder to compare")
    rows, read = _read(runs)
    first = read[0].summary
    seeds = sorted({run.summary.seed for run in read})
    models = dict.fromkeys(run.summary.model for run in read)
    steps = dict.fromkeys(run.summary.steps for run in read)
    return write_page(
        folder / "comparison.html",
        f"{numbers.plural(len(rows), 'method')} on {first.scenario}",
        f"{first.dataset or first.data}, model {' or '.join(models)}, "
        f"{numbers.plural(first.clients, 'client')}, "
        f"{numbers.plural(first.tasks, first.full_noun)}, {' or '.join(steps)}, "
        f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}",
        _body(rows, folder),
        f"Made from the files in {', '.join(path.name for path in runs)}.",
    )


def comparison_charts(runs: Sequence[Path]) -> list[Chart]:
    """Return the charts of the page that compares some runs, in their order.

    Args:
        runs: run folders, at least one.

    Raises:
        ConfigError: see `write_comparison`.
    """
    rows, _ = _read(runs)
    return charts_of(_body(rows, Path()))


def _read(runs: Sequence[Path]) -> tuple[list[Entry], list[Run]]:
    """Return the runs by label, and as they were given.

    Raises:
        ConfigError: see `write_comparison`.
    """
    read = [read_run(path) for path in runs]
    require_identical_scenario(read)
    return entries(read), read


def _body(rows: Sequence[Entry], folder: Path) -> Iterator[Block]:
    summary = rows[0].runs[0].summary
    paired = pairs(rows)
    yield from map(verdict, paired)
    yield side_by_side_section(rows, folder)
    if summary.tasks > 1 or summary.hidden is not None:
        yield progress_section(rows)
    yield training_section(rows)
    yield from gain_sections(paired, summary.noun)
    yield runs_section(rows, folder)
