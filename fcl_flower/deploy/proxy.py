"""A reverse proxy that lets calls of clients through to the SuperLink, and no others.

A SuperLink of Flower 1.41 has one address for three APIs. Clients call Fleet, where a
registered key signs each call. Control starts runs and registers keys, and Runtime
executes runs. The open version authenticates neither Control nor Runtime, and a program
that starts a run executes code on every machine. So the SuperLink listens to its own
machine alone. This proxy hands on the Fleet calls of clients whose signature it has
verified. It opens and keeps nothing for an unknown caller.

The proxy is built on asyncio and h11, as uvicorn is. Uvicorn and hypercorn themselves
count a connection after its handshake, and wait for a first header without end.
"""

import asyncio
import contextlib
import ipaddress
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

import httpx

from fcl_flower.core.errors import WireError, config_error, require_extra, unforeseen
from fcl_flower.deploy import commands
from fcl_flower.deploy.certificates import Certificates
from fcl_flower.deploy.http import PIECE, Bounds, Caller, Headers, RefusedError
from fcl_flower.deploy.node_auth import NodeKeys

with require_extra("deploy", "the server's reverse proxy"):
    import h11

REPORT_SECONDS = 60.0
"""Seconds between two reports of calls without a known key."""
HEALTH_SECONDS = 1.0
"""Seconds for which an answer to the health check holds, as anybody may ask."""
_BACKLOG = 1024
_CLOSE_SECONDS = 1.0
_CONNECT_SECONDS = 5.0
# The SuperLink closes an idle connection after 5 seconds, when nobody must use it.
_KEEP_SECONDS = 2.0
_KEEP_CONNECTIONS = 20

# These headers concern one connection, so that the proxy keeps them back. An upgrade is
# kept back, too: the SuperLink takes WebSockets at no path of clients.
_HOP_HEADERS = {
    *(b"connection", b"host", b"keep-alive", b"te", b"trailer"),
    *(b"transfer-encoding", b"upgrade"),
}

Task: TypeAlias = asyncio.Task[None]


class Connections:
    """The open connections, each by the task that serves it, in order of arrival."""

    def __init__(self, bounds: Bounds) -> None:
        """Start without connections."""
        self._bounds = bounds
        self._guests: dict[Task, str] = {}  # with their addresses
        self._members: dict[Task, str] = {}  # with their keys

    def __len__(self) -> int:
        """Count the open connections."""
        return len(self._guests) + len(self._members)

    def admit(self, guest: Task, address: str) -> None:
        """Take in a guest from a `network`, in the place of the oldest if need be."""
        neighbours = [one for one, other in self._guests.items() if other == address]
        if len(neighbours) >= self._bounds.guests_of_address:
            self._send_away(neighbours[0])
        elif len(self._guests) >= self._bounds.guests:
            self.send_away_oldest_guest()
        self._guests[guest] = address

    def promote(self, task: Task, key: str) -> bool:
        """Make a connection that of a client; return False if there are too many."""
        if task in self._members:
            return True
        of_key = [*self._members.values()].count(key)
        if (
            len(self._members) >= self._bounds.members
            or of_key >= self._bounds.members_of_key
        ):
            return False
        self._guests.pop(task, None)
        self._members[task] = key
        return True

    def leave(self, task: Task) -> None:
        """Forget a connection that has ended."""
        self._guests.pop(task, None)
        self._members.pop(task, None)

    def send_away_oldest_guest(self) -> None:
        """Make room, also where the machine has fewer descriptors than expected."""
        if self._guests:
            self._send_away(next(iter(self._guests)))

    def _send_away(self, guest: Task) -> None:
        del self._guests[guest]
        guest.cancel()


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


class Listener(NamedTuple):
    """The socket at which callers arrive; early callers wait for the proxy there."""

    socket: socket.socket
    tls: ssl.SSLContext | None
    """TLS towards callers; None without TLS."""
    superlink: ssl.SSLContext | None
    """TLS towards the SuperLink; None without TLS."""


@contextlib.contextmanager
def listening(host: str, port: int, files: Certificates | None) -> Iterator[Listener]:
    """Listen at an address of this machine while the context lasts.

    Raises:
        ConfigError: the address is taken, or the files do not fit together.
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


def _contexts(files: Certificates) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.server, files.server_key)
        return context, ssl.create_default_context(cafile=files.authority)
    except OSError as error:
        given = f"{files.authority}, {files.server}, {files.server_key}"
        expected = (
            f"certificates of an authority and of a server with its key ({error})"
        )
        raise config_error("certs", given, expected) from error


@contextlib.contextmanager
def run_proxy(
    listener: Listener,
    superlink: str,
    keys: NodeKeys | None,
    bounds: Bounds,
    report: Callable[[str], None],
) -> Iterator[threading.Thread]:
    """Let calls of clients through while the context lasts; see `ReverseProxy`.

    Yields:
        The thread of the proxy, which ends before the context only by an error.
    """
    loop = asyncio.new_event_loop()
    proxy = ReverseProxy(listener, superlink, keys, bounds, report)
    serving = loop.create_task(proxy.serve())

    def serve() -> None:
        with contextlib.closing(loop), contextlib.suppress(asyncio.CancelledError):
            try:
                loop.run_until_complete(serving)
            except Exception as error:
                report(f"the reverse proxy has an error: {unforeseen(error)}")
                raise

    thread = threading.Thread(target=serve, name="reverse-proxy")
    thread.start()
    try:
        yield thread
    finally:
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            loop.call_soon_threadsafe(serving.cancel)
        thread.join()


class Proxy:
    """The reverse proxy as a part of a watched server."""

    name = "the reverse proxy"

    def __init__(
        self, run: Callable[[], contextlib.AbstractContextManager[threading.Thread]]
    ) -> None:
        """Start nothing yet; ``run`` calls `run_proxy`."""
        self._run = run
        self._stack = contextlib.ExitStack()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Run it in a thread."""
        self._thread = self._stack.enter_context(self._run())

    def ended(self) -> str:
        """Say whether the thread has ended; it shows its error itself."""
        alive = self._thread is None or self._thread.is_alive()
        return "" if alive else "by the error above"

    def stop(self) -> None:
        """End the proxy, and cut off its callers."""
        self._stack.close()
        self._thread = None


class ReverseProxy:
    """Accepts connections, and answers their calls or hands them to the SuperLink."""

    def __init__(
        self,
        listener: Listener,
        superlink: str,
        keys: NodeKeys | None,
        bounds: Bounds,
        report: Callable[[str], None],
    ) -> None:
        """Prepare to stand before the SuperLink at HOST:PORT; connect nothing yet.

        Without keys any program may call as a client. The proxy's thread reports the
        lines for the user.
        """
        self._listener = listener
        self._keys = keys
        self._bounds = bounds
        self._report = report
        self._reported = -REPORT_SECONDS
        self._unreported = 0
        self._connections = Connections(bounds)
        scheme = "http" if listener.superlink is None else "https"
        self._superlink = f"{scheme}://{superlink}"
        self._client = httpx.AsyncClient(
            verify=listener.superlink or False,
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

    async def serve(self) -> None:
        """Accept connections until cancelled."""
        loop = asyncio.get_running_loop()
        tasks: set[Task] = set()
        try:
            while True:
                try:
                    connection, place = await loop.sock_accept(self._listener.socket)
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
                # A task that is cancelled before it begins closes nothing itself.
                task.add_done_callback(partial(_close, connection))
                self._connections.admit(task, address)
                # Accepting does not pause while callers wait: let dismissed ones close.
                await asyncio.sleep(0)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._client.aclose()

    async def _serve(self, connection: socket.socket, address: str) -> None:
        """Answer the calls of one connection until it ends."""
        loop, tls = asyncio.get_running_loop(), self._listener.tls
        begun = loop.time()
        reader = asyncio.StreamReader(PIECE)
        protocol = asyncio.StreamReaderProtocol(reader)
        seconds = self._bounds.head_seconds
        with contextlib.suppress(OSError, httpx.TransportError):
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=tls,
                ssl_handshake_timeout=seconds if tls else None,
                ssl_shutdown_timeout=_CLOSE_SECONDS if tls else None,
            )
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            caller = Caller(reader, writer, self._bounds)
            seconds -= loop.time() - begun
            try:
                while True:
                    call = await caller.call(seconds)
                    try:
                        await self._answer(caller, call, address)
                    except RefusedError as refused:
                        await caller.refuse(refused.status, refused.reason)
                    if not caller.goes_on():
                        break
                    seconds = self._bounds.idle_seconds
                writer.close()
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await writer.wait_closed()
            finally:
                transport.abort()

    async def _answer(self, caller: Caller, call: h11.Request, address: str) -> None:
        """Answer one call as the SuperLink does.

        Raises:
            RefusedError: the proxy hands the call on to nobody, or gets no answer.
        """
        # Latin-1 has a sign for every byte. The query, behind ?, is dropped.
        method, target = call.method.decode("latin-1"), call.target.decode("latin-1")
        path = target.partition("?")[0]
        if path == "/health" and method in {"GET", "HEAD"}:
            raise RefusedError(await self._ask_health())
        if method != "POST" or not commands.FLEET.fullmatch(path):
            raise RefusedError(404)
        headers = dict(call.headers)
        key = self._authenticate(path, headers, address)
        if {b"content-length", b"transfer-encoding"} <= headers.keys():
            raise RefusedError(400)  # two lengths contradict each other
        if int(headers.get(b"content-length", 0)) > self._bounds.body_bytes:
            raise RefusedError(413)
        task = asyncio.current_task()
        assert task is not None
        if not self._connections.promote(task, key):
            raise RefusedError(503)  # clients try again
        # The client's build_request would add headers of its own.
        request = httpx.Request(
            method,
            self._superlink + path,
            headers=_end_to_end(call.headers),
            content=caller.body(),
        )
        try:
            response = await self._client.send(request, stream=True)
        except httpx.ReadTimeout as error:
            raise RefusedError(504) from error  # the SuperLink may have handled it
        # Anyio raises a group where no descriptor is left for a connection.
        except (httpx.TransportError, ExceptionGroup) as error:
            raise RefusedError(502) from error
        async with contextlib.aclosing(response):
            answered = _end_to_end(response.headers.raw)
            await caller.answer(response.status_code, answered, response.aiter_raw())

    async def _ask_health(self) -> int:
        """Ask for the status of the SuperLink's health check, once a second."""
        async with self._asking:
            asked, status = self._health
            if not status or time.monotonic() - asked > HEALTH_SECONDS:
                try:
                    found = await self._client.get(f"{self._superlink}/health")
                    status = found.status_code
                except (httpx.TransportError, ExceptionGroup):
                    status = 502
                self._health = (time.monotonic(), status)
            return status

    def _authenticate(
        self, path: str, headers: Mapping[bytes, bytes], address: str
    ) -> str:
        """Name the caller: a client, or without keys an address.

        A SuperNode that joins gets the reason of a refusal in Flower's own form. Of the
        answer to a later call Flower reads the status alone.
        """
        try:
            return self._keys.client(headers) if self._keys else address
        except WireError as error:
            self._unreported += 1
            if time.monotonic() - self._reported > REPORT_SECONDS:
                times = self._unreported
                self._report(f"not let in: {error}, from {address} ({times})")
                self._reported, self._unreported = time.monotonic(), 0
            if path != commands.ACTIVATE:
                raise RefusedError(401) from error
            detail = {
                "code": commands.ACTIVATION_FAILED,
                "detail": commands.ACTIVATION_REFUSED,
            }
            reason = json.dumps({**detail, "extra": str(error)})
            raise RefusedError(412, reason.encode()) from error


def _end_to_end(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [pair for pair in headers if pair[0].lower() not in _HOP_HEADERS]


def _close(connection: socket.socket, task: Task) -> None:
    connection.close()
