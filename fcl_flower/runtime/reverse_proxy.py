"""The only door of a server that strangers reach: clients' calls pass, no others.

A SuperLink of Flower 1.41 has one address for everything: what clients call (Fleet,
where a registered key signs each call), what starts runs and registers keys (Control)
and what executes them (Runtime). The open version asks nobody who he is at the last
two, and whoever starts a run executes code on every machine. So the SuperLink listens
to its own machine alone, and this gate in front of it lets the Fleet calls through.
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

from fcl_flower.core.errors import ConfigError, extra

with extra("deploy", "the server's reverse proxy"):
    import httpx
    import uvicorn

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]

MAX_BYTES = 2**26
"""Of one call; Flower cuts tensors into pieces of 5 MiB."""

_FLEET = re.compile(r"/v1/fleet/[a-z-]+")
# Of one connection, not of what is said over it.
_OWN = {b"connection", b"host", b"keep-alive", b"transfer-encoding"}


class ServerFiles(NamedTuple):
    """What a server with TLS needs: authority, own certificate and its key."""

    authority: Path
    certificate: Path
    key: Path


class Gate:
    """An ASGI application that hands Fleet calls to a SuperLink as they stream in."""

    def __init__(self, superlink: str, client: httpx.AsyncClient) -> None:
        """Stand in front of a SuperLink.

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
        if not _passes(scope["method"], scope["path"]):
            await _refuse(send, 404)
            return
        # Not the client's build_request, which would add headers of its own.
        request = httpx.Request(
            scope["method"],
            self._superlink + scope["path"],
            headers=[pair for pair in scope["headers"] if pair[0] not in _OWN],
            content=_body(receive),
        )
        try:
            response = await self._client.send(request, stream=True)
        except _TooLongError:
            await _refuse(send, 413)
            return
        except _GoneError:
            return
        except httpx.TransportError:
            await _refuse(send, 502)  # clients try again
            return
        try:
            headers = [p for p in response.headers.raw if p[0].lower() not in _OWN]
            await _begin(send, response.status_code, headers)
            async for piece in response.aiter_raw():
                await _go_on(send, piece, more=True)
            await _go_on(send, b"", more=False)
        finally:
            await response.aclose()


@contextlib.contextmanager
def run_proxy(
    host: str, port: int, superlink: str, files: ServerFiles | None
) -> Iterator[None]:
    """Let clients in at ``host:port`` while the context lasts.

    Args:
        host: address of this machine to listen at.
        port: to listen at.
        superlink: where the SuperLink listens, HOST:PORT.
        files: None without TLS.

    Raises:
        ConfigError: the address cannot be listened at, or the files do not go
            together.
    """
    client, server = _ends(superlink, files)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            f"port: {host}:{port} is refused: expected an address of this machine "
            f"that nobody listens at ({error.strerror or error})"
        ) from error

    async def keep() -> None:
        async with client:
            await server.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(keep()), name="gate")
    thread.start()
    try:
        yield
    finally:
        while thread.is_alive() and not server.started:
            time.sleep(0.01)  # asked before, it would not hear
        server.should_exit = server.force_exit = True
        thread.join()
        listener.close()


def _ends(
    superlink: str, files: ServerFiles | None
) -> tuple[httpx.AsyncClient, uvicorn.Server]:
    """Return what asks the SuperLink, and what clients ask."""
    scheme = "http" if files is None else "https"
    try:
        client = httpx.AsyncClient(
            verify=ssl.create_default_context(cafile=files and files.authority),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,  # no proxy between two programs of one machine
        )
        config = uvicorn.Config(
            Gate(f"{scheme}://{superlink}", client),
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
        raise ConfigError(
            f"certs: {', '.join(map(str, files or ()))} are refused: expected the "
            f"certificate of an authority and that of a server with its key ({error})"
        ) from error
    return client, uvicorn.Server(config)


class _TooLongError(Exception):
    """The call has more bytes than any that Flower makes."""


class _GoneError(Exception):
    """Who called hung up."""


def _passes(method: str, path: str) -> bool:
    if path == "/health":
        return method in {"GET", "HEAD"}
    return method == "POST" and _FLEET.fullmatch(path) is not None


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    size, more = 0, True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise _GoneError
        piece: bytes = event.get("body", b"")
        size += len(piece)
        if size > MAX_BYTES:
            raise _TooLongError
        yield piece
        more = event.get("more_body", False)


async def _refuse(send: Send, status: int) -> None:
    await _begin(send, status, [(b"content-length", b"0")])
    await _go_on(send, b"", more=False)


async def _begin(send: Send, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _go_on(send: Send, piece: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": piece, "more_body": more})
