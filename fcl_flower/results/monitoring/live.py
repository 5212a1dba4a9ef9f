"""The page of a run while it goes on, served on this machine alone.

Nothing is drawn unless somebody looks, and then from the files of the run's folder:
what runs neither knows of it nor waits for it.
"""

import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, ClassVar, Final

from typing_extensions import override

from fcl_flower.core.errors import ConfigError, refuse
from fcl_flower.results.run_folder import BEGUN

HOST: Final = "127.0.0.1"
"""Whoever is let in here is on the machine already."""
SHARE: Final = 0.05
"""Of the time may go into drawing, which takes it from a run in this process."""
LOOKS_SECONDS: Final = 6.0
"""Since its last question, for which a page counts as open; it asks every 2 seconds."""
FILES: Final = ("summary.json", BEGUN, "progress.json", "rounds.jsonl", "accuracy.csv")
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

        Args:
            draw: returns the page; given whether it goes on changing. It raises a
                ConfigError while there is nothing to show.
            folders: of the runs that it shows.
            clock: returns seconds since some moment.
        """
        self._draw, self._folders, self._clock = draw, folders, clock
        self._lock = threading.Lock()
        self._page, self._files = b"", object()
        self._next = self._asked = -float("inf")
        self._goes_on, self._last = True, ""
        self._seen_last = threading.Event()

    def get(self) -> tuple[bytes, str]:
        """Return the page, and a tag that is another one when the page is.

        Raises:
            ConfigError: there is nothing to show.
        """
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
        """Return what tells whether a file has changed: time and size of each."""
        found = []
        for path in (folder / name for folder in self._folders for name in FILES):
            try:
                status = path.stat()
            except OSError:
                found.append((0, 0))
            else:
                found.append((status.st_mtime_ns, status.st_size))
        return found


@contextmanager
def live(
    port: int | None, page: LivePage, tell: Callable[[str], None]
) -> Iterator[None]:
    """Serve a page until the context ends.

    Args:
        port: of `HOST`, 0 for a free one; None to serve nothing.
        page: is asked in other threads.
        tell: called with the address, before anything else happens.

    Raises:
        ConfigError: the port cannot be had.
    """
    if port is None:
        yield
        return
    try:
        server = _Server((HOST, port), type("Handler", (_Handler,), {"page": page}))
    except OSError as error:
        expected = f"a free port of {HOST} ({error.strerror})"
        raise refuse("live-port", port, expected) from error
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        tell(f"live: http://{HOST}:{server.server_address[1]}/")
        yield
        page.end()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


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
