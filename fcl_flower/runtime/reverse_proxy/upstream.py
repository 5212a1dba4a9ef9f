"""The SuperLink behind the reverse proxy, to which clients' calls are handed on."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager

import httpx

from fcl_flower.runtime.reverse_proxy.bounds import Bounds
from fcl_flower.runtime.reverse_proxy.caller import Headers

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
        """Return status, headers and body of the SuperLink's answer, within a context.

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
        """Return the status of the SuperLink's health check, a second old at most."""
        async with self._asking:
            asked, status = self._health
            if not status or time.monotonic() - asked > HEALTH_SECONDS:
                try:
                    status = (await self._client.get(f"{self._url}/health")).status_code
                except (httpx.TransportError, ExceptionGroup):
                    status = 502
                self._health = (time.monotonic(), status)
            return status
