"""Asks clients for what the sum needs, and counts the bytes."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from logging import WARNING

from flwr.app import Message, MessageType
from flwr.common.logger import log
from flwr.serverapp import Grid

from fcl_flower.federation.pacing.quorum import Quorum
from fcl_flower.federation.secure.exchange import Table, from_records, to_records
from fcl_flower.federation.transport import byte_counts, mailbox
from fcl_flower.federation.transport.client_registry import ClientRegistry
from fcl_flower.results.traffic import Traffic


class Channel:
    """One query to some clients, and their answers."""

    def __init__(
        self,
        grid: Grid,
        registry: ClientRegistry,
        timeout: float,
        traffic: Callable[[], Traffic],
        quorum: Quorum,
    ) -> None:
        """Create a channel.

        Args:
            grid: connects to the nodes.
            registry: maps clients to nodes.
            timeout: seconds to wait for all answers together.
            traffic: returns that of the round, to which the bytes are added.
            quorum: by which a query no longer waits for the others.
        """
        self._grid = grid
        self._registry = registry
        self._timeout = timeout
        self._traffic = traffic
        self._quorum = quorum

    def ask(
        self,
        query: str,
        tables: Mapping[int, Table],
        rows: Callable[[int], Iterable[int]],
        columns: int,
        least: int,
    ) -> tuple[dict[int, Table], dict[int, str]]:
        """Return the tables that clients answer with, and why others are missing.

        Args:
            query: name of the question.
            tables: what is sent, by client.
            rows: who must be in the answer of a client.
            columns: of the answers.
            least: how many answers are needed at any rate.
        """
        up, down = Counter[str](), Counter[str]()
        asked = []
        for client, table in tables.items():
            records = to_records(table)
            down += byte_counts.traffic(records)
            node = self._registry.node(client)
            kind = f"{MessageType.QUERY}.{query}"
            asked.append(Message(records, dst_node_id=node, message_type=kind))
        answers: dict[int, Table] = {}
        failures: dict[int, str] = {}
        box = mailbox.Mailbox(self._grid, self._timeout)
        closes_at = replace(self._quorum, least=least).closes_at
        for reply in mailbox.ask(box, asked, closes_at):
            client = self._registry.client(reply.metadata.src_node_id)
            if mailbox.is_gone(reply):
                self._registry.mark_gone(reply.metadata.src_node_id)
            # A peer's content may break Flower's accessors in any way.
            try:
                records = mailbox.content(reply)
                up += byte_counts.traffic(records)
                answers[client] = from_records(records, columns, rows(client))
            except Exception as error:
                failures[client] = f"{query}: {mailbox.reason(error)}"
                log(WARNING, "client %d left out: %s", client, failures[client])
        traffic = self._traffic()
        traffic.up += up
        traffic.down += down
        return dict(sorted(answers.items())), failures
