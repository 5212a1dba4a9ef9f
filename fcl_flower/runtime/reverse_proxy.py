"""The only part of a server that is reached from outside: it passes clients' calls on.

A SuperLink of Flower 1.41 has one address for everything: what clients call (Fleet,
where a registered key signs each call), what starts runs and registers keys (Control)
and what executes them (Runtime). The open version does not authenticate the last two,
and a program that starts a run executes code on every machine. So the SuperLink listens
to its own machine alone, and this reverse proxy passes on the Fleet calls, no others.
"""

import asyncio
import contextlib
import re
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fcl_flower.core.errors import extra, refuse

with extra("deploy", "the server's reverse proxy"):
    import httpx
    import uvicorn

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]

MAX_BYTES = 2**26
"""Of one call; Flower cuts tensors into pieces of 5 MiB."""

_FLEET = re.compile(r"/v1/fleet/[a-z-]+")
# Headers of one connection, which are not passed on.
_HOP_HEADERS = {b"connection", b"host", b"keep-alive", b"transfer-encoding"}


class ServerFiles(NamedTuple):
    """What a server with TLS needs: authority, own certificate and its key."""

    authority: Path
    certificate: Path
    key: Path


class ReverseProxy:
    """An ASGI application that hands Fleet calls to a SuperLink as they stream in."""

    def __init__(self, superlink: str, client: httpx.AsyncClient) -> None:
        """Pass calls on to a SuperLink.

        Args:
            superlink: its address with scheme, without a path.
            client: connects to it.
        """
        self._superlink = superlink
        self._client = client

    async def __call__(
        self, scope: Mapping[str, Any], receive: Receive, send: Send
    ) -> None:
        """Answer one call: as the SuperLink does, or with 404, 413 or 502."""
        if not _is_fleet_call(scope["method"], scope["path"]):
            await _reject(send, 404)
            return
        # Not the client's build_request, which would add headers of its own.
        request = httpx.Request(
            scope["method"],
            self._superlink + scope["path"],
            headers=[pair for pair in scope["headers"] if pair[0] not in _HOP_HEADERS],
            content=_body(receive),
        )
        try:
            response = await self._client.send(request, stream=True)
        except _TooLargeError:
            await _reject(send, 413)
            return
        except _CallerGoneError:
            return
        except httpx.TransportError:
            await _reject(send, 502)  # clients try again
            return
        try:
            headers = [
                p for p in response.headers.raw if p[0].lower() not in _HOP_HEADERS
            ]
            await _send_start(send, response.status_code, headers)
            async for piece in response.aiter_raw():
                await _send_body(send, piece, more=True)
            await _send_body(send, b"", more=False)
        finally:
            await response.aclose()


@contextlib.contextmanager
def run_proxy(
    host: str, port: int, superlink: str, files: ServerFiles | None
) -> Iterator[None]:
    """Accept calls of clients at ``host:port`` while the context lasts.

    Args:
        host: address of this machine to listen at.
        port: to listen at.
        superlink: where the SuperLink listens, HOST:PORT.
        files: None without TLS.

    Raises:
        ConfigError: the address cannot be listened at, or the files do not go
            together.
    """
    client, server = _client_and_server(superlink, files)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        reason = error.strerror or error
        expected = f"an address of this machine that no program uses ({reason})"
        raise refuse("port", f"{host}:{port}", expected) from error

    async def serve() -> None:
        async with client:
            await server.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="reverse-proxy")
    thread.start()
    try:
        yield
    finally:
        while thread.is_alive() and not server.started:
            time.sleep(0.01)  # a request to exit before the start is lost
        server.should_exit = server.force_exit = True
        thread.join()
        listener.close()


def _client_and_server(
    superlink: str, files: ServerFiles | None
) -> tuple[httpx.AsyncClient, uvicorn.Server]:
    """Return the client of the SuperLink and the server of the clients."""
    scheme = "http" if files is None else "https"
    try:
        client = httpx.AsyncClient(
            verify=ssl.create_default_context(cafile=files and files.authority),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,  # no proxy between two programs of one machine
        )
        config = uvicorn.Config(
            ReverseProxy(f"{scheme}://{superlink}", client),
            lifespan="off",
            ws="none",
            log_level="warning",
            server_header=False,
            date_header=False,
            ssl_certfile=files and files.certificate,
            ssl_keyfile=files and files.key,
        )
        config.load()
    except OSError as error:
        expected = (
            f"certificates of an authority and of a server with its key ({error})"
        )
        raise refuse("certs", ", ".join(map(str, files or ())), expected) from error
    return client, uvicorn.Server(config)


class _TooLargeError(Exception):
    """The call has more bytes than any of Flower's."""


class _CallerGoneError(Exception):
    """The caller has hung up."""


def _is_fleet_call(method: str, path: str) -> bool:
    if path == "/health":
        return method in {"GET", "HEAD"}
    return method == "POST" and _FLEET.fullmatch(path) is not None


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    size, more = 0, True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise _CallerGoneError
        piece: bytes = event.get("body", b"")
        size += len(piece)
        if size > MAX_BYTES:
            raise _TooLargeError
        yield piece
        more = event.get("more_body", False)


async def _reject(send: Send, status: int) -> None:
    await _send_start(send, status, [(b"content-length", b"0")])
    await _send_body(send, b"", more=False)


async def _send_start(
    send: Send, status: int, headers: list[tuple[bytes, bytes]]
) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _send_body(send: Send, piece: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": piece, "more_body": more})
