"""How a run is watched: moving bars in a terminal, plain lines elsewhere, a page."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from fcl_flower.cli.tables import Estimate
from fcl_flower.core.errors import ConfigError, FclError
from fcl_flower.results.record import is_run
from fcl_flower.results.report.wording import duration, size
from fcl_flower.runtime.processes import Progress

if TYPE_CHECKING:
    from fcl_flower.runtime.local_runs import Job, Outcome, Place
    from fcl_flower.runtime.study import Study

WORKING = 8
"""Clients that have a line each; of more it is said how many there are."""


def describe(progress: Progress, since: float = 0.0) -> str:
    """Return where a run stands in one line, ``since`` seconds after it was there."""
    if not progress["round"]:
        return "starting"
    finished = progress["state"] == "finished"
    clients = f"clients {progress['clients_done']}/{progress['clients']}"
    parts = [
        _at_task(progress["task"], progress["tasks"]),
        f"round {progress['round']}/{progress['rounds']}",
        *([] if finished else [clients]),
        *results(progress, since),
    ]
    return "  ".join(parts)


def _at_task(task: int, tasks: int) -> str:
    """Return a task's number as pages and files count it, from 0."""
    return f"task {task} of 0 to {tasks - 1}" if tasks > 1 else "task 0"


def results(progress: Progress, since: float = 0.0) -> list[str]:
    """Return what has come out and what it has taken, and how long the rest takes."""
    accuracy, left = progress["accuracy"], progress["left"]
    parts = [
        "accuracy so far " + ("-" if accuracy is None else f"{accuracy:.3f}"),
        f"up {size(progress['bytes_up'])}",
        f"down {size(progress['bytes_down'])}",
    ]
    if progress["state"] == "finished":
        parts.append(f"finished in {duration(progress['seconds'])}")
    elif left is not None:
        parts.append(f"{duration(max(0.0, left - since))} left")
    return parts


def bars() -> Table:
    """Return a table for rows of `add_bar`."""
    return Table.grid(padding=(0, 1))


def add_bar(table: Table, label: str, progress: Progress) -> None:
    """Add a row that shows how far the run of this name is."""
    done = rounds_done(progress)
    bar = ProgressBar(total=progress["rounds"], completed=done, width=24)
    # No markup: names may have brackets, and lines that are written have none.
    table.add_row(Text(label, "bold"), bar, Text(describe(progress)))


def rounds_done(progress: Progress) -> int:
    """Return how many rounds are complete."""
    finished: int = progress["round"] - (progress["state"] != "finished")
    return max(0, finished)


def time_done(progress: Progress) -> float:
    """Return the share of a run's time that is over, as far as that can be foretold."""
    if progress["state"] == "finished":
        return 1.0
    seconds: float = progress["seconds"]
    left: float | None = progress["left"]
    return 0.0 if left is None or not seconds else seconds / (seconds + left)


class Lines:
    """Plain lines, where there is no terminal: one for each complete round."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: dict[str, tuple[object, ...]] = {}

    def show(self, label: str, progress: Progress) -> None:
        """Say where the run of this name stands, if that is worth a line."""
        complete = progress["clients_done"] == progress["clients"]
        mark = (progress["round"], progress["state"])
        if complete and mark != self._shown.get(label):
            self._shown[label] = mark
            self.write(f"{label}: {describe(progress)}")

    def write(self, line: str) -> None:
        """Say anything else."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class Screen:
    """A live picture in a terminal, lines elsewhere; use it as a context manager."""

    def __init__(self, console: Console) -> None:
        self._lines = Lines(console)
        self._live: Live | None = None
        if console.is_terminal:
            picture = self.picture
            self._live = Live(
                console=console, get_renderable=picture, refresh_per_second=5
            )

    def picture(self) -> RenderableType:
        """Return what a terminal shows now."""
        return Text()

    def __enter__(self) -> Self:
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:  # noqa: ANN401
        if self._live:
            self._live.__exit__(*problem)


class Display(Screen):
    """Shows one run: how far its tasks and rounds are, and which clients work."""

    def __init__(
        self,
        console: Console,
        label: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Show a run.

        Args:
            console: where.
            label: name of the run.
            clock: returns seconds since some moment.
        """
        self._label, self._clock = label, clock
        self._progress: Progress = {}
        self._at = clock()
        self._working: dict[int, float] = {}
        """Since when each client that works has done so."""
        super().__init__(console)

    def show(self, progress: Progress) -> None:
        """Show where the run stands; a plain line only when a round is complete."""
        self._progress, self._at = progress, self._clock()
        self._working = {
            client: self._working.get(client, self._at)
            for client in progress["working"]
        }
        if self._live is None:
            self._lines.show(self._label, progress)

    @override
    def picture(self) -> RenderableType:
        """Return a line for the run, its bars, and a line for each client at work."""
        progress, now = self._progress, self._clock()
        head = Text(self._label, "bold")
        if not progress or not progress["round"]:
            return Group(Text.assemble(head, "  starting"))
        head.append("  " + "  ".join(results(progress, now - self._at)), "not bold")
        rows = bars()
        for name, done, of in _bars(progress):
            bar = ProgressBar(total=of, completed=done, width=24)
            rows.add_row(Text(f"  {name}"), bar)
        for client, since in [*self._working.items()][:WORKING]:
            told = f"at work for {duration(now - since)}"
            rows.add_row(Text(f"  client {client}"), Text(told))
        if (more := len(self._working) - WORKING) > 0:
            rows.add_row(Text(f"  and {more} more"), Text("at work"))
        return Group(head, rows)


def _bars(progress: Progress) -> Iterator[tuple[str, float, float]]:
    """Yield the bars of a run that has begun: a name, how much is done, and of what.

    The bar of tasks is that of the whole run, that of rounds of the task, and that of
    clients of the round.
    """
    task, tasks, rounds = progress["task"], progress["tasks"], progress["rounds"]
    done, each = rounds_done(progress), rounds // tasks
    yield _at_task(task, tasks), done / each, tasks
    yield f"round {progress['round']}/{rounds}", done - task * each, each
    if progress["clients"]:
        done, clients = progress["clients_done"], progress["clients"]
        yield f"clients {done}/{clients}", done, clients


@contextmanager
def live_run(port: int | None, folder: Path, console: Console) -> Iterator[None]:
    """Serve the page of a run on a port while it goes on; None: do not."""
    from fcl_flower.results.monitors import LivePage, live
    from fcl_flower.results.report.run_page import report_page

    page = LivePage(lambda goes_on: report_page(folder, live=goes_on), [folder])
    with live(port, page, Lines(console).write):
        yield


class StudyDisplay(Screen):
    """Shows several runs, of which some are done at once.

    In a terminal those under way have a bar each, elsewhere a line for each complete
    round. Below is what is left of all.
    """

    def __init__(
        self,
        console: Console,
        jobs: Sequence["Job"],
        processes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Show runs.

        Args:
            console: where.
            jobs: all that are to be done.
            processes: runs at the same time.
            clock: returns seconds since some moment.
        """
        self._jobs = jobs
        variants = [job.run.config.title for job in jobs]
        self._estimate = Estimate(variants, processes, clock)
        self._index = {job.folder: index for index, job in enumerate(jobs)}
        self._active: dict[int, Progress] = {}
        self._done = jobs[0].of - len(jobs) if jobs else 0
        """Those of earlier commands, too."""
        self._failed = 0
        super().__init__(console)

    def show(self, job: "Job", progress: Progress) -> None:
        """Show where a run stands."""
        index = self._index[job.folder]
        self._active[index] = progress
        self._estimate.progress(index, time_done(progress))
        if self._live is None:
            self._lines.show(_label(job), progress)

    def over(self, job: "Job", error: FclError | None = None) -> None:
        """Show that a run has finished or failed, why it has, and what is left."""
        index = self._index[job.folder]
        last = self._active.pop(index, None)
        self._estimate.over(index)
        if error is not None:
            self._failed += 1
            self._lines.write(f"{_label(job)} failed: {error}")
        else:
            self._done += 1
        if self._live is None:
            self._lines.write(self._rest())
        elif last is not None and error is None:
            self._lines.write(f"{_label(job)}: {describe(last)}")

    @override
    def picture(self) -> RenderableType:
        """Return a bar for each run that is under way, and what is left of all."""
        table = bars()
        for index, progress in [*self._active.items()]:
            add_bar(table, _label(self._jobs[index]), progress)
        return Group(table, Text(self._rest()))

    def _rest(self) -> str:
        """Return how many runs are over, and how long the others will take."""
        if not self._jobs:
            return ""
        total = self._jobs[0].of
        text = f"{self._done} of {total} runs done"
        if self._failed:
            text += f", {self._failed} failed"
        left = self._estimate.left()
        if self._done + self._failed == total or left is None:
            return text
        return f"{text}, about {duration(left)} left"


def shown(
    console: Console, place: "Place", jobs: Sequence["Job"]
) -> Generator[tuple["Job", "Outcome"]]:
    """Do some runs and show them; yield each with its outcome when it is over."""
    from fcl_flower.runtime.local_runs import run_all

    with (
        StudyDisplay(console, jobs, place.processes) as display,
        closing(run_all(place, jobs, display.show)) as done,
    ):
        for job, outcome in done:
            display.over(job, outcome if isinstance(outcome, FclError) else None)
            yield job, outcome


@contextmanager
def live_study(
    port: int | None, study: "Study", folder: Path, console: Console
) -> Iterator[None]:
    """Serve the page of a study's runs so far while they go on; None: do not."""
    from fcl_flower.results.monitors import LivePage, live
    from fcl_flower.results.report.comparison import comparison_page
    from fcl_flower.runtime.study_runs import run_folder

    folders = [run_folder(folder, config) for config in study.runs()]

    def draw(goes_on: bool) -> str:
        known = [*filter(is_run, folders)]
        if not known:
            raise ConfigError(f"{folder}: no run has begun")
        return comparison_page(folder, known, live=goes_on)

    with live(port, LivePage(draw, folders), Lines(console).write):
        yield


def _label(job: "Job") -> str:
    return f"run {job.number} of {job.of}: {job.name}"
