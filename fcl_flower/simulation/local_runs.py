"""Runs on this machine: in this process, in others beside it, in Flower's simulation.

All of them give the same numbers.
"""

import contextlib
import json
import os
import select
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from fcl_flower.config.run_config import refuse_attack
from fcl_flower.config.run_spec import RunSpec
from fcl_flower.core import processes
from fcl_flower.core.errors import FclError
from fcl_flower.core.processes import Progress, ProgressFile
from fcl_flower.simulation.runner import Runner


class Job(NamedTuple):
    """A run to be done, the ``number``-th ``of`` several that belong together."""

    run: RunSpec
    folder: Path
    """The folder for its results; it is made if it is missing."""
    number: int = 1
    of: int = 1

    @property
    def name(self) -> str:
        """The name of the run among those of other strategies and seeds."""
        return f"{self.run.config.title} seed {self.run.config.run.seed}"


class Backend(NamedTuple):
    """The place of runs: this process, ``in-process``, or Flower's runtime, ``flower``.

    Runs and clients one after another are in this process. All other runs are in
    processes beside it.
    """

    name: str = "in-process"
    workers: int | None = None
    """Clients of a run at the same time; None for one, or in ``flower`` one a core."""
    gpus_per_client: float = 0.0
    """An option of ``flower`` alone."""
    processes: int = 1
    """Runs at the same time; of ``in-process`` alone, as local data."""
    local_data: tuple[Path, ...] = ()
    """The folder of each client."""


Watch: TypeAlias = Callable[[Job, Progress], None]
RunResult: TypeAlias = dict[str, Any] | FclError
"""The summary of a run, or why it has failed."""


def run_all(
    backend: Backend,
    jobs: Sequence[Job],
    watch: Watch = lambda job, progress: None,
) -> Generator[tuple[Job, RunResult]]:
    """Do some runs in this order; yield each with its result when it is over.

    The processes of the first run serve the other runs, too. A failed run ends no other
    run. ``watch`` gets the progress of a run when it changes.

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
    for job in jobs:
        # Imported here as it loads torch.
        from fcl_flower.simulation.in_process import run_in_process

        processes.make_folder(job.folder, "output")
        result: RunResult
        try:
            result = run_in_process(
                job.run.config,
                job.folder,
                local_data=backend.local_data,
                watch=partial(watch, job),
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
    options["workers"] = backend.workers or 1
    if backend.name == "flower":
        options["workers"] = backend.workers or len(os.sched_getaffinity(0))
        options["gpus_per_client"] = backend.gpus_per_client
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(Runner(options)) for _ in range(backend.processes)]
        busy: dict[Runner, tuple[Job, ProgressFile]] = {}
        while True:
            while idle and (job := next(waiting, None)):
                if backend.name == "flower":
                    refuse_attack(job.run.config)
                processes.make_folder(job.folder, "output")
                progress = ProgressFile(job.folder)
                idle[-1].begin(job.run.config, job.folder, backend.local_data)
                busy[idle.pop()] = job, progress
            if not busy:
                return
            over, _, _ = select.select([*busy], [], [], processes.POLL_SECONDS)
            for job, progress in busy.values():
                if now := progress.news():
                    watch(job, now)
            for runner in over:
                job, _ = busy.pop(runner)
                summary = job.folder / "summary.json"
                yield job, runner.result() or json.loads(summary.read_text())
                idle.append(runner)
