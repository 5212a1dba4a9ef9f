"""Short questions to many clients at once, beside those of a strategy."""

from collections.abc import Callable, Mapping
from logging import WARNING
from typing import NamedTuple, TypeVar

from fcl_flower.core.log import log
from fcl_flower.rounds import mailbox
from fcl_flower.rounds.clients import ClientRegistry
from fcl_flower.rounds.transport import Content, Request

T = TypeVar("T")


class Asker(NamedTuple):
    """Whom questions go to, and how long they are waited for.

    Attributes:
        timeout: seconds for each reply.
        closes_at: when those who have not answered are no longer waited for.
    """

    registry: ClientRegistry
    timeout: float
    closes_at: mailbox.Deadline = mailbox.wait_for_all

    def ask(
        self,
        kind: str,
        contents: Mapping[int, Content],
        read: Callable[[Content], T],
    ) -> dict[int, T]:
        """Ask clients a question of one kind; return what is read of their replies.

        A reply that cannot be read is left out, with a warning.
        """
        box, found = (
            mailbox.Mailbox(self.registry.transport, self.timeout),
            dict[int, T](),
        )
        asked = [
            Request(self.registry.node(client), kind, content)
            for client, content in contents.items()
        ]
        for reply in mailbox.ask(box, asked, self.closes_at):
            client = self.registry.client(reply.node)
            # A peer's content may break what reads it in any way.
            try:
                found[client] = read(self.registry.open(reply))
            except Exception as error:
                why = mailbox.reason(error)
                log(WARNING, "client %d: %s: %s", client, kind, why)
        return dict(sorted(found.items()))
