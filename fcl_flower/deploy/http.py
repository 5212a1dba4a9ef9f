"""One connection of a caller: HTTP/1.1 with a bound for every wait."""

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from dataclasses import dataclass
from email.utils import formatdate

from fcl_flower.core.errors import require_extra

with require_extra("deploy", "the server's reverse proxy"):
    import h11

Headers = Iterable[tuple[bytes, bytes]]

MOST_DESCRIPTORS = 2**16
RESERVED = 64
"""Descriptors that connections leave for the listener, the log and other programs."""


@dataclass(frozen=True)
class Bounds:
    """The bounds of the reverse proxy, where each connection begins as a guest."""

    guests: int = 1024
    guests_of_address: int = 256
    """Guests of one IP address, or of one /64 network of IPv6."""
    members: int = 4096
    """Each member may take a second connection, to the SuperLink."""
    members_of_key: int = 16
    """Members of a client, or of an address without keys; a SuperNode takes four."""
    head_bytes: int = 2**14
    body_bytes: int = 2**24
    """Flower cuts tensors into pieces of 5 MiB."""
    head_seconds: float = 10.0
    """Seconds from accepting a guest to the end of its first call's head."""
    idle_seconds: float = 60.0
    """Seconds without a byte, between the calls of a member or within one."""
    answer_seconds: float = 60.0
    """Seconds for the SuperLink to answer; clients give up after 30."""

    @classmethod
    def of_descriptors(cls, limit: int, *, keys: bool) -> "Bounds":
        """Choose bounds for a process that may open so many files, at least 128.

        Without keys all clients of one machine, or behind one router, look like one.
        """
        left = limit - RESERVED
        guests = min(cls.guests, left // 4)
        of_address = max(guests // 4, 1)
        return cls(
            guests=guests,
            guests_of_address=of_address,
            members=min(cls.members, (left - guests) // 2),
            members_of_key=cls.members_of_key if keys else of_address,
        )


def raise_descriptor_limit() -> int:
    """Raise the limit of open files of this process to the most allowed; return it."""
    unlimited = resource.RLIM_INFINITY
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == unlimited else min(hard, MOST_DESCRIPTORS)
    if soft == unlimited:
        return MOST_DESCRIPTORS
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(soft, most)


PIECE = 2**16
_LINGER_SECONDS = 1.0
"""Seconds in which a refused caller may finish its call, and read the answer."""


class RefusedError(Exception):
    """A call is answered by a status of our own, and perhaps a JSON document."""

    def __init__(self, status: int, reason: bytes = b"") -> None:
        """Keep the status and the document."""
        super().__init__(status)
        self.status, self.reason = status, reason


class Caller:
    """Reads calls and writes answers, one after the other.

    A caller that hangs up, speaks no HTTP or is too slow raises an `OSError`.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bounds: Bounds
    ) -> None:
        """Prepare to read the first call."""
        self._reader = reader
        self._writer = writer
        self._bounds = bounds
        self._http = h11.Connection(
            h11.SERVER, max_incomplete_event_size=bounds.head_bytes
        )

    async def call(self, seconds: float) -> h11.Request:
        """Read the head of the next call, which has to come within ``seconds``."""
        event = await self._event(seconds)
        if not isinstance(event, h11.Request):
            raise ConnectionError
        return event

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the body of the call.

        Raises:
            RefusedError: the body is longer than any of Flower's.
        """
        size = 0
        while isinstance(
            event := await self._event(self._bounds.idle_seconds), h11.Data
        ):
            size += len(event.data)
            if size > self._bounds.body_bytes:
                raise RefusedError(413)
            yield bytes(event.data)
        if not isinstance(event, h11.EndOfMessage):
            raise ConnectionError

    async def answer(
        self, status: int, headers: Headers, pieces: AsyncIterable[bytes]
    ) -> None:
        """Send an answer as its pieces come."""
        await self._send(h11.Response(status_code=status, headers=list(headers)))
        async for piece in pieces:
            await self._send(h11.Data(data=piece))
        await self._send(h11.EndOfMessage())

    async def refuse(self, status: int, reason: bytes = b"") -> None:
        """Send an answer of the proxy itself, with its time, and end the connection."""
        headers = [
            (b"content-length", b"%d" % len(reason)),
            (b"connection", b"close"),
            (b"date", formatdate(usegmt=True).encode()),
        ]
        if reason:
            headers.append((b"content-type", b"application/json"))
        await self._send(h11.Response(status_code=status, headers=headers))
        await self._send(h11.Data(data=reason))
        await self._send(h11.EndOfMessage())
        left = PIECE
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while left > 0 and (piece := await self._reader.read(left)):
                    left -= len(piece)

    def goes_on(self) -> bool:
        """Begin the next call where one may follow; return whether one may."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False

    async def _event(self, seconds: float) -> h11.Event:
        try:
            async with asyncio.timeout(seconds):
                while (event := self._http.next_event()) is h11.NEED_DATA:
                    self._http.receive_data(await self._reader.read(PIECE))
        except h11.RemoteProtocolError as error:
            if self._http.our_state is h11.IDLE:
                await self.refuse(error.error_status_hint)
            raise ConnectionError from error
        if isinstance(event, type):  # more than one call at once
            raise ConnectionError
        return event

    async def _send(self, event: h11.Event) -> None:
        # h11 sends no body in answer to HEAD.
        if data := self._http.send(event):
            self._writer.write(data)
        async with asyncio.timeout(self._bounds.idle_seconds):
            await self._writer.drain()
