"""A relay in user space between clients and a server: it delays, loses and limits.

python relay.py LISTEN TARGET PORT... [--seed 0]

Each PORT of the address LISTEN is a link to TARGET, an address with a port. A line of
JSON on standard input sets one, such as {"port": 9100, "delay": 0.1, "loss": 0.02,
"rate": 250000}; the end of standard input ends the relay. Loss at a stream is delay:
the sender sends the segment again, and all that follows waits for it. The fall of a
sender's window after a loss is not imitated, so that a real link is slower.
"""

import argparse
import asyncio
import json
import random
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

SEGMENT = 1448
"""Bytes that one packet of Ethernet carries."""
QUEUE = 128
"""Segments on their way; then the sender waits, as with a full window."""
AGAIN = 0.2
"""Seconds after which a lost segment is sent again, doubled for each further loss."""


@dataclass
class Link:
    """How one link is; may change at any moment.

    Attributes:
        delay: seconds one way.
        loss: fraction of the segments that are lost, below 1.
        rate: bytes a second each way; 0 for no limit.
        resets: connections are reset, and none is let in.
        open: connections that it carries.
        free: when a direction may take the next segment.
    """

    delay: float = 0.0
    loss: float = 0.0
    rate: float = 0.0
    resets: bool = False
    open: set[asyncio.StreamWriter] = field(default_factory=set)
    free: dict[str, float] = field(default_factory=dict)

    def abort(self) -> None:
        """Reset what it carries."""
        for end in [*self.open]:
            end.transport.abort()

    def due(self, way: str, size: int, now: float, rng: random.Random) -> float:
        """Say when a segment that is sent now arrives, if no other is before it."""
        start = max(self.free.get(way, 0.0), now)
        self.free[way] = start + (size / self.rate if self.rate else 0.0)
        arrives, again = self.free[way] + self.delay, AGAIN
        while rng.random() < self.loss:
            arrives, again = arrives + again, 2 * again
        return arrives


async def carry(
    link: Link,
    way: str,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    rng: random.Random,
) -> None:
    """Carry one direction of a connection to its end."""
    clock = asyncio.get_running_loop().time
    queue = asyncio.Queue[tuple[float, bytes]](QUEUE)

    async def deliver() -> None:
        while True:
            due, segment = await queue.get()
            await asyncio.sleep(max(0.0, due - clock()))
            if not segment:
                return
            writer.write(segment)
            await writer.drain()

    delivery = asyncio.create_task(deliver())
    last = 0.0
    with suppress(OSError):
        while segment := await reader.read(SEGMENT):
            last = max(last, link.due(way, len(segment), clock(), rng))
            await queue.put((last, segment))
    await queue.put((last, b""))
    with suppress(OSError):
        await delivery
        writer.write_eof()


async def connect(
    link: Link,
    host: str,
    port: int,
    rng: random.Random,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Carry a client's connection."""
    if link.resets:
        writer.transport.abort()
        return
    try:
        there, back = await asyncio.open_connection(host, port)
    except OSError:
        writer.transport.abort()
        return
    ends = {writer, back}
    link.open |= ends
    try:
        await asyncio.gather(
            carry(link, "up", reader, back, rng),
            carry(link, "down", there, writer, rng),
        )
    finally:
        link.open -= ends
        for end in ends:
            end.transport.abort()


async def relay(
    listen: str, target: str, links: dict[int, Link], rng: random.Random
) -> None:
    """Carry all links until standard input ends."""
    host, _, port = target.rpartition(":")
    for number, link in links.items():
        handler = partial(connect, link, host, int(port), rng)
        await asyncio.start_server(handler, listen, number)
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    print("ready", flush=True)
    while line := await lines.readline():
        settings = json.loads(line)
        link = links[settings.pop("port")]
        for name, value in settings.items():
            setattr(link, name, value)
        if link.resets:
            link.abort()
    for link in links.values():
        link.abort()
    await asyncio.sleep(0.1)  # in which each connection comes to its end


def main() -> None:
    """Relay."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("listen")
    parser.add_argument("target")
    parser.add_argument("ports", type=int, nargs="+")
    parser.add_argument("--seed", type=int, default=0, help="Of what is lost.")
    given = parser.parse_args()
    links = {port: Link() for port in given.ports}
    asyncio.run(relay(given.listen, given.target, links, random.Random(given.seed)))


if __name__ == "__main__":
    main()
