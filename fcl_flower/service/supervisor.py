"""Keep a service going: begin its run again if the run ends."""

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import RoundError
from fcl_flower.core.files import COMMAND_LOCK, lock_folder
from fcl_flower.results.files import json_value, write_json
from fcl_flower.service.status import Policy

if TYPE_CHECKING:
    from fcl_flower.deploy.diagnosis import Obstacle
    from fcl_flower.deploy.submission import SuperLink

SERVER_APP = "fcl_flower.flower_app.server_app:service"
RUN_FILE = "service-run.json"
"""The file with Flower's number of the service's last run, which may still go on."""
FAILURES, WITHIN_SECONDS = 5, 3600.0
"""A service that fails so often within so long is given up."""
PAUSE_SECONDS, LONGEST_PAUSE = 10.0, 600.0


def keep_serving(
    superlink: "SuperLink",
    config: RunConfig,
    policy: Policy,
    obstacle: Callable[[], "Obstacle | None"],
    report: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Keep a service going in the folder ``run.output``, until it is stopped.

    The wait for a missing server has no end. A run that ends by itself is begun again,
    and goes on where it was.

    Args:
        superlink: starts the run.
        config: of the first task, with an absolute ``output`` on this machine.
        policy: says when the service trains.
        obstacle: says what keeps this machine from the server.
        report: called with each line for the user.
        sleep: waits so many seconds.

    Raises:
        RoundError: the server cannot be trusted, or the run ended by itself
            `FAILURES` times within `WITHIN_SECONDS`.
    """
    folder = Path(config.run.output)
    folder.mkdir(parents=True, exist_ok=True)
    run, failed = folder / RUN_FILE, deque[float](maxlen=FAILURES)
    with lock_folder(folder, "output", COMMAND_LOCK):
        policy.write(folder)
        while True:
            _await_server(obstacle, report, sleep)
            if run.exists():  # a killed command left a run, which has the folder
                superlink.stop(str(json_value(run)), report)
                run.unlink()
            reason, on_start = "the run was stopped", partial(write_json, run)
            try:
                superlink.run(
                    config, report=report, on_start=on_start, server_app=SERVER_APP
                )
            except RoundError as error:
                reason = str(error)
            if obstacle():
                continue
            failed.append(time.monotonic())
            seconds = failed[-1] - failed[0]
            if len(failed) == FAILURES and seconds < WITHIN_SECONDS:
                raise RoundError(
                    f"the service ended {FAILURES} times within {seconds:.0f} s, at "
                    f"last as {reason}; mend that, then the same command goes on with "
                    "it"
                )
            pause = min(PAUSE_SECONDS * 2 ** (len(failed) - 1), LONGEST_PAUSE)
            report(f"{reason}; the service begins again in {pause:.0f} s")
            sleep(pause)


def _await_server(
    obstacle: Callable[[], "Obstacle | None"],
    report: Callable[[str], None],
    sleep: Callable[[float], None],
) -> None:
    reported = ""
    while barrier := obstacle():
        if not barrier.passes:
            raise RoundError(barrier.sentence)
        if barrier.sentence != reported:
            report(f"{barrier.sentence}; trying again every {PAUSE_SECONDS:.0f} s")
        reported = barrier.sentence
        sleep(PAUSE_SECONDS)
