"""Metrics of one run for Prometheus."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from fcl_flower.core.errors import config_error, require_extra
from fcl_flower.core.failures import Failure
from fcl_flower.results.events import Begun, Evaluated, Event, Extended, Trained
from fcl_flower.results.trackers import accuracy_scalars

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

HOST: Final = "127.0.0.1"
"""The address of metrics, which only this machine reaches."""
GAUGES: Final = {
    "rounds_planned": "Rounds of the whole run; updates where it is asynchronous.",
    "clients_connected": "Clients that were connected when the server last looked.",
    "last_round_timestamp_seconds": "When the last round ended.",
    "loss": "Training loss of the last round, mean over clients.",
    "accuracy": "Accuracy of the last test, mean over clients.",
}


class Exporter:
    """The metrics of one run, which a scrape reads at any time.

    Label values are fixed before the first round, so none comes from a client. A value
    that is not known yet is NaN.
    """

    def __init__(
        self,
        connected: Callable[[], float],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create the metrics of a run without rounds.

        Args:
            connected: counts the clients, in the thread of a scrape.
            clock: returns the time at which a round has ended, in seconds since 1970.
        """
        with require_extra("deploy", "run.metrics_port"):
            import prometheus_client as metrics

        self.registry, self._clock = metrics.CollectorRegistry(), clock
        self._gauges = {
            name: metrics.Gauge(f"fcl_{name}", meaning, registry=self.registry)
            for name, meaning in GAUGES.items()
        }
        self._gauges["clients_connected"].set_function(connected)
        for unknown in ("last_round_timestamp_seconds", "loss", "accuracy"):
            self._gauges[unknown].set(math.nan)
        counter = partial(metrics.Counter, registry=self.registry)
        summary = partial(metrics.Summary, registry=self.registry)
        self._seconds = summary("fcl_round_seconds", "Durations of rounds.")
        what = "Rounds that are finished, those before a resumption too."
        self._rounds = counter("fcl_rounds", what)
        what = "Bytes of finished rounds, up from clients and down to them."
        self._traffic = counter("fcl_bytes", what, ["direction"])
        what = "Updates and evaluations that were not used, by class of reason."
        self._left_out = counter("fcl_left_out", what, ["cause"])
        for way in ("up", "down"):
            self._traffic.labels(way)
        for failure in Failure:
            self._left_out.labels(failure)

    def add(self, event: Event) -> None:
        """Count an event; a resumed run passes all its events again."""
        if isinstance(event, Begun | Extended):
            begun = event.begun if isinstance(event, Extended) else event
            self._gauges["rounds_planned"].set(begun.about.total_rounds)
        elif isinstance(event, Trained):
            self._rounds.inc()
            self._seconds.observe(event.seconds)
            self._traffic.labels("up").inc(event.traffic.up.total())
            self._traffic.labels("down").inc(event.traffic.down.total())
            self._gauges["loss"].set(math.nan if event.loss is None else event.loss)
            self._gauges["last_round_timestamp_seconds"].set(self._clock())
            for reason in event.failed.values():
                self._left_out.labels(Failure.of(reason)).inc()
        elif isinstance(event, Evaluated):
            scalars = accuracy_scalars(event.scores)
            self._gauges["accuracy"].set(scalars.get("accuracy", math.nan))


@contextmanager
def exporting(key: str, port: int, registry: "CollectorRegistry") -> Iterator[None]:
    """Serve metrics at a port of `HOST` until the context ends.

    Args:
        key: setting that names the port, for the error's message.
        port: the port.
        registry: metrics to serve.

    Raises:
        ConfigError: the port is not free.
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
