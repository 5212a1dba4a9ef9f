"""Trackers fed with the numbers of a run: which these are is decided here, once."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typing_extensions import override

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import PluginWarning
from fcl_flower.core.types import Evaluation
from fcl_flower.results.history import RoundRecord
from fcl_flower.results.monitoring.listener import Listener
from fcl_flower.results.trackers.base import Tracker
from fcl_flower.results.trackers.registry import TRACKERS

OF_ROUND = (
    *("loss", "valid_loss", "valid_accuracy"),
    *("nominal_bytes_up", "nominal_bytes_down", "seconds"),
)
"""Keys of a round's line that are numbers as they stand there."""

OF_CLIENT = ("loss", "valid_loss", "valid_accuracy")
"""Of what clients say of their training; names of their own go nowhere."""

OF_RUN = (
    *("average_accuracy", "honest_accuracy", "forgetting", "backward_transfer"),
    *("learning_accuracy", "bytes_up", "bytes_down", "model_bytes", "seconds"),
)
"""Keys of a summary."""


def round_scalars(record: RoundRecord) -> dict[str, float]:
    """Return the numbers of a finished round by name."""
    line = record.line()
    found = {key: line[key] for key in OF_ROUND} | {
        "bytes_up": record.traffic.up.total(),
        "bytes_down": record.traffic.down.total(),
        "clients": len(record.client_metrics),
        "failed": len(record.failed),
        "task": record.task,
    }
    for client, scalars in record.client_metrics.items():
        found |= {f"client/{client}/{key}": scalars.get(key) for key in OF_CLIENT}
    return _known(found)


def accuracy_scalars(scores: Mapping[int, Evaluation]) -> dict[str, float]:
    """Return the test accuracies after a round: each client's mean over its tasks."""
    means = {
        client: sum(found.accuracy) / len(found.accuracy)
        for client, found in scores.items()
        if found.accuracy
    }
    found = {f"client/{client}/accuracy": value for client, value in means.items()}
    return {"accuracy": sum(means.values()) / len(means), **found} if means else {}


class Tracking(Listener):
    """Hands the numbers of a run to its trackers.

    One that fails is left out from then on, with a warning: a run of hours does not end
    because somebody else's server does.
    """

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        """Keep the trackers by name."""
        self._trackers = dict(trackers)

    @override
    def add_evaluation(
        self, server_round: int, scores: Mapping[int, Evaluation]
    ) -> None:
        scalars = accuracy_scalars(scores)
        self._tell(lambda tracker: tracker.log(scalars, server_round))

    @override
    def add_round(self, record: RoundRecord) -> None:
        scalars = round_scalars(record)
        self._tell(lambda tracker: tracker.log(scalars, record.round))

    @override
    def finish(self, summary: Mapping[str, Any], report: Path) -> None:
        measures = _known({key: summary[key] for key in OF_RUN})
        self._tell(lambda tracker: tracker.finish(measures, report))

    def close(self) -> None:
        """Close all trackers that are left."""
        self._tell(lambda tracker: tracker.close())

    def _tell(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in [*self._trackers.items()]:
            try:
                call(tracker)
            except Exception as error:  # somebody else's package: whatever it raises
                del self._trackers[name]
                said = f"run.track: {name} is left out from now on: {error!r}"
                warnings.warn(said, PluginWarning, stacklevel=2)


@contextmanager
def tracking(
    names: Sequence[str], config: RunConfig, folder: Path
) -> Iterator[Tracking]:
    """Track a run until the context ends.

    Args:
        names: of `TRACKERS`.
        config: of the run.
        folder: of the run.

    Raises:
        ConfigError: there is no such tracker, or its package is not installed.
    """
    found = Tracking({name: TRACKERS[name](config, folder) for name in names})
    try:
        yield found
    finally:
        found.close()


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    """Return the numbers that are there, and finite."""
    return {
        name: float(value)
        for name, value in values.items()
        if value is not None and math.isfinite(value)
    }
