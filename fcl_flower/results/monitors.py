"""Who hears of a run while it goes on: Prometheus and trackers."""

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from fcl_flower.core.errors import PluginWarning, config_error, require_extra
from fcl_flower.core.failures import Failure
from fcl_flower.core.types import Evaluation
from fcl_flower.results.events import (
    Begun,
    Evaluated,
    Event,
    Extended,
    Summary,
    Trained,
)
from fcl_flower.results.trackers import Tracker

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

HOST: Final = "127.0.0.1"
"""Whoever is let in here is on the machine already."""


class RunListener:
    """Told by the recorder what it has recorded; a listener has what it cares for."""

    def add(self, event: Event) -> None:
        """Hear what has happened; of a resumed run all from its beginning again."""

    def finish(self, summary: Summary, report: Path) -> None:
        """Hear of the run's end: its summary and its page."""


# ---- Prometheus


class Exporter(RunListener):
    """Metrics of one run, which a scrape reads at any time.

    Label values are fixed before the first round: none comes from a client. What is not
    known yet is NaN.
    """

    def __init__(
        self,
        connected: Callable[[], float],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create the metrics of a run without rounds.

        ``connected`` counts the clients; it is called in the thread of a scrape.
        ``clock`` tells when a round has ended, in seconds since 1970.
        """
        with require_extra("deploy", "run.metrics_port"):
            import prometheus_client as metrics

        self.registry = registry = metrics.CollectorRegistry()
        self._clock = clock
        self._planned = metrics.Gauge(
            "fcl_rounds_planned",
            "Rounds of the whole run; updates where it is asynchronous.",
            registry=registry,
        )
        self._rounds = metrics.Counter(
            "fcl_rounds",
            "Rounds that are finished, those before a resumption too.",
            registry=registry,
        )
        self._seconds = metrics.Summary(
            "fcl_round_seconds", "What rounds took.", registry=registry
        )
        metrics.Gauge(
            "fcl_clients_connected",
            "Clients that were connected when the server last looked.",
            registry=registry,
        ).set_function(connected)
        self._traffic = metrics.Counter(
            "fcl_bytes",
            "Bytes of finished rounds, up from clients and down to them.",
            ["direction"],
            registry=registry,
        )
        self._last, self._loss, self._accuracy = (
            metrics.Gauge(name, what, registry=registry)
            for name, what in (
                ("fcl_last_round_timestamp_seconds", "When the last round ended."),
                ("fcl_loss", "Training loss of the last round, mean over clients."),
                ("fcl_accuracy", "Accuracy of the last test, mean over clients."),
            )
        )
        for gauge in (self._last, self._loss, self._accuracy):
            gauge.set(math.nan)
        self._left_out = metrics.Counter(
            "fcl_left_out",
            "Updates and evaluations that were not used, by class of reason.",
            ["cause"],
            registry=registry,
        )
        for way in ("up", "down"):
            self._traffic.labels(way)
        for failure in Failure:
            self._left_out.labels(failure)

    @override
    def add(self, event: Event) -> None:
        if isinstance(event, Begun | Extended):
            begun = event.begun if isinstance(event, Extended) else event
            self._planned.set(begun.about.total_rounds)
        elif isinstance(event, Trained):
            self._rounds.inc()
            self._seconds.observe(event.seconds)
            self._traffic.labels("up").inc(event.traffic.up.total())
            self._traffic.labels("down").inc(event.traffic.down.total())
            loss = event.line().loss
            self._loss.set(math.nan if loss is None else loss)
            self._last.set(self._clock())
            for reason in event.failed.values():
                self._left_out.labels(Failure.of(reason)).inc()
        elif isinstance(event, Evaluated):
            found = accuracy_scalars(event.scores)
            self._accuracy.set(found.get("accuracy", math.nan))


@contextmanager
def exporting(key: str, port: int, registry: "CollectorRegistry") -> Iterator[None]:
    """Serve metrics at a port of `HOST`, which a setting names, until the context ends.

    Raises:
        ConfigError: the port cannot be had.
    """
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(port, HOST, registry)
    except OSError as error:
        expected = f"a free port of {HOST} ({error.strerror})"
        raise config_error(key, port, expected) from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# ---- trackers

OF_ROUND = (
    *("loss", "valid_loss", "valid_accuracy"),
    *("nominal_bytes_up", "nominal_bytes_down", "seconds"),
)
"""Keys of a round's line that are numbers as they stand there."""

OF_CLIENT = ("loss", "valid_loss", "valid_accuracy")
"""Of what clients say of their training; names of their own go nowhere."""

OF_RUN = (
    *("average_accuracy", "balanced_accuracy", "honest_accuracy", "forgetting"),
    *("backward_transfer", "learning_accuracy", "average_incremental_accuracy"),
    *("bytes_up", "bytes_down", "model_bytes", "seconds"),
)
"""Keys of a summary."""


def round_scalars(event: Trained) -> dict[str, float]:
    """Name the numbers of a finished round."""
    line = event.line()
    found = {key: getattr(line, key) for key in OF_ROUND} | {
        "bytes_up": event.traffic.up.total(),
        "bytes_down": event.traffic.down.total(),
        "clients": len(event.replies),
        "failed": len(event.failed),
        "task": event.task,
    }
    for client, scalars in event.replies.items():
        found |= {f"client/{client}/{key}": scalars.get(key) for key in OF_CLIENT}
    return _known(found)


def accuracy_scalars(scores: Mapping[int, Evaluation]) -> dict[str, float]:
    """Name the test accuracies after a round: each client's mean over its tasks."""
    means = {
        client: sum(found.accuracy) / len(found.accuracy)
        for client, found in scores.items()
        if found.accuracy
    }
    found = {f"client/{client}/accuracy": value for client, value in means.items()}
    return {"accuracy": sum(means.values()) / len(means), **found} if means else {}


class Tracking(RunListener):
    """Hands the numbers of a run to its trackers.

    One that fails is left out from then on, with a warning: a run of hours does not end
    because somebody else's server does.
    """

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        """Keep the trackers by name."""
        self._trackers = dict(trackers)

    @override
    def add(self, event: Event) -> None:
        if isinstance(event, Trained):
            scalars = round_scalars(event)
        elif isinstance(event, Evaluated):
            scalars = accuracy_scalars(event.scores)
        else:
            return
        number = event.round
        self._tell(lambda tracker: tracker.log(scalars, number))

    @override
    def finish(self, summary: Summary, report: Path) -> None:
        measures = _known({key: getattr(summary, key) for key in OF_RUN})
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


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in values.items()
        if value is not None and math.isfinite(value)
    }
