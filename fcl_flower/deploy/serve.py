"""A service: a run without an end, which is started again when it ends."""

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import RoundError
from fcl_flower.core.files import COMMAND_LOCK, lock_folder
from fcl_flower.deploy import commands
from fcl_flower.deploy.diagnosis import Obstacle
from fcl_flower.deploy.submission import OURS, SuperLink
from fcl_flower.results.files import json_value, write_json
from fcl_flower.results.service import POLICY_FILE, Policy, write

APPS = "fcl_flower.flower_app.service_app:app", OURS[1]
RUN_FILE = "service-run.json"
"""Flower's number of the run that a service was last, which may go on without us."""

FAILURES, WITHIN_SECONDS = 5, 3600.0
"""So many within so long are too many."""
PAUSE_SECONDS, LONGEST_PAUSE = 10.0, 600.0


def serve(
    superlink: SuperLink,
    config: RunConfig,
    policy: Policy,
    obstacle: Callable[[], Obstacle | None],
    report: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Keep a service going in the folder ``run.output``, until it is stopped.

    A server that is not there is waited for without an end. A run that ends by itself
    is begun again, and goes on where it was.

    Args:
        superlink: starts it.
        config: of its first task, with an absolute ``output``, which is on this
            machine.
        policy: when it trains.
        obstacle: says what stands between this machine and the server.
        report: called with each line for the user.
        sleep: waits so many seconds.

    Raises:
        RoundError: the server cannot be trusted, or the run ended by itself
            `FAILURES` times within `WITHIN_SECONDS`.
    """
    folder = Path(config.run.output)
    folder.mkdir(parents=True, exist_ok=True)
    failed = deque[float](maxlen=FAILURES)
    with lock_folder(folder, "output", COMMAND_LOCK):
        write(folder / POLICY_FILE, policy)
        while True:
            _await_server(obstacle, report, sleep)
            _stop_earlier(superlink, folder, report)
            try:
                superlink.run(
                    config,
                    apps=APPS,
                    report=_noting(folder, report),
                    watch=lambda progress: None,
                )
                reason = "the run was stopped"
            except RoundError as error:
                reason = str(error)
            if obstacle():
                continue
            failed.append(time.monotonic())
            if len(failed) == FAILURES and failed[-1] - failed[0] < WITHIN_SECONDS:
                raise RoundError(
                    f"the service ended {FAILURES} times within "
                    f"{failed[-1] - failed[0]:.0f} s, at last as {reason}; mend that, "
                    "then the same command goes on with it"
                )
            pause = min(PAUSE_SECONDS * 2 ** (len(failed) - 1), LONGEST_PAUSE)
            report(f"{reason}; the service begins again in {pause:.0f} s")
            sleep(pause)


def _await_server(
    obstacle: Callable[[], Obstacle | None],
    report: Callable[[str], None],
    sleep: Callable[[float], None],
) -> None:
    said = ""
    while found := obstacle():
        if not found.passes:
            raise RoundError(found.sentence)
        if found.sentence != said:
            report(f"{found.sentence}; trying again every {PAUSE_SECONDS:.0f} s")
        said = found.sentence
        sleep(PAUSE_SECONDS)


def _stop_earlier(
    superlink: SuperLink, folder: Path, report: Callable[[str], None]
) -> None:
    """End the run of a command that was killed: it would keep the folder."""
    path = folder / RUN_FILE
    if path.exists():
        superlink.stop(str(json_value(path)), report)
        path.unlink()


def _noting(folder: Path, report: Callable[[str], None]) -> Callable[[str], None]:
    def noted(line: str) -> None:
        if found := commands.STARTED_RUN.search(line):
            write_json(folder / RUN_FILE, found[1])
        report(line)

    return noted
