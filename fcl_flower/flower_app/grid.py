"""The transport over Flower's Grid, by its public names."""

import math
import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial

from flwr.app import Message
from flwr.serverapp import Grid

from fcl_flower.core import failures
from fcl_flower.flower_app.records import RecordMaker, content_of
from fcl_flower.rounds.transport import Content, Problem, Reply, Request

UNAVAILABLE = 5
"""Flower's code for a node that no longer gives a sign of life."""
LIST_SECONDS = 15.0
"""Seconds between two looks at the list of nodes while a reply is missing."""
GONE_SECONDS = 60.0
"""Seconds without a node in that list after which its reply is given up."""


class GridTransport:
    """Carries requests as Flower's messages, by a Grid.

    Attributes:
        simulated: whether Flower's simulation has all clients.
        blocking: whether calls go over a network, which may take minutes.
    """

    def __init__(self, grid: Grid, *, simulated: bool = False) -> None:
        """Send through a grid; ``simulated`` if this package began the simulation."""
        self._grid = grid
        self.simulated = simulated
        self.blocking = not simulated
        self._seen: dict[int, float] = {}
        self._listed = -LIST_SECONDS

    def nodes(self) -> Iterable[int]:
        """List the nodes that are connected now."""
        return self._grid.get_node_ids()

    def send(self, requests: Sequence[Request], seconds: float) -> list[str | None]:
        """Push requests; return their messages' ids, None for a refused one."""
        maker, messages = RecordMaker(), list[Message]()
        for request in requests:
            content = maker.records(request.content)
            message = Message(
                content, dst_node_id=request.node, message_type=request.kind
            )
            message.metadata.ttl = seconds
            messages.append(message)
        sent = {*self._grid.push_messages(messages)}
        self._seen |= dict.fromkeys((r.node for r in requests), time.monotonic())
        names = [message.metadata.message_id for message in messages]
        return [name if name and name in sent else None for name in names]

    def receive(self, name: str, request: Request) -> Reply | None:
        """Pull the reply to a message; a reply that Flower cannot open is a problem."""
        try:
            for reply in self._grid.pull_messages([name]):
                if not reply.has_error():
                    return Reply(request, partial(_opened, reply))
                if reply.error.code == UNAVAILABLE:
                    return Reply(request, self._gone(request.node))
                return Reply(
                    request, Problem(f"{failures.FAILED}: {reply.error.reason}")
                )
        # Flower unpacks the peer's bytes here, which may raise any error.
        except Exception as error:
            return Reply(request, Problem(f"its reply cannot be opened: {error!r}"))
        if self.blocking and self._is_gone(request.node):
            return Reply(request, self._gone(request.node))
        return None

    def _gone(self, node: int) -> Problem:
        silence = time.monotonic() - self._seen.get(node, -math.inf)
        since = "for long"
        if math.isfinite(silence):
            last = datetime.now().astimezone() - timedelta(seconds=silence)
            since = f"since {last:%H:%M:%S}"
        return Problem(
            f"{failures.NOT_CONNECTED}: nothing was heard of it {since}, and it is no "
            "longer waited for",
            "gone",
        )

    def _is_gone(self, node: int) -> bool:
        # Flower's releases until 1.42 answer for a node that is gone. Newer releases
        # (tried with 1.43.0.dev20261026) only drop it from the list.
        now = time.monotonic()
        if now >= self._listed + LIST_SECONDS:
            self._seen |= dict.fromkeys(self.nodes(), time.monotonic())
            self._listed = now  # at last, as other threads list meanwhile
        return now > self._seen.get(node, now) + GONE_SECONDS


def _opened(reply: Message) -> Content:
    return content_of(reply.content)
