"""Who hears of a run while it goes on: Prometheus, trackers and a live page."""

import math
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import BaseServer, TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, ClassVar, Final

from typing_extensions import override

from fcl_flower.core.errors import (
    ConfigError,
    PluginWarning,
    config_error,
    require_extra,
)
from fcl_flower.core.failures import Failure
from fcl_flower.core.types import Evaluation
from fcl_flower.results import journal
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

    with _listening(key, port, partial(start_http_server, port, HOST, registry)):
        yield


@contextmanager
def _listening(
    key: str, port: int, start: Callable[[], tuple[BaseServer, threading.Thread]]
) -> Iterator[BaseServer]:
    try:
        server, thread = start()
    except OSError as error:
        expected = f"a free port of {HOST} ({error.strerror})"
        raise config_error(key, port, expected) from error
    try:
        yield server
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


# ---- the live page

SHARE: Final = 0.05
"""Of the time may go into drawing, which takes it from a run in this process."""
LOOKS_SECONDS: Final = 6.0
"""Since its last question, for which a page counts as open; it asks every 2 seconds."""
FILES: Final = (journal.FILE, "progress.json", "summary.json")
"""Of a run's folder: the page changes when one of them does."""


class LivePage:
    """A page that is drawn when it is asked for and its files have changed."""

    def __init__(
        self,
        draw: Callable[[bool], str],
        folders: Sequence[Path],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Draw nothing yet.

        ``draw`` makes the page of some folders, given whether it goes on changing; it
        raises a ConfigError while there is nothing to show.
        """
        self._draw, self._folders, self._clock = draw, folders, clock
        self._lock = threading.Lock()
        self._page, self._files = b"", object()
        self._next = self._asked = -float("inf")
        self._goes_on, self._last = True, ""
        self._seen_last = threading.Event()

    def get(self) -> tuple[bytes, str]:
        """Give the page, and a tag that is another one when the page is."""
        with self._lock:
            self._asked = began = self._clock()
            files = self._goes_on, self._stamp()
            due = began >= self._next or not self._goes_on
            if files != self._files and due:
                self._page = self._draw(self._goes_on).encode()
                self._files = files
                took = self._clock() - began
                self._next = self._clock() + took / SHARE
            tag = f'"{zlib.crc32(self._page):08x}"'
            self._last = "" if self._goes_on else tag
            return self._page, tag

    def sent(self, tag: str) -> None:
        """Note that somebody has got the page of a tag, which may not be the last."""
        with self._lock:
            if tag == self._last:
                self._seen_last.set()

    def end(self) -> None:
        """Draw it once more, as one that no longer changes; wait until that is seen.

        Only where somebody has looked of late, and not for long.
        """
        with self._lock:
            self._goes_on = False
            looked = self._clock() - self._asked < LOOKS_SECONDS
        if looked:
            self._seen_last.wait(LOOKS_SECONDS)

    def _stamp(self) -> list[tuple[int, int]]:
        found = []
        for path in (folder / name for folder in self._folders for name in FILES):
            try:
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size))
            except OSError:
                found.append((0, 0))
        return found


@contextmanager
def live(
    port: int | None, page: LivePage, tell: Callable[[str], None]
) -> Iterator[None]:
    """Serve a page until the context ends, at a port of `HOST` (0: free, None: none).

    ``tell`` is called with the address first; the page is asked in other threads.

    Raises:
        ConfigError: the port cannot be had.
    """
    if port is None:
        yield
        return

    def start() -> tuple[BaseServer, threading.Thread]:
        server = _Server(
            (HOST, port or 0), type("Handler", (_Handler,), {"page": page})
        )
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
        thread.start()
        return server, thread

    with _listening("live-port", port, start) as server:
        assert isinstance(server, _Server)
        tell(f"live: http://{HOST}:{server.server_address[1]}/")
        yield
        page.end()


class _Server(ThreadingMixIn, TCPServer):
    """Not of `http.server`, which asks for the name of the machine first."""

    allow_reuse_address = True
    daemon_threads = True

    @override
    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: who has asked is gone, or has asked in no good way."""


class _Handler(BaseHTTPRequestHandler):
    """Answers questions for the page, and for nothing else."""

    page: ClassVar[LivePage]
    server: _Server
    timeout = 10.0

    def do_GET(self) -> None:
        # Another site whose name leads here (DNS rebinding) is told nothing.
        port = self.server.server_address[1]
        names = [f"{HOST}:{port}", f"localhost:{port}"]
        if self.headers.get_all("Host", []) not in [[name] for name in names]:
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, f"expected Host {names[0]}")
        elif self.path != "/":
            self._answer(HTTPStatus.NOT_FOUND, "only / is served")
        else:
            self._answer_page()

    def _answer_page(self) -> None:
        try:
            content, tag = self.page.get()
        except ConfigError as error:
            text = f"nothing to show yet: {error}"
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, text, Refresh="2")
            return
        if self.headers.get("If-None-Match") == tag:
            self._answer(HTTPStatus.NOT_MODIFIED, ETag=tag)
        else:
            self._answer(HTTPStatus.OK, content, "text/html", ETag=tag)
        self.page.sent(tag)

    def _answer(
        self,
        status: HTTPStatus,
        content: bytes | str = b"",
        kind: str = "text/plain",
        **headers: str,
    ) -> None:
        body = content.encode() if isinstance(content, str) else content
        self.send_response(status)
        safe = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        for name, value in (safe | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    @override
    def version_string(self) -> str:
        return "fcl"

    @override
    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing: a terminal shows the run."""
