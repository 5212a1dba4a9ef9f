"""The Flower ClientApp: each message is answered by `rounds.answers`."""

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from typing_extensions import override

from fcl_flower.config.run_spec import NodeConfig
from fcl_flower.flower_app.log import join_flower
from fcl_flower.flower_app.records import RecordMaker, content_of
from fcl_flower.rounds.answers import answer, answered
from fcl_flower.rounds.place import Place
from fcl_flower.rounds.transport import Content, Problem


class App(ClientApp):
    """Answers every message, whatever its kind; the client's state is in the context.

    Flower keeps the context from one message of a run to the next.
    """

    @override
    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message; the answer to an error is its sentence."""
        join_flower()
        reply = answered(lambda: _answer(message, context))
        if isinstance(reply, Problem):
            return Message(Error(code=0, reason=reply.reason), reply_to=message)
        return Message(RecordMaker().records(reply), reply_to=message)


def _answer(message: Message, context: Context) -> Content | Problem:
    kept = content_of(context.state)
    run = str(context.run_config.get("run.id", "")) or str(context.run_id)
    place = Place(run, NodeConfig.of(context.node_config), kept)
    before = dict(kept.scalars)
    kind = message.metadata.message_type
    reply = answer(kind, content_of(message.content), place)
    if place.state is not kept or kept.scalars != before:
        context.state = RecordMaker().records(place.state)
    return reply


app = App()
