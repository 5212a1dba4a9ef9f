"""Short questions to many clients at once, beside those of a strategy."""

from collections.abc import Callable, Mapping
from logging import WARNING
from typing import NamedTuple, TypeVar

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fcl_flower.federation import mailbox
from fcl_flower.federation.clients import ClientRegistry
from fcl_flower.flower.identity import log

T = TypeVar("T")


class Asker(NamedTuple):
    """Whom questions go to, and how long they are waited for.

    Attributes:
        timeout: seconds for each reply.
        closes_at: when those who have not answered are no longer waited for.
    """

    grid: Grid
    registry: ClientRegistry
    timeout: float
    closes_at: mailbox.Deadline = mailbox.wait_for_all

    def ask(
        self,
        kind: str,
        contents: Mapping[int, RecordDict],
        read: Callable[[RecordDict], T],
    ) -> dict[int, T]:
        """Ask clients a question of one kind; return what is read of their replies.

        A reply that cannot be read is left out, with a warning.
        """
        box, found = mailbox.Mailbox(self.grid, self.timeout), dict[int, T]()
        asked = [
            Message(content, dst_node_id=self.registry.node(c), message_type=kind)
            for c, content in contents.items()
        ]
        for reply in mailbox.ask(box, asked, self.closes_at):
            client = self.registry.client(reply.metadata.src_node_id)
            # A peer's content may break Flower's accessors in any way.
            try:
                found[client] = read(self.registry.open(reply))
            except Exception as error:
                why = mailbox.reason(error)
                log(WARNING, "client %d: %s: %s", client, kind, why)
        return dict(sorted(found.items()))
