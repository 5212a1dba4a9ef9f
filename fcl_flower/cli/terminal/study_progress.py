"""How several runs are watched: which of them run, and how long all will take."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.text import Text
from typing_extensions import override

from fcl_flower.cli.terminal.estimate import Estimate
from fcl_flower.cli.terminal.progress import (
    Lines,
    Screen,
    add_bar,
    bars,
    describe,
    time_done,
)
from fcl_flower.core.errors import ConfigError, FclError
from fcl_flower.results.report.html.numbers import duration
from fcl_flower.results.run_folder import begun
from fcl_flower.runtime.processes import Progress

if TYPE_CHECKING:
    from fcl_flower.runtime.simulation import Job, Outcome, Place
    from fcl_flower.runtime.studies.plan import Study


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
    from fcl_flower.runtime.simulation import run_all

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
    from fcl_flower.results.monitoring.live import LivePage, live
    from fcl_flower.results.report import comparison_page
    from fcl_flower.runtime.studies.runs import run_folder

    folders = [run_folder(folder, config) for config in study.runs()]

    def draw(goes_on: bool) -> str:
        known = [*filter(begun, folders)]
        if not known:
            raise ConfigError(f"{folder}: no run has begun")
        return comparison_page(folder, known, live=goes_on)

    with live(port, LivePage(draw, folders), Lines(console).write):
        yield


def _label(job: "Job") -> str:
    return f"run {job.number} of {job.of}: {job.name}"
