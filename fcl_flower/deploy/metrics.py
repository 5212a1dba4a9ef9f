"""Metrics of a server as long as it is up, with or without a run."""

import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from typing_extensions import override

from fcl_flower.core.errors import ConfigError, require_extra
from fcl_flower.deploy.certificates import Certificates
from fcl_flower.results import journal
from fcl_flower.results.known_runs import FOLDER, KnownRun, Standing, known_runs
from fcl_flower.results.prometheus import Exporter
from fcl_flower.service.status import ServiceStatus

with require_extra("deploy", "metrics-port"):
    from prometheus_client.core import GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector

CONNECTED_SECONDS: Final = 90.0
"""Seconds since the last call of a client that still counts as connected.

A client calls every few seconds; its SuperNode gives a sign of life every 30.
"""
_DAY: Final = 86400.0


class ServerMetrics(Collector):
    """The metrics of a server: its files, its clients, and the newest run.

    The metrics of the run are those of its own `Exporter`, which hears the events that
    the run's journal has. Label values are names of the server's own files.
    """

    def __init__(
        self,
        state: Path,
        certificates: Certificates | None,
        seen: Callable[[], Mapping[str, float]] | None,
        healthy: Callable[[], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Look at nothing yet.

        Args:
            state: the server's folder.
            certificates: None for a server without certificates.
            seen: the time of each client's last call, NaN for none, by its name; None
                where no keys tell who calls.
            healthy: whether the server answers its clients.
            clock: the time, in seconds since 1970.
        """
        self._state, self._certificates = state, certificates
        self._seen, self._healthy, self._clock = seen, healthy, clock
        self._run: tuple[object, Exporter] = (None, Exporter(self._connected))

    @override
    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        yield _gauge("up", "Whether the server answers its clients.", self._healthy())
        yield from self._of_clients()
        yield from self._of_machine()
        runs = known_runs(self._state / FOLDER)
        yield from _of_runs(runs)
        yield from _of_service(runs)
        yield from self._newest(runs).registry.collect()

    def _last_calls(self) -> Mapping[str, float]:
        return {} if self._seen is None else self._seen()

    def _connected(self) -> float:
        if self._seen is None:
            return math.nan
        return sum(map(self._is_connected, self._last_calls().values()))

    def _is_connected(self, last: float) -> bool:
        return self._clock() - last < CONNECTED_SECONDS

    def _of_clients(self) -> Iterator[Metric]:
        connected = GaugeMetricFamily(
            "fcl_client_connected",
            f"Whether a client has called in the last {CONNECTED_SECONDS:.0f} seconds.",
            labels=["client"],
        )
        last = GaugeMetricFamily(
            "fcl_client_last_seen_timestamp_seconds",
            "When a client last called; NaN: not since the server started.",
            labels=["client"],
        )
        for name, when in sorted(self._last_calls().items()):
            number = name.removeprefix("client-")
            connected.add_metric([number], self._is_connected(when))
            last.add_metric([number], when)
        yield connected
        yield last

    def _of_machine(self) -> Iterator[Metric]:
        days = math.nan
        if self._certificates is not None:
            try:
                days = (self._certificates.ends() - datetime.now(UTC)).total_seconds()
            except ConfigError:  # somebody is replacing it
                days = math.nan
        what = "Days until the server's certificate ends; NaN without one."
        yield _gauge("certificate_days", what, days / _DAY)
        free = shutil.disk_usage(self._state).free
        yield _gauge("disk_free_bytes", "What is free where the state is.", free)
        # SQLite keeps more files beside the database.
        sizes = [path.stat().st_size for path in self._state.glob("superlink.db*")]
        what = "Size of the SuperLink's database."
        yield _gauge("database_bytes", what, sum(sizes))

    def _newest(self, runs: list[KnownRun]) -> Exporter:
        """Bring the exporter of the newest run to what its journal has by now."""
        if not runs:
            return self._run[1]
        path = runs[-1].folder / journal.FILE
        rounds = runs[-1].folder / "rounds.jsonl"
        try:
            status = path.stat()
            seen = (path, status.st_ino, status.st_size, status.st_mtime_ns)
            if seen != self._run[0]:
                ended = rounds.stat().st_mtime
                exporter = Exporter(self._connected, lambda: ended)
                for event in journal.replay(path):
                    exporter.add(event)
                self._run = seen, exporter
        except (OSError, ValueError, KeyError, TypeError):
            # It has not begun to write, or somebody has removed it: a run without
            # rounds, as long as there is nothing else.
            self._run = None, Exporter(self._connected)
        return self._run[1]


def _of_runs(runs: list[KnownRun]) -> Iterator[Metric]:
    by_standing = Counter(run.standing for run in runs)
    counts = GaugeMetricFamily(
        "fcl_runs",
        "Runs that this server has begun, by how they ended.",
        labels=["end"],
    )
    for standing in (Standing.FINISHED, Standing.FAILED, Standing.STOPPED):
        counts.add_metric([standing], by_standing[standing])
    yield counts
    going = by_standing[Standing.GOES_ON]
    yield _gauge("runs_going_on", "Runs that go on now.", going)
    began = runs[-1].began if runs else math.nan
    what = "When the newest run began, or was resumed."
    yield _gauge("run_began_timestamp_seconds", what, began)
    failed = runs and runs[-1].standing in (Standing.FAILED, Standing.STOPPED)
    what = "Whether the newest run has failed, or was stopped."
    yield _gauge("run_failed", what, bool(failed))


def _of_service(runs: list[KnownRun]) -> Iterator[Metric]:
    """Yield what a service does; NaN where the newest run is of none."""
    states = ("waiting", "training", "failed")
    now, since, due, learned = dict.fromkeys(states, math.nan), *[math.nan] * 3
    try:
        status = ServiceStatus.read(runs[-1].folder) if runs else None
    except ConfigError:  # there is none
        status = None
    if status is not None:
        # Who was killed has not written that it waits no longer.
        on = status.state == "failed" or runs[-1].standing is Standing.GOES_ON
        now = {state: float(on and state == status.state) for state in states}
        since, learned = status.since, status.learned
        due = math.nan if status.due is None else status.due
    state = GaugeMetricFamily(
        "fcl_service", "What fcl serve does: 1 for its state.", labels=["state"]
    )
    for name, value in now.items():
        state.add_metric([name], value)
    yield state
    what = "Since when it does that."
    yield _gauge("service_since_timestamp_seconds", what, since)
    what = "When it trains next if nothing changes."
    yield _gauge("service_due_timestamp_seconds", what, due)
    yield _gauge("service_tasks", "Tasks that the federation has learned.", learned)


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(f"fcl_{name}", what, value=value)
