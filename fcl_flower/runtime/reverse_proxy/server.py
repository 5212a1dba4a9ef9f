"""Lets calls of clients through to the SuperLink, and nothing else.

A SuperLink of Flower 1.41 has one address for everything: what clients call (Fleet,
where a registered key signs each call), what starts runs and registers keys (Control)
and what executes them (Runtime). The open version does not authenticate the last two,
and a program that starts a run executes code on every machine. So the SuperLink listens
to its own machine alone, and this reverse proxy hands on the Fleet calls of clients
whose signature it has verified. Whoever is unknown gets nothing opened or kept for it.

On asyncio and h11, which uvicorn is made of, too: uvicorn and hypercorn count a
connection when its handshake is over, and wait for a first header without end.
"""

import asyncio
import contextlib
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fcl_flower.core.errors import WireError, extra, refuse
from fcl_flower.federation.identity.node_auth import NodeKeys
from fcl_flower.runtime.reverse_proxy.bounds import Bounds
from fcl_flower.runtime.reverse_proxy.caller import (
    PIECE,
    Caller,
    GoneError,
    TooLargeError,
)
from fcl_flower.runtime.reverse_proxy.connections import Connections, network
from fcl_flower.runtime.reverse_proxy.upstream import UnansweredError, Upstream

with extra("deploy", "the server's reverse proxy"):
    import h11

REPORT_SECONDS = 60.0
"""Between two reports of calls without a known key: anybody can make any number."""

_FLEET = re.compile(r"/v1/fleet/[a-z-]+")
_ACTIVATE = "/v1/fleet/activate-node"
_ACTIVATION_FAILED = 2004  # flwr.supercore.error.ApiErrorCode
_CLOSE_SECONDS = 1.0
_BACKLOG = 1024


class ServerFiles(NamedTuple):
    """What a server with TLS needs: authority, own certificate and its key."""

    authority: Path
    certificate: Path
    key: Path


class Listener(NamedTuple):
    """Where callers arrive; those who call before the proxy runs wait for it.

    Attributes:
        socket: listens.
        tls: for the callers; None without TLS.
        superlink: for the SuperLink; None without TLS.
    """

    socket: socket.socket
    tls: ssl.SSLContext | None
    superlink: ssl.SSLContext | None


@contextlib.contextmanager
def listening(host: str, port: int, files: ServerFiles | None) -> Iterator[Listener]:
    """Listen while the context lasts.

    Args:
        host: address of this machine to listen at.
        port: to listen at.
        files: None without TLS.

    Raises:
        ConfigError: the address cannot be listened at, or the files do not go
            together.
    """
    tls, superlink = (None, None) if files is None else _contexts(files)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = error.strerror or error
        expected = f"an address of this machine that no program uses ({reason})"
        raise refuse("port", f"{host}:{port}", expected) from error
    with listener:
        listener.setblocking(False)
        yield Listener(listener, tls, superlink)


@contextlib.contextmanager
def run_proxy(
    listener: Listener,
    superlink: str,
    keys: NodeKeys | None,
    bounds: Bounds,
    report: Callable[[str], None],
) -> Iterator[threading.Thread]:
    """Let calls of clients through while the context lasts.

    Args:
        listener: from `listening`.
        superlink: where the SuperLink listens, HOST:PORT.
        keys: of the clients; None if any program may call as a client.
        bounds: what callers may hold.
        report: called from another thread with each line for the user.

    Yields:
        The thread that does it, which ends before the context by an error alone.
    """
    upstream = Upstream(superlink, listener.superlink, bounds)
    proxy = ReverseProxy(upstream, listener.tls, keys, bounds, report)
    loop = asyncio.new_event_loop()
    serving = loop.create_task(proxy.serve(listener.socket))

    def serve() -> None:
        with contextlib.closing(loop), contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(serving)

    thread = threading.Thread(target=serve, name="reverse-proxy")
    thread.start()
    try:
        yield thread
    finally:
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            loop.call_soon_threadsafe(serving.cancel)
        thread.join()


class ReverseProxy:
    """Accepts connections, and answers their calls or has the SuperLink do it."""

    def __init__(
        self,
        upstream: Upstream,
        tls: ssl.SSLContext | None,
        keys: NodeKeys | None,
        bounds: Bounds,
        report: Callable[[str], None],
    ) -> None:
        """Start without connections; see `run_proxy`."""
        self._upstream = upstream
        self._tls = tls
        self._keys = keys
        self._bounds = bounds
        self._report = report
        self._reported = -REPORT_SECONDS
        self._unreported = 0
        self._connections = Connections(bounds)

    async def serve(self, listener: socket.socket) -> None:
        """Accept connections until cancelled."""
        loop = asyncio.get_running_loop()
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                try:
                    connection, place = await loop.sock_accept(listener)
                except OSError:
                    # The caller has gone again, or there are no descriptors left.
                    self._connections.send_away_oldest_guest()
                    await asyncio.sleep(0.01)
                    continue
                address = network(place[0])
                task = loop.create_task(self._serve(connection, address))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                task.add_done_callback(self._connections.leave)
                # Not by the task alone, which may be cancelled before it begins.
                task.add_done_callback(partial(_close, connection))
                self._connections.admit(task, address)
                # While callers wait accepting does not: let those sent away be closed.
                await asyncio.sleep(0)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._upstream.close()

    async def _serve(self, connection: socket.socket, address: str) -> None:
        """Answer the calls of one connection until it ends."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        reader = asyncio.StreamReader(PIECE)
        protocol = asyncio.StreamReaderProtocol(reader)
        seconds = self._bounds.head_seconds
        with contextlib.suppress(GoneError, OSError, TimeoutError):
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=seconds if self._tls else None,
                ssl_shutdown_timeout=_CLOSE_SECONDS if self._tls else None,
            )
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            caller = Caller(reader, writer, self._bounds)
            seconds -= loop.time() - begun
            try:
                while True:
                    await self._answer(caller, await caller.call(seconds), address)
                    if not caller.goes_on():
                        break
                    seconds = self._bounds.idle_seconds
                writer.close()
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await writer.wait_closed()
            finally:
                transport.abort()

    async def _answer(self, caller: Caller, call: h11.Request, address: str) -> None:
        """Answer one call: as the SuperLink does, or by a status of our own."""
        # Latin-1, which has a sign for every byte; what follows ? stays outside.
        method, target = call.method.decode("latin-1"), call.target.decode("latin-1")
        path = target.partition("?")[0]
        if path == "/health" and method in {"GET", "HEAD"}:
            await caller.refuse(await self._upstream.health())
            return
        if method != "POST" or not _FLEET.fullmatch(path):
            await caller.refuse(404)
            return
        headers = dict(call.headers)
        try:
            key = self._keys.client(headers) if self._keys else address
        except WireError as error:
            self._note(address, error)
            await caller.refuse(*_unauthorized(path, str(error)))
            return
        if {b"content-length", b"transfer-encoding"} <= headers.keys():
            await caller.refuse(400)  # two lengths: whom should one believe?
            return
        if int(headers.get(b"content-length", 0)) > self._bounds.body_bytes:
            await caller.refuse(413)
            return
        task = asyncio.current_task()
        assert task is not None
        if not self._connections.promote(task, key):
            await caller.refuse(503)  # clients try again
            return
        try:
            async with self._upstream.answer(
                method, path, call.headers, caller.body()
            ) as (status, answered, pieces):
                await caller.answer(status, answered, pieces)
        except TooLargeError:
            await caller.refuse(413)
        except UnansweredError as error:
            await caller.refuse(error.status)

    def _note(self, address: str, error: WireError) -> None:
        """Report a call that is not let in, now and then."""
        self._unreported += 1
        if time.monotonic() - self._reported > REPORT_SECONDS:
            self._report(f"not let in: {error}, from {address} ({self._unreported})")
            self._reported, self._unreported = time.monotonic(), 0


def _close(connection: socket.socket, task: asyncio.Task[None]) -> None:
    connection.close()


def _contexts(files: ServerFiles) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS of a server with these files, and of one who calls it."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key)
        return context, ssl.create_default_context(cafile=files.authority)
    except OSError as error:
        expected = (
            f"certificates of an authority and of a server with its key ({error})"
        )
        raise refuse("certs", ", ".join(map(str, files)), expected) from error


def _unauthorized(path: str, reason: str) -> tuple[int, bytes]:
    """Return what a client gets that is not let in: what Flower would answer it.

    A SuperNode that joins is told why; of later ones Flower reads the status alone.
    """
    if path != _ACTIVATE:
        return 401, b""
    detail = {"code": _ACTIVATION_FAILED, "detail": "Failed to activate SuperNode."}
    return 412, json.dumps({**detail, "extra": reason}).encode()
