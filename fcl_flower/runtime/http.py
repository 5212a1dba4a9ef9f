"""One connection of a caller: HTTP/1.1 in which every wait has an end."""

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from dataclasses import dataclass

from fcl_flower.core.errors import require_extra

with require_extra("deploy", "the server's reverse proxy"):
    import h11

Headers = Iterable[tuple[bytes, bytes]]

MOST_DESCRIPTORS = 2**16
RESERVED = 64
"""Descriptors for all but connections: listener, log, registering keys, stopping."""


@dataclass(frozen=True)
class Bounds:
    """What the reverse proxy allows. Connections are guests until a call is let in.

    Attributes:
        guests: connections of which no call was let in yet.
        guests_of_address: of these, of one IP address (IPv6: of one /64 network).
        members: all other connections; each may take a second one to the SuperLink.
        members_of_key: of these, of one client's key; without keys of one address. A
            SuperNode takes about four.
        head_bytes: of a call without its body.
        body_bytes: of a call; Flower cuts tensors into pieces of 5 MiB.
        head_seconds: from accepting a guest to the end of its first call's head,
            handshake included.
        idle_seconds: without a byte, between the calls of a member or within one.
        answer_seconds: for the SuperLink to answer; clients give up after 30.
    """

    guests: int = 1024
    guests_of_address: int = 256
    members: int = 4096
    members_of_key: int = 16
    head_bytes: int = 2**14
    body_bytes: int = 2**24
    head_seconds: float = 10.0
    idle_seconds: float = 60.0
    answer_seconds: float = 60.0

    @classmethod
    def of_descriptors(cls, limit: int, *, keys: bool) -> "Bounds":
        """Choose bounds that leave enough of a process's descriptors.

        Args:
            limit: how many it may open, at least 128.
            keys: whether clients have any; without, all those of one machine or behind
                one router look like one.
        """
        left = limit - RESERVED
        guests = min(cls.guests, left // 4)
        members = min(cls.members, (left - guests) // 2)
        of_address = max(guests // 4, 1)
        return cls(
            guests=guests,
            guests_of_address=of_address,
            members=members,
            members_of_key=cls.members_of_key if keys else of_address,
        )


def raise_descriptor_limit() -> int:
    """Let this process, and what it starts, open as many files as it may.

    Returns:
        How many that is now.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    most = MOST_DESCRIPTORS if hard == unlimited else min(hard, MOST_DESCRIPTORS)
    if soft != unlimited and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return MOST_DESCRIPTORS if soft == unlimited else soft


PIECE = 2**16
_LINGER_SECONDS = 1.0
"""How long a refused caller may finish what it says, so that it reads the answer."""


class TooLargeError(Exception):
    """A call has a longer body than any of Flower's."""


class GoneError(Exception):
    """The caller has hung up, speaks no HTTP, or lets us wait for too long."""


class Caller:
    """Reads calls and writes answers, one after the other."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bounds: Bounds
    ) -> None:
        """Speak to the one at the other end."""
        self._reader = reader
        self._writer = writer
        self._bounds = bounds
        self._http = h11.Connection(
            h11.SERVER, max_incomplete_event_size=bounds.head_bytes
        )

    async def call(self, seconds: float) -> h11.Request:
        """Read the head of the next call.

        Args:
            seconds: to wait for all of it.

        Raises:
            GoneError: none came.
        """
        try:
            async with asyncio.timeout(seconds):
                event = await self._event()
        except TimeoutError as error:
            raise GoneError from error
        except h11.RemoteProtocolError as error:
            if self._http.our_state is h11.IDLE:
                await self.refuse(error.error_status_hint)
            raise GoneError from error
        if not isinstance(event, h11.Request):
            raise GoneError
        return event

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the body of the call.

        Raises:
            TooLargeError: it is longer than any may be.
            GoneError: it does not come to its end.
        """
        size = 0
        while True:
            try:
                async with asyncio.timeout(self._bounds.idle_seconds):
                    event = await self._event()
            except (TimeoutError, h11.RemoteProtocolError) as error:
                raise GoneError from error
            if isinstance(event, h11.EndOfMessage):
                return
            if not isinstance(event, h11.Data):
                raise GoneError
            size += len(event.data)
            if size > self._bounds.body_bytes:
                raise TooLargeError
            yield bytes(event.data)

    async def answer(
        self, status: int, headers: Headers, pieces: AsyncIterable[bytes]
    ) -> None:
        """Send an answer as its pieces come.

        Raises:
            GoneError: the caller does not take it.
        """
        await self._send(h11.Response(status_code=status, headers=list(headers)))
        async for piece in pieces:
            await self._send(h11.Data(data=piece))
        await self._send(h11.EndOfMessage())

    async def refuse(self, status: int, reason: bytes = b"") -> None:
        """Send an answer of our own, after which the connection ends.

        Args:
            status: of HTTP.
            reason: a JSON document, or nothing.
        """
        length = b"%d" % len(reason)
        headers = [(b"content-length", length), (b"connection", b"close")]
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
        """Begin the next call where one may follow; tell whether it may."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False

    async def _event(self) -> h11.Event | type[h11.PAUSED]:
        event = self._http.next_event()
        while event is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(PIECE))
            event = self._http.next_event()
        assert not isinstance(event, type) or event is h11.PAUSED
        return event

    async def _send(self, event: h11.Event) -> None:
        # A method that answers no body, HEAD, has none sent; h11 knows of it.
        if data := self._http.send(event):
            self._writer.write(data)
        try:
            async with asyncio.timeout(self._bounds.idle_seconds):
                await self._writer.drain()
        except TimeoutError as error:
            raise GoneError from error
