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
import ipaddress
import json
import socket
import ssl
import threading
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx

from fcl_flower.core.errors import WireError, config_error, require_extra
from fcl_flower.flower.commands import (
    ACTIVATE,
    ACTIVATION_FAILED,
    ACTIVATION_REFUSED,
    FLEET,
)
from fcl_flower.flower.node_auth import NodeKeys
from fcl_flower.runtime.http import (
    PIECE,
    Bounds,
    Caller,
    GoneError,
    Headers,
    TooLargeError,
)

with require_extra("deploy", "the server's reverse proxy"):
    import h11

REPORT_SECONDS = 60.0
"""Between two reports of calls without a known key: anybody can make any number."""

_CLOSE_SECONDS = 1.0
_BACKLOG = 1024
HEALTH_SECONDS = 1.0
"""For which an answer to the health check is good: anybody may ask, at any rate."""
_CONNECT_SECONDS = 5.0
# The SuperLink closes an idle connection after 5 seconds: never use it at that moment.
_KEEP_SECONDS = 2.0
_KEEP_CONNECTIONS = 20

# Of one connection, or of the next server, and so not handed on. An upgrade is never
# asked for: the SuperLink takes WebSockets in other places than those of clients.
_HOP_HEADERS = {
    *(b"connection", b"host", b"keep-alive", b"te", b"trailer"),
    *(b"transfer-encoding", b"upgrade"),
}


Task = asyncio.Task[None]


class UnansweredError(Exception):
    """The SuperLink has no answer; ``status`` says so in HTTP."""

    def __init__(self, status: int) -> None:
        """Keep the status."""
        super().__init__(status)
        self.status = status


class Upstream:
    """Hands calls to the SuperLink, as their bodies come in."""

    def __init__(
        self, superlink: str, tls: ssl.SSLContext | None, bounds: Bounds
    ) -> None:
        """Prepare connections; none is opened before the first call.

        Args:
            superlink: where it listens, HOST:PORT.
            tls: knows its authority; None without TLS.
            bounds: of time, and of the number of calls at once.
        """
        self._url = f"{'http' if tls is None else 'https'}://{superlink}"
        self._client = httpx.AsyncClient(
            verify=tls or False,
            limits=httpx.Limits(
                max_connections=bounds.members + 1,  # and one for its health
                max_keepalive_connections=_KEEP_CONNECTIONS,
                keepalive_expiry=_KEEP_SECONDS,
            ),
            timeout=httpx.Timeout(bounds.answer_seconds, connect=_CONNECT_SECONDS),
            trust_env=False,  # no proxy between two programs of one machine
        )
        self._health = (0.0, 0)
        self._asking = asyncio.Lock()

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    @asynccontextmanager
    async def answer(
        self, method: str, path: str, headers: Headers, body: AsyncIterable[bytes]
    ) -> AsyncIterator[tuple[int, Headers, AsyncIterable[bytes]]]:
        """Yield status, headers and body of the SuperLink's answer.

        Raises:
            UnansweredError: there is none.
        """
        # Not the client's build_request, which would add headers of its own.
        request = httpx.Request(
            method,
            self._url + path,
            headers=[pair for pair in headers if pair[0] not in _HOP_HEADERS],
            content=body,
        )
        try:
            response = await self._client.send(request, stream=True)
        except httpx.ReadTimeout as error:
            raise UnansweredError(504) from error  # it may have been handled
        # The group is anyio's, where no descriptor is left for a connection.
        except (httpx.TransportError, ExceptionGroup) as error:
            raise UnansweredError(502) from error
        try:
            found = [
                pair
                for pair in response.headers.raw
                if pair[0].lower() not in _HOP_HEADERS
            ]
            yield response.status_code, found, response.aiter_raw()
        finally:
            await response.aclose()

    async def health(self) -> int:
        """Ask for the status of the SuperLink's health check, once a second."""
        async with self._asking:
            asked, status = self._health
            if not status or time.monotonic() - asked > HEALTH_SECONDS:
                try:
                    status = (await self._client.get(f"{self._url}/health")).status_code
                except (httpx.TransportError, ExceptionGroup):
                    status = 502
                self._health = (time.monotonic(), status)
            return status


class Connections:
    """The open connections, each by the task that serves it."""

    def __init__(self, bounds: Bounds) -> None:
        """Start without any."""
        self._bounds = bounds
        # Both in the order of arrival, as dictionaries are.
        self._guests: dict[Task, str] = {}
        self._at_address: defaultdict[str, dict[Task, None]] = defaultdict(dict)
        self._members: dict[Task, str] = {}
        self._of_key: Counter[str] = Counter()

    def __len__(self) -> int:
        """Count the open connections."""
        return len(self._guests) + len(self._members)

    def admit(self, guest: Task, address: str) -> None:
        """Take in a new guest, in the place of the oldest one if there is no other.

        Args:
            guest: serves the connection; cancelled if it must go.
            address: the `network` that it comes from.
        """
        neighbours = self._at_address[address]
        if len(neighbours) >= self._bounds.guests_of_address:
            self._send_away(next(iter(neighbours)))
        elif len(self._guests) >= self._bounds.guests:
            self._send_away(next(iter(self._guests)))
        self._guests[guest] = address
        self._at_address[address][guest] = None

    def promote(self, task: Task, key: str) -> bool:
        """Make a connection that of a client; return False if there are too many.

        Args:
            task: serves the connection.
            key: of the client whose call came on it.
        """
        if task in self._members:
            return True
        if (
            len(self._members) >= self._bounds.members
            or self._of_key[key] >= self._bounds.members_of_key
        ):
            return False
        self._forget_guest(task)
        self._members[task] = key
        self._of_key[key] += 1
        return True

    def leave(self, task: Task) -> None:
        """Forget a connection that has ended."""
        self._forget_guest(task)
        if (key := self._members.pop(task, None)) is not None:
            self._of_key[key] -= 1
            if not self._of_key[key]:
                del self._of_key[key]

    def send_away_oldest_guest(self) -> None:
        """Make room, where the machine has less of it than was thought."""
        if self._guests:
            self._send_away(next(iter(self._guests)))

    def _send_away(self, guest: Task) -> None:
        self._forget_guest(guest)
        guest.cancel()

    def _forget_guest(self, task: Task) -> None:
        if (address := self._guests.pop(task, None)) is not None:
            del self._at_address[address][task]
            if not self._at_address[address]:
                del self._at_address[address]


def network(address: str) -> str:
    """Name one machine by an IPv4 address, or by the /64 of an IPv6 one.

    A machine with IPv6 may take any of its network's addresses for each connection.
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if found.version == 4:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found), 64), strict=False))


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
        raise config_error("port", f"{host}:{port}", expected) from error
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
        if method != "POST" or not FLEET.fullmatch(path):
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
    """Make the TLS of a server with these files, and of one who calls it."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key)
        return context, ssl.create_default_context(cafile=files.authority)
    except OSError as error:
        expected = (
            f"certificates of an authority and of a server with its key ({error})"
        )
        raise config_error("certs", ", ".join(map(str, files)), expected) from error


def _unauthorized(path: str, reason: str) -> tuple[int, bytes]:
    """Answer a client that is not let in as Flower would.

    A SuperNode that joins is told why; of later ones Flower reads the status alone.
    """
    if path != ACTIVATE:
        return 401, b""
    detail = {"code": ACTIVATION_FAILED, "detail": ACTIVATION_REFUSED}
    return 412, json.dumps({**detail, "extra": reason}).encode()
