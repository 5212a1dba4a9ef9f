"""The Flower ClientApp: it wraps any `ClientLearner` of ours."""

from collections.abc import Callable
from typing import TypeAlias

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fcl_flower.algorithms.hooks import AnswersQueries
from fcl_flower.config.node_config import NodeConfig
from fcl_flower.core.errors import ContractError
from fcl_flower.core.types import Payload, TaskStage, Update
from fcl_flower.data.examples import TaskData
from fcl_flower.federation.client import Client
from fcl_flower.federation.transport import messages

# The server is trusted with more than a peer: it sends the adapters of all clients.
MAX_RECEIVED = 2**36

Train: TypeAlias = Callable[
    [Payload, Payload, TaskStage, TaskData], tuple[Payload, Update]
]
"""`ClientLearner.train`."""

app = ClientApp()


@app.query()
def who(message: Message, context: Context) -> Message:
    """Reply with the partition number, which identifies the client."""
    node = NodeConfig.of(context.node_config)
    record = ConfigRecord({"partition": node.partition_id})
    return Message(RecordDict({"who": record}), reply_to=message)


@app.query("survey")
def query(message: Message, context: Context) -> Message:
    """Answer the question that the strategy asks before a task."""
    stage = messages.decode_request(message.content).stage
    client = Client(context, stage)
    question = messages.decode_payload(message.content, MAX_RECEIVED)
    data = client.data(stage)
    learner = client.learner
    if not isinstance(learner, AnswersQueries):
        raise ContractError(
            f"{type(learner).__name__}: got a query, expected none, as it is no "
            "AnswersQueries"
        )
    answer = learner.answer_query(client.state(stage.round), question, stage, data)
    encoder = messages.MessageEncoder(client.config.federation.wire_dtype)
    return Message(encoder.payload(answer), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train one round on the client's current task; be tested too, where asked."""
    client = Client(context, messages.decode_request(message.content).stage)
    return trained(message, client, client.learner.train)


def trained(message: Message, client: Client, train: Train) -> Message:
    """Return the reply to a call to train.

    Args:
        message: the call.
        client: made for it.
        train: its learner's, or what a simulation puts in its place.
    """
    request = messages.decode_request(message.content)
    stage = request.stage
    saved = client.store.load(before=stage.round)
    if request.since > (0 if saved is None else saved.round):
        return Message(messages.state_lost(request.since), reply_to=message)
    state = client.learner.init() if saved is None else saved.payload
    data = client.data(stage)
    state = client.charged(state, len(data.train.y))
    received = messages.decode_payload(message.content, MAX_RECEIVED)
    state, update = train(state, received, stage, data)
    client.store.save(state, stage.round)
    # What was sent is old by now: the client has its private state, and its update.
    own = update.payload if client.learner.update_is_model else {}
    tested = client.evaluation(state, own, stage) if request.evaluate else None
    update = client.hidden(update, received, stage)
    encoder = messages.MessageEncoder(client.config.federation.wire_dtype)
    return Message(encoder.encode_update(update, stage, tested), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Score every task so far, or every concept, on its whole test set."""
    stage = messages.decode_request(message.content).stage
    client = Client(context, stage)
    received = messages.decode_payload(message.content, MAX_RECEIVED)
    found = client.evaluation(client.state(stage.round + 1), received, stage)
    return Message(
        RecordDict({messages.SCORES: messages.encode_evaluation(found)}),
        reply_to=message,
    )
