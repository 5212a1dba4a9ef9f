"""Where a simulation runs: this process, or Flower's simulation runtime."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fcl_flower.runtime.processes import Progress
from fcl_flower.setup.resolve import ResolvedRun


def run_on(
    backend: str,
    run: ResolvedRun,
    folder: Path,
    *,
    workers: int | None = None,
    gpus_per_client: float = 0.0,
    local_data: Sequence[Path] = (),
    watch: Callable[[Progress], None] = lambda progress: None,
) -> dict[str, Any]:
    """Run one configuration into a folder; return its summary.

    Args:
        backend: ``in-process`` or ``flower``; the numbers are the same.
        run: resolved.
        folder: exists and can be written.
        workers: of Flower's runtime, clients that train at the same time; None for one
            a CPU core.
        gpus_per_client: of Flower's runtime.
        local_data: in this process, the folder of each client's local data.
        watch: called with the progress when it changes.

    Raises:
        RoundError: the run failed.
    """
    if backend == "in-process":
        from fcl_flower.runtime.in_process import run_in_process

        return run_in_process(run.config, folder, local_data=local_data, watch=watch)
    from fcl_flower.runtime.simulation import simulate

    return simulate(
        run.config,
        folder,
        workers=workers or len(os.sched_getaffinity(0)),
        gpus_per_client=gpus_per_client,
        watch=watch,
    )
