"""A grid of one process: its nodes answer when they are asked, one after the other."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import WARNING
from typing import TypeAlias
from uuid import uuid4

from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from typing_extensions import override

from fcl_flower.attacks.hostile_training import HostileTraining
from fcl_flower.config.parsing import Scalar
from fcl_flower.config.run_config import RunConfig
from fcl_flower.config.sections import Attack
from fcl_flower.federation.client import Client
from fcl_flower.federation.client_app import app as client_app
from fcl_flower.federation.client_app import trained
from fcl_flower.federation.transport.messages import decode_request
from fcl_flower.runtime.in_process.identity import RUN_ID

OnTurn: TypeAlias = Callable[[list[int], int, int], None]
"""Called with the clients at work, how many of the messages sent together are answered,
and how many were sent."""


def tell_nobody(working: list[int], done: int, sent: int) -> None:
    """Do nothing: an `OnTurn` of who does not want to know."""


class InProcessGrid(Grid):
    """A grid whose nodes answer in the call that asks for their replies.

    What is pushed waits, and costs nothing but itself; each message that is pulled is
    answered in that call, in the order of the ids, and then forgotten, its content
    too. Who pulls one message at a time, as `Mailbox` does, so holds one reply of a
    round at a time, and may use it up before the next client trains.

    A client that raises is answered for by an error, as in Flower's runtimes. Those of
    the last nodes that the run says are hostile train as `HostileTraining` does.

    Attributes:
        contexts: Flower's context of each client by its node.
    """

    def __init__(
        self,
        nodes: Sequence[int],
        run_config: Mapping[str, Scalar],
        node_configs: Sequence[Mapping[str, Scalar]] = (),
        on_turn: OnTurn = tell_nobody,
    ) -> None:
        """Connect the nodes.

        Args:
            nodes: ids, one for each client by ascending number.
            run_config: flat, as Flower passes it on.
            node_configs: what else each node is configured with; empty for nothing.
            on_turn: called before and after a client trains or is evaluated.
        """
        extra = node_configs or [{} for _ in nodes]
        self._attack = RunConfig.of(run_config).federation.attack
        attackers = RunConfig.of(run_config).federation.attackers
        self._hostile = frozenset(nodes[len(nodes) - attackers :])
        # The clients' own code knows no attack, and refuses to hear of one.
        honest = {**run_config, "federation.attack": "", "federation.attackers": 0}
        self.contexts = {
            node: Context(
                run_id=RUN_ID,
                node_id=node,
                node_config={
                    "partition-id": client,
                    "num-partitions": len(nodes),
                    **extra[client],
                },
                state=RecordDict(),
                run_config=honest,
            )
            for client, node in enumerate(nodes)
        }
        self._on_turn = on_turn
        self._queued: dict[str, Message] = {}
        self._pushed = 0

    @override
    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    @override
    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        self._pushed = len(self._queued)
        for message in messages:
            message.metadata.__dict__["_message_id"] = name = str(uuid4())
            self._queued[name] = message
            self._pushed += 1
            ids.append(name)
        return ids

    @override
    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._answer(name) for name in message_ids if name in self._queued]

    def _answer(self, message_id: str) -> Message:
        message = self._queued.pop(message_id)
        context = self.contexts[message.metadata.dst_node_id]
        sent, done = self._pushed, self._pushed - len(self._queued)
        if message.metadata.message_type == MessageType.QUERY:
            return self.reply(message, context)
        self._on_turn([int(context.node_config["partition-id"])], done - 1, sent)
        reply = self.reply(message, context)
        self._on_turn([], done, sent)
        return reply

    def reply(self, message: Message, context: Context) -> Message:
        """Run the client app on one message; return its reply, or its error."""
        return answer(message, context, self._attack_of(context))

    def _attack_of(self, context: Context) -> Attack:
        """Return what a client does in place of training; empty if it is honest."""
        return self._attack if context.node_id in self._hostile else ""

    # ---- parts of Flower's interface without a use here

    @override
    def set_run(self, run: Run) -> None:
        raise NotImplementedError("a run in this process has no SuperLink")

    @property
    @override
    def run(self) -> Run:
        raise NotImplementedError("a run in this process has no SuperLink")

    @override
    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(
            content,
            dst_node_id=dst_node_id,
            message_type=message_type,
            group_id=group_id,
            ttl=ttl,
        )

    @override
    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))


def answer(message: Message, context: Context, attack: Attack = "") -> Message:
    """Run the client app on one message; return its reply, or its error.

    Args:
        message: to the client.
        context: Flower's, of the client; its state may change.
        attack: what the client does in place of training; empty if it is honest.
    """
    try:
        if attack and message.metadata.message_type == MessageType.TRAIN:
            return _hostile_reply(message, context, attack)
        return client_app(message, context)
    except Exception as error:
        log(WARNING, "a client failed", exc_info=error)
        reason = f"{type(error).__name__}: {error}"
        return Message(Error(code=0, reason=reason), reply_to=message)


def _hostile_reply(message: Message, context: Context, attack: Attack) -> Message:
    client = Client(context, decode_request(message.content).stage)
    handed_on = client.run.algorithm.load_server().handed_on
    hostile = HostileTraining(client.learner, attack, handed_on)
    return trained(message, client, hostile)
