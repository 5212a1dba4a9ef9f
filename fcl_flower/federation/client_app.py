"""The Flower ClientApp: it wraps any `ClientLearner` of ours."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import TypeAlias

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fcl_flower.algorithms.base import ClientQueries
from fcl_flower.config.run_config import refuse_attack
from fcl_flower.config.run_spec import NodeConfig, RunSpec
from fcl_flower.core.errors import (
    MESSAGE_FAILED,
    ContractError,
    FclError,
    RunUnknownError,
    unforeseen,
    without_paths,
)
from fcl_flower.core.types import Evaluation, Payload, TaskStage, Update
from fcl_flower.data.examples import TaskData
from fcl_flower.data.local.client import finished_tasks
from fcl_flower.federation import clients, messages
from fcl_flower.federation.client import (
    Client,
    client_data,
    keep_spec,
    kept_spec,
    local_data,
    run_parts,
    state_folder,
)
from fcl_flower.federation.copies import CopyError
from fcl_flower.federation.messages import encode_evaluation
from fcl_flower.federation.pixel_sums import SUMS, pixel_sums
from fcl_flower.federation.retention import remove_old_runs
from fcl_flower.federation.secure import client as exchange
from fcl_flower.federation.secure.client import ClientSide
from fcl_flower.flower.identity import log
from fcl_flower.results.costs import MULTIPLY_ADDS

# The server is trusted with more than a peer: it sends the adapters of all clients.
MAX_RECEIVED = 2**36

Train: TypeAlias = Callable[
    [Payload, Payload, TaskStage, TaskData], tuple[Payload, Update]
]
"""`ClientLearner.train`."""


def answer_failures(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Answer for an error by its sentence, without the noise of what is around it.

    What the sentence keeps from the server, as it tells of local data, stands beside it
    in this machine's log; so does the traceback of an error that nobody has foreseen.
    """
    try:
        return call_next(message, context)
    except RunUnknownError as error:
        log(WARNING, "%s", error)
        return Message(messages.run_unknown(), reply_to=message)
    except FclError as error:
        reason, cause = without_paths(str(error)), error.__cause__
        local = f"{error}: {cause}" if isinstance(cause, FclError) else str(error)
        log(ERROR, f"{MESSAGE_FAILED} %s", local)
    except Exception as error:
        reason = unforeseen(error)
        log(ERROR, "an unforeseen error: please report it", exc_info=error)
        log(ERROR, f"{MESSAGE_FAILED} %s", f"{type(error).__name__}: {error}")
    return Message(Error(code=0, reason=reason), reply_to=message)


app = ClientApp(mods=[answer_failures])


@app.query()
def who(message: Message, context: Context) -> Message:
    """Reply with the partition number, which identifies the client, and its version.

    The run that the server tells is kept, unless it asks for an attack.
    """
    node = NodeConfig.of(context.node_config)
    if text := messages.told_run(message.content):
        spec = RunSpec.from_json(text)
        refuse_attack(spec.config)
        begins = bool(node.keep_runs) and not state_folder(context, node).exists()
        keep_spec(context, node, spec)
        if begins:
            run = state_folder(context, node).parent
            for name in remove_old_runs(run.parent, node.keep_runs, run.name):
                log(INFO, "removed the state of an old run, %s", name)
    record = ConfigRecord({"partition": node.partition_id, **clients.own()})
    if node.data_path:
        record["tasks"] = len(_finished(node))
    return Message(RecordDict({"who": record}), reply_to=message)


@app.query(messages.TASKS)
def finished(message: Message, context: Context) -> Message:
    """Reply with the samples of each task that is there now; no run need be known."""
    node = NodeConfig.of(context.node_config)
    return Message(messages.told_tasks(_finished(node)), reply_to=message)


def _finished(node: NodeConfig) -> list[int]:
    if not node.data_path:
        return []
    report = partial(log, WARNING, "a task does not count yet: %s")
    folder, marked = Path(node.data_path).expanduser(), bool(node.marked_tasks)
    return finished_tasks(folder, marked=marked, report=report)


@app.query(messages.CLASSES)
def classes(message: Message, context: Context) -> Message:
    """Name the classes of the client's task, for a head that grows with them."""
    node = NodeConfig.of(context.node_config)
    stage = messages.decode_request(message.content).stage
    run = run_parts(context.run_id, kept_spec(context, node), node).run
    names = local_data(run, node, stage.task + 1).class_names(stage.task)
    return Message(messages.told_classes(names), reply_to=message)


@app.query(SUMS)
def pixels(message: Message, context: Context) -> Message:
    """Add up the pixels that the client trains on first, before the run is settled."""
    node = NodeConfig.of(context.node_config)
    stage = messages.decode_request(message.content).stage
    run = run_parts(context.run_id, kept_spec(context, node), node).run
    data = client_data(run, node, stage.task + 1).training(stage)
    return Message(pixel_sums(data.train.x), reply_to=message)


@app.query("survey")
def query(message: Message, context: Context) -> Message:
    """Answer the question that the strategy asks before a task."""
    stage = messages.decode_request(message.content).stage
    client = Client(context, stage)
    question = messages.decode_payload(message.content, MAX_RECEIVED)
    data = client.data(stage)
    learner = client.learner
    if not isinstance(learner, ClientQueries):
        raise ContractError(
            f"{type(learner).__name__}: got a query, expected none, as it is no "
            "ClientQueries"
        )
    state = client.state(client.store.load(before=stage.round))
    answer = learner.answer_query(state, question, stage, data)
    encoder = messages.MessageEncoder(client.wire)
    return Message(encoder.payload(answer), reply_to=message)


@app.query(exchange.KEYS)
def advertise_keys(message: Message, context: Context) -> Message:
    """Begin a sum under masks: reply with public keys."""
    return Message(_side_of_sum(context).advertise_keys(), reply_to=message)


@app.query(exchange.SHARES)
def share_keys(message: Message, context: Context) -> Message:
    """Reply with shares of what the masks are made of, sealed for the others."""
    found = _side_of_sum(context).share_keys(message.content)
    return Message(found, reply_to=message)


@app.query(exchange.UNMASK)
def unmask(message: Message, context: Context) -> Message:
    """Reply with the shares by which the masks are taken off the sum."""
    return Message(_side_of_sum(context).unmask(message.content), reply_to=message)


def _side_of_sum(context: Context) -> ClientSide:
    node = NodeConfig.of(context.node_config)
    return ClientSide(context, kept_spec(context, node).config.federation)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train one round on the client's current task; be tested too, where asked."""
    client = Client(context, messages.decode_request(message.content).stage)
    return trained(message, client, client.train)


def trained(message: Message, client: Client, train: Train) -> Message:
    """Answer a call to train; ``train`` is the learner's, or a hostile client's."""
    request = messages.decode_request(message.content)
    stage = request.stage
    saved = client.store.load(before=stage.round)
    if request.since > (0 if saved is None else saved.round):
        return Message(messages.state_lost(request.since), reply_to=message)
    copy = client.model_copy(saved)
    try:
        received = copy.receive(message.content, MAX_RECEIVED)
    except CopyError as error:
        log(WARNING, "asking for the whole model: %s", error)
        return Message(messages.state_lost(request.since), reply_to=message)
    state = client.state(saved)
    data = client.data(stage)
    spent = client.charge_privacy(state, len(data.train.y))
    sum_of = received.pop(exchange.SUM_OF, {})
    client.keep_received(saved, received, stage)
    if client.config.training.count_multiply_adds:
        train = _counted(train)
    state, learned = train(state, received, stage, data)
    update = client.add_noise(learned, received, stage)
    payload = copy.send(update.payload, stage.round)
    client.store.save({**state, **spent}, stage.round, {"copies": copy.kept()})
    # What was sent is old by now: the client has its private state, and its update.
    own = learned.payload if client.learner.update_is_model else {}
    tested = None
    if request.evaluate:
        early = not client.predicts_locally
        tested = client.evaluation(state, own, stage, before_aggregation=early)
    if client.predicts_locally:
        whole = client.validated(state, {}, stage) if request.evaluate else None
        client.keep_version(state, {}, stage, whole)
    if client.masks is not None:
        update = client.masks.masked(update, sum_of)
        payload = update.payload
    encoder = messages.MessageEncoder(client.wire)
    content = encoder.encode_update(update, stage, tested, payload)
    return Message(content, reply_to=message)


def _counted(train: Train) -> Train:
    from fcl_flower.training.loop import multiply_adds

    def counted(
        state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        (state, update), count = multiply_adds(
            lambda: train(state, received, stage, data)
        )
        metrics = {**update.metrics, MULTIPLY_ADDS: float(count)}
        return state, replace(update, metrics=metrics)

    return counted


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Score every task so far, or every concept, on its whole test set."""
    stage = messages.decode_request(message.content).stage
    client = Client(context, stage)
    saved = client.store.load(before=stage.round + 1)
    received = client.model_copy(saved).receive(message.content, MAX_RECEIVED)
    state = client.state(saved)
    found = Evaluation((), 0)  # what predicts comes even where no score may leave
    if client.config.privacy.scores:
        found = client.evaluation(state, received, stage)
    accuracy = client.validated(state, received, stage)
    client.keep_version(state, received, stage, accuracy)
    return Message(
        RecordDict({messages.SCORES: encode_evaluation(found)}),
        reply_to=message,
    )
