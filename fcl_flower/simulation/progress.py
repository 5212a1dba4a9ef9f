"""The display of runs: bars in a terminal, plain lines elsewhere."""

import time
from collections import defaultdict
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as Bars
from rich.table import Column
from rich.text import Text
from typing_extensions import override

from fcl_flower.core.errors import FclError
from fcl_flower.core.processes import Progress
from fcl_flower.results.report.wording import duration, size
from fcl_flower.simulation.local_runs import Backend, Job, RunResult, run_all

WORKING = 8
"""The number of clients with a line each; of other clients there is the number."""


def describe(progress: Progress, since: float = 0.0) -> str:
    """Describe the progress of a run in one line, ``since`` seconds after it came."""
    if not progress or not progress["round"]:
        return "starting"
    task, tasks = progress["task"], progress["tasks"]
    accuracy, left = progress["accuracy"], progress["left"]
    parts = [
        # Counted from 0, as on pages and in files.
        f"task {task} of 0 to {tasks - 1}" if tasks > 1 else "task 0",
        f"round {progress['round']}/{progress['rounds']}",
        f"clients {progress['clients_done']}/{progress['clients']}",
        "accuracy so far " + ("-" if accuracy is None else f"{accuracy:.3f}"),
        f"up {size(progress['bytes_up'])}",
        f"down {size(progress['bytes_down'])}",
    ]
    if progress["state"] == "finished":
        del parts[2]
        parts.append(f"finished in {duration(progress['seconds'])}")
    elif left is not None:
        parts.append(f"{duration(max(0.0, left - since))} left")
    return "  ".join(parts)


def time_done(progress: Progress) -> float:
    """Estimate the share of a run's time that is over."""
    if progress["state"] == "finished":
        return 1.0
    seconds: float = progress["seconds"]
    left: float | None = progress["left"]
    return 0.0 if left is None or not seconds else seconds / (seconds + left)


class _Description(ProgressColumn):
    @override
    def render(self, task: Task) -> Text:
        since = task.get_time() - task.fields["at"]
        return Text(describe(task.fields["seen"], since))


class _Screen(Bars):
    """A bar for each run that is under way, and lines below them."""

    def __init__(
        self, console: Console, clock: Callable[[], float], below: Callable[[], str]
    ) -> None:
        self._below = below
        super().__init__(
            # No markup, as names may have brackets.
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(24),
            _Description(Column(no_wrap=True)),
            console=console,
            get_time=clock,
            refresh_per_second=5,
            disable=not console.is_terminal,
        )

    @override
    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield Text(self._below())


class Display:
    """Shows runs, some of them at the same time; use it as a context manager.

    In a terminal each run under way has a bar. Elsewhere each complete round has a
    line. Below the bar of a single run are its clients at work. Below several bars is
    the time that is left of all.
    """

    def __init__(
        self,
        console: Console,
        jobs: Sequence[Job],
        processes: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Show runs, so many ``processes`` at the same time."""
        self._console, self._clock = console, clock
        self._estimate = Estimate([j.run.config.title for j in jobs], processes, clock)
        self._index = {job.folder: index for index, job in enumerate(jobs)}
        self._total = jobs[0].of if jobs else 0
        # Runs of earlier commands count, too.
        self._done, self._failed = self._total - len(jobs), 0
        self._lines: dict[Path, tuple[object, ...]] = {}
        """The latest line of each run."""
        self._working: dict[int, float] = {}
        """The time at which each client that works began."""
        self._screen = _Screen(console, clock, self.below)
        self._bars = {
            job.folder: self._screen.add_task(
                _label(job), total=None, visible=self._total == 1, seen={}, at=clock()
            )
            for job in jobs
        }

    def __enter__(self) -> Self:
        self._screen.start()
        return self

    def __exit__(self, *problem: Any) -> None:  # noqa: ANN401
        self._screen.stop()

    def show(self, job: Job, progress: Progress) -> None:
        """Show the progress of a run; a plain line only when a round is complete."""
        now, finished = self._clock(), progress["state"] == "finished"
        self._estimate.progress(self._index[job.folder], time_done(progress))
        self._working = {
            client: self._working.get(client, now) for client in progress["working"]
        }
        self._screen.update(
            self._bars[job.folder],
            total=progress["rounds"],
            completed=max(0, progress["round"] - (not finished)),
            visible=True,
            seen=progress,
            at=now,
        )
        complete = progress["clients_done"] == progress["clients"]
        mark = (progress["round"], progress["state"])
        if self._screen.disable and complete and mark != self._lines.get(job.folder):
            self._lines[job.folder] = mark
            self.write(f"{_label(job)}: {describe(progress)}")

    def over(self, job: Job, error: FclError | None = None) -> None:
        """Show that a run has finished or failed, and the time that is left."""
        if self._total == 1:
            return  # its bar stays, and the command shows its error
        bar = self._screen.tasks[self._screen.task_ids.index(self._bars[job.folder])]
        self._screen.remove_task(bar.id)
        self._estimate.over(self._index[job.folder])
        if error is not None:
            self._failed += 1
            self.write(f"{_label(job)} failed: {error}")
        else:
            self._done += 1
        if self._screen.disable:
            self.write(self.below())
        elif bar.fields["seen"] and error is None:
            self.write(f"{_label(job)}: {describe(bar.fields['seen'])}")

    def write(self, line: str) -> None:
        """Write a line above the bars."""
        write_line(self._console, line)

    def below(self) -> str:
        """List the clients at work in a single run, or say what is left of several."""
        if self._total == 1:
            now, working = self._clock(), [*self._working.items()]
            lines = [
                f"  client {client}  at work for {duration(now - since)}"
                for client, since in working[:WORKING]
            ]
            if (more := len(working) - WORKING) > 0:
                lines.append(f"  and {more} more at work")
            return "\n".join(lines)
        text = f"{self._done} of {self._total} runs done" if self._total else ""
        if self._failed:
            text += f", {self._failed} failed"
        left = self._estimate.left()
        if self._done + self._failed == self._total or left is None:
            return text
        return f"{text}, about {duration(left)} left"


def write_line(console: Console, line: str) -> None:
    """Write a line as it is, however long."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _label(job: Job) -> str:
    return job.name if job.of == 1 else f"run {job.number} of {job.of}: {job.name}"


def shown(
    console: Console, backend: Backend, jobs: Sequence[Job]
) -> Generator[tuple[Job, RunResult]]:
    """Do some runs and show them; yield each with its result when it is over."""
    with (
        Display(console, jobs, backend.processes) as display,
        closing(run_all(backend, jobs, display.show)) as done,
    ):
        for job, result in done:
            display.over(job, result if isinstance(result, FclError) else None)
            yield job, result


# ---- how long several runs take


@dataclass
class _Seen:
    """A run that has begun: the share of its time that is over, first and now.

    ``first`` is not 0 if the run was resumed.
    """

    began: float
    first: float
    share: float
    latest: float

    @property
    def whole(self) -> float | None:
        """Seconds of the whole run; None if unknown."""
        done = self.share - self.first
        return (self.latest - self.began) / done if done > 0 else None


class Estimate:
    """Estimates when several runs are over, some of them at the same time.

    A run takes the mean time of the finished runs of its variant. If there is none, the
    pace of a run of the variant under way counts. Else the other variants do.
    """

    def __init__(
        self, variants: Sequence[Hashable], processes: int, clock: Callable[[], float]
    ) -> None:
        """Watch runs of these variants, so many ``processes`` at the same time."""
        self._variants, self._processes, self._clock = variants, processes, clock
        self._seen: dict[int, _Seen] = {}
        self._over: set[int] = set()

    def progress(self, run: int, share: float) -> None:
        """Note the share of a run's time that is over, 1 when it is finished."""
        now = self._clock()
        seen = self._seen.setdefault(run, _Seen(now, share, share, now))
        if share != seen.share:
            seen.share, seen.latest = share, now

    def over(self, run: int) -> None:
        """Note that a run has finished or failed."""
        self._over.add(run)

    def left(self) -> float | None:
        """Estimate the seconds until all runs are over; None if unknown."""
        remaining = list[float]()
        for run in {*range(len(self._variants))} - self._over:
            whole, seen = self._whole(self._variants[run]), self._seen.get(run)
            if whole is None:
                return None
            if seen is not None:
                taken = self._clock() - seen.began
                whole = max(0.0, whole * (1 - seen.first) - taken)
            remaining.append(whole)
        return max([sum(remaining) / self._processes, *remaining], default=0.0)

    def _whole(self, variant: Hashable) -> float | None:
        times = defaultdict[tuple[bool, bool], list[float]](list)
        for run, seen in self._seen.items():
            if seen.whole is not None:
                other = self._variants[run] != variant
                times[other, seen.share < 1].append(seen.whole)
        return fmean(times[min(times)]) if times else None
