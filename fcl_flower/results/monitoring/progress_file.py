"""``progress.json``: how far a run is, for who watches it."""

import time
from collections.abc import Collection
from pathlib import Path

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.schedule import Schedule
from fcl_flower.data.scenarios.registry import Scenario
from fcl_flower.results.history import RunHistory
from fcl_flower.results.monitoring.pace import Pace
from fcl_flower.results.run_folder import write_json
from fcl_flower.results.summary import total_rounds

PROGRESS_SECONDS = 0.2
"""Between two writings in the midst of a round."""


class ProgressFile:
    """Says where a run stands and what it has come to, and foretells its end."""

    def __init__(self, path: Path, config: RunConfig, scenario: Scenario) -> None:
        """Write nothing yet.

        Args:
            path: of the file.
            config: of the run.
            scenario: the tasks of every client.
        """
        self._path, self._written = path, time.monotonic()
        hidden = scenario.stream is not None
        self._tasks = 1 if hidden else config.scenario.tasks
        self._rounds = total_rounds(config, scenario)
        self._pace = _pace(config, self._rounds, self._tasks)

    def add_round(self, number: int, seconds: float) -> None:
        """Note how long a round has taken."""
        self._pace.add(number, seconds)

    def write(
        self,
        history: RunHistory,
        taken: tuple[float, float],
        server_round: int,
        done: int,
        expected: int,
        state: str,
        working: Collection[int],
    ) -> None:
        """Write how far the run is.

        Not for every client that answers in the midst of a round: of a thousand, most
        are done before anybody could have read of the one before.

        Args:
            history: of the run so far.
            taken: seconds since the run has begun, and since the round has.
            server_round: that is running, counted from 1; 0 before the first.
            done: clients that have answered in it.
            expected: clients that were asked.
            state: ``starting``, ``training`` or ``finished``.
            working: clients that have been asked and have not answered.
        """
        now = time.monotonic()
        if 0 < done < expected and now - self._written < PROGRESS_SECONDS:
            return
        self._written = now
        write_json(
            self._path,
            {
                "state": state,
                "round": server_round,
                "rounds": self._rounds,
                "task": max(0, server_round - 1) * self._tasks // self._rounds,
                "tasks": self._tasks,
                "clients_done": done,
                "clients": expected,
                "working": sorted(working),
                "accuracy": history.average_accuracy,
                "bytes_up": history.traffic.up.total(),
                "bytes_down": history.traffic.down.total(),
                "seconds": taken[0],
                "left": self._pace.left(taken[1]),
            },
        )


def _pace(config: RunConfig, rounds: int, tasks: int) -> Pace:
    """Return what foretells a run: of clients at different tasks, by all updates."""
    section = config.federation
    if config.asynchronous.enabled:
        return Pace(rounds, tasks, lambda update: False)
    schedule = Schedule(
        config.scenario.clients,
        tasks,
        section.rounds_per_task,
        section.client_fraction,
        config.run.seed,
        section.evaluate_every,
        scores=config.privacy.scores,
    )
    return Pace(schedule.num_rounds, tasks, schedule.evaluates)
