"""A SuperLink that gives a message again until its client has confirmed it.

Flower (1.41) takes a message for delivered when it has answered the call that asks for
one. Where the link is cut just then, nobody has the message, and its round waits for
a reply until ``federation.timeout``. A SuperNode has one message at a time, and
confirms it when all of it is there: a node that asks for one has confirmed all others.
"""

from flwr.app import Message
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.state.schema.linkstate_models import MessageIns
from flwr.supercore.utils import uint64_to_int64
from sqlalchemy import select, update
from typing_extensions import override


class ConfirmedDeliveries(SqlLinkState):
    """Flower's state of a SuperLink, where a delivery counts once it is confirmed."""

    @override
    def get_message_ins(
        self, node_id: int, limit: int | None, *, run_id: int | None = None
    ) -> list[Message]:
        """Get what a node has not confirmed, the oldest first."""
        of_node = MessageIns.dst_node_id == uint64_to_int64(node_id)
        given = select(MessageIns.message_id).where(
            of_node, MessageIns.delivered_at != ""
        )
        with self.session() as session:
            # What is confirmed is gone from the store.
            lost = [
                name
                for name in session.scalars(given)
                if name and name in self.object_store
            ]
            if lost:
                rows = update(MessageIns).where(MessageIns.message_id.in_(lost))
                session.execute(rows.values(delivered_at=""))
            return super().get_message_ins(node_id, limit, run_id=run_id)
