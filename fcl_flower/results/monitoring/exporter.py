"""The numbers of a running run for Prometheus, on the server's own machine alone."""

from collections import Counter as Tally
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from typing_extensions import override

from fcl_flower.core.errors import extra, refuse
from fcl_flower.results.history import RoundRecord
from fcl_flower.results.monitoring.causes import Cause, cause_of
from fcl_flower.results.monitoring.listener import Listener

with extra("deploy", "run.metrics_port"):
    from prometheus_client import (
        CollectorRegistry,
        Counter,
        Gauge,
        Summary,
        start_http_server,
    )

HOST: Final = "127.0.0.1"
"""Whoever is let in here is on the machine already."""


class Exporter(Listener):
    """Metrics of one run, which a scrape reads at any time.

    Label values are fixed before the first round: none comes from a client.

    Attributes:
        registry: holds the metrics of this run and no others.
    """

    def __init__(self, connected: Callable[[], int]) -> None:
        """Create the metrics of a run without rounds.

        Args:
            connected: returns how many clients are; called in the thread of a scrape.
        """
        self.registry = CollectorRegistry()
        self._planned = Gauge(
            "fcl_rounds_planned",
            "Rounds of the whole run; updates where it is asynchronous.",
            registry=self.registry,
        )
        self._rounds = Counter(
            "fcl_rounds",
            "Rounds that are finished, those before a resumption too.",
            registry=self.registry,
        )
        self._seconds = Summary(
            "fcl_round_seconds", "What rounds took.", registry=self.registry
        )
        clients = Gauge(
            "fcl_clients_connected",
            "Clients that were connected when the server last looked.",
            registry=self.registry,
        )
        clients.set_function(connected)
        traffic = Counter(
            "fcl_bytes",
            "Bytes of finished rounds, up from clients and down to them.",
            ["direction"],
            registry=self.registry,
        )
        self._up, self._down = traffic.labels("up"), traffic.labels("down")
        left_out = Counter(
            "fcl_left_out",
            "Updates and evaluations that were not used, by class of reason.",
            ["cause"],
            registry=self.registry,
        )
        self._left_out = {cause: left_out.labels(cause) for cause in Cause}

    @override
    def begin(self, rounds: int) -> None:
        self._planned.set(rounds)

    @override
    def add_round(self, record: RoundRecord) -> None:
        self._rounds.inc()
        self._seconds.observe(record.seconds)
        self._up.inc(record.traffic.up.total())
        self._down.inc(record.traffic.down.total())
        for cause, times in Tally(map(cause_of, record.failed.values())).items():
            self._left_out[cause].inc(times)


@contextmanager
def exporting(port: int, connected: Callable[[], int]) -> Iterator[Exporter]:
    """Serve ``/metrics`` of a run until the context ends.

    Args:
        port: of `HOST`, 1 to 65535.
        connected: see `Exporter`.

    Raises:
        ConfigError: the port cannot be had.
    """
    exporter = Exporter(connected)
    try:
        server, thread = start_http_server(port, HOST, exporter.registry)
    except OSError as error:
        expected = f"a free port of {HOST} ({error.strerror})"
        raise refuse("run.metrics_port", port, expected) from error
    try:
        yield exporter
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
