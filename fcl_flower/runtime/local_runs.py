"""Runs on this machine: in this process, in others beside it, in Flower's simulation.

All give the same numbers.
"""

import contextlib
import json
import os
import select
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from fcl_flower.config.run_config import refuse_attack
from fcl_flower.config.run_spec import RunSpec
from fcl_flower.core.errors import FclError
from fcl_flower.runtime.processes import POLL_SECONDS, Progress, make_folder
from fcl_flower.runtime.runner import Runner


class Job(NamedTuple):
    """A run that is to be done.

    Attributes:
        run: what.
        folder: for its results; made if it is not there.
        number: of the run among those that belong together, from 1.
        of: how many these are.
    """

    run: RunSpec
    folder: Path
    number: int = 1
    of: int = 1

    @property
    def name(self) -> str:
        """What the run is called among those of other strategies and seeds."""
        return f"{self.run.config.title} seed {self.run.config.run.seed}"


class Backend(NamedTuple):
    """Where runs take place.

    Attributes:
        name: ``in-process`` or ``flower``.
        workers: clients of a run that train at the same time; None for one, or of
            Flower's runtime for one a CPU core.
        gpus_per_client: of Flower's runtime.
        processes: without Flower's runtime, runs at the same time. One run after
            another, of one client after another, is in this process; all else is in
            processes of its own.
        local_data: with local data, the folder of each client; not in Flower's
            runtime.
    """

    name: str = "in-process"
    workers: int | None = None
    gpus_per_client: float = 0.0
    processes: int = 1
    local_data: tuple[Path, ...] = ()


Watch: TypeAlias = Callable[[Job, Progress], None]
RunResult: TypeAlias = dict[str, Any] | FclError
"""The summary of a run, or why it has failed."""


def run_all(
    backend: Backend,
    jobs: Sequence[Job],
    watch: Watch = lambda job, progress: None,
) -> Generator[tuple[Job, RunResult]]:
    """Do some runs; yield each with its result when it is over.

    What was started for the first serves the others, too. One that fails takes no
    other with it.

    Args:
        backend: where.
        jobs: in the order in which they begin.
        watch: called with the progress of a run when it changes.

    Raises:
        ConfigError: a folder cannot be made.
    """
    alone = backend.processes == (backend.workers or 1) == 1
    if backend.name == "in-process" and alone:
        return _run_here(jobs, backend, watch)
    return _run_beside(jobs, backend, watch)


def _run_here(
    jobs: Sequence[Job], backend: Backend, watch: Watch
) -> Generator[tuple[Job, RunResult]]:
    """Run one after the other in this process."""
    for job in jobs:
        # Imported here as it loads torch.
        from fcl_flower.runtime.in_process import run_in_process

        def show(progress: Progress, job: Job = job) -> None:
            watch(job, progress)

        make_folder(job.folder, "output")
        result: RunResult
        try:
            result = run_in_process(
                job.run.config, job.folder, local_data=backend.local_data, watch=show
            )
        except FclError as error:
            result = error
        yield job, result


def _run_beside(
    jobs: Sequence[Job], backend: Backend, watch: Watch
) -> Generator[tuple[Job, RunResult]]:
    """Run in processes beside this one, which serve one run after another."""
    waiting = iter(jobs)
    options: dict[str, str | float] = {"backend": backend.name}
    if backend.name == "flower":
        options["workers"] = backend.workers or len(os.sched_getaffinity(0))
        options["gpus_per_client"] = backend.gpus_per_client
    else:
        options["workers"] = backend.workers or 1
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(Runner(options)) for _ in range(backend.processes)]
        busy: dict[Runner, _Watched] = {}
        while True:
            while idle and (job := next(waiting, None)):
                if backend.name == "flower":
                    refuse_attack(job.run.config)
                make_folder(job.folder, "output")
                busy[idle[-1]] = _Watched(job, watch)
                idle[-1].begin(job.run.config, job.folder, backend.local_data)
                idle.pop()
            if not busy:
                return
            over, _, _ = select.select([*busy], [], [], POLL_SECONDS)
            for watched in busy.values():
                watched.look()
            for runner in over:
                job = busy.pop(runner).job
                yield job, runner.result() or _summary(job.folder)
                idle.append(runner)


class _Watched:
    """A run of another process, and what was last seen of its progress."""

    def __init__(self, job: Job, watch: Watch) -> None:
        self.job = job
        self._watch = watch
        self._seen = self._read()  # by an earlier run

    def look(self) -> None:
        """Report how far the run is, if that has changed."""
        now = self._read()
        if now and now != self._seen:
            self._seen = now
            self._watch(self.job, now)

    def _read(self) -> Progress:
        with contextlib.suppress(FileNotFoundError):
            found: Progress = json.loads(
                (self.job.folder / "progress.json").read_text()
            )
            return found
        return {}


def _summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found
