"""The Flower ClientApp: it wraps any `Learner` of ours."""

from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fcl_flower import assembly, wire
from fcl_flower.algorithms import algorithm
from fcl_flower.client_setup import client_data, on_node
from fcl_flower.codec import encode
from fcl_flower.config import RunConfig
from fcl_flower.contracts import Learner
from fcl_flower.data.scenarios import Scenario
from fcl_flower.data.tasks import Examples, SplitName, TaskData, together
from fcl_flower.ledger import kind
from fcl_flower.memory import ContextMemory, FolderMemory, Memory
from fcl_flower.node import NodeConfig
from fcl_flower.training import score
from fcl_flower.types import Evaluation, Payload, Stage

TRANSIENT = frozenset({"optimizer", "memory"})
"""Kinds of groups in a client's state that only training needs."""

# The server is trusted with more than a peer: it sends the adapters of all clients.
MAX_RECEIVED = 2**36

app = ClientApp()


@app.query()
def who(message: Message, context: Context) -> Message:
    """Tell the partition number, the client's name for good."""
    node = NodeConfig.of(context.node_config)
    record = ConfigRecord({"partition": node.partition_id})
    return Message(RecordDict({"who": record}), reply_to=message)


@app.query("survey")
def survey(message: Message, context: Context) -> Message:
    """Answer the question that the strategy asks before a task."""
    stage = wire.open_request(message.content).stage
    client = _Client(context, stage)
    question = wire.unpack(message.content, MAX_RECEIVED)
    data = client.data(stage)
    answer = client.learner.answer(client.state(stage.round), question, stage, data)
    packer = wire.Packer(client.config.precision)
    return Message(packer.payload(answer), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train one round on the client's current task; be tested too, where asked."""
    request = wire.open_request(message.content)
    stage = request.stage
    client = _Client(context, stage)
    saved = client.memory.load(before=stage.round)
    if request.since > (0 if saved is None else saved.round):
        return Message(wire.forgotten(request.since), reply_to=message)
    state = client.learner.init() if saved is None else saved.payload
    data = client.data(stage)
    received = wire.unpack(message.content, MAX_RECEIVED)
    state, update = client.learner.train(state, received, stage, data)
    client.memory.save(state, stage.round)
    # A strategy that wants this sends nothing for a test: what it sent is old by then.
    tested = client.evaluation(state, {}, stage) if request.evaluate else None
    packer = wire.Packer(client.config.precision)
    return Message(packer.uplink(update, stage, tested), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Score every task so far, or every concept, on its whole test set."""
    stage = wire.open_request(message.content).stage
    client = _Client(context, stage)
    received = wire.unpack(message.content, MAX_RECEIVED)
    found = client.evaluation(client.state(stage.round + 1), received, stage)
    return Message(RecordDict({wire.SCORES: wire.scores(found)}), reply_to=message)


def model_bytes(state: Payload, received: Payload) -> int:
    """Return the bytes that a client needs in order to predict, as it stores them.

    What only training needs (moments, samples of old tasks) is left out.
    """
    return sum(
        len(encode(tensor).data)
        for payload in (state, received)
        for group, arrays in payload.items()
        if kind(group) not in TRANSIENT
        for tensor in arrays.values()
    )


class _Client:
    """What one message needs: the learner, its memory and its data."""

    def __init__(self, context: Context, stage: Stage) -> None:
        node = NodeConfig.of(context.node_config)
        self.config = config = on_node(RunConfig.of(context.run_config), node)
        self.scenario: Scenario = assembly.scenario(config)
        self.samples = client_data(config, self.scenario, node, stage.task + 1)
        self.learner: Learner[Any] = assembly.learner(
            config, self.scenario, node.partition_id, self.samples.vectors
        )
        self.memory: Memory = ContextMemory(context)
        if config.memory != "context":
            folder = Path(config.memory) / f"client-{node.partition_id}"
            self.memory = FolderMemory(folder, durable=False)
        if node.state_path:
            run = config.name or str(context.run_id)
            folder = Path(node.state_path) / run / f"client-{node.partition_id}"
            self.memory = FolderMemory(folder)

    def state(self, before: int) -> Payload:
        """Return what the client knew before a round of its own."""
        saved = self.memory.load(before)
        return self.learner.init() if saved is None else saved.payload

    def evaluation(self, state: Payload, received: Payload, stage: Stage) -> Evaluation:
        """Return the scores, and what it takes to get them."""
        accuracy = self.accuracy(state, received, stage)
        return Evaluation(accuracy, model_bytes(state, received))

    def data(self, stage: Stage) -> TaskData:
        """Return what the client trains on."""
        found = self.samples.training(stage)
        train, valid, test = map(self._here, (found.train, found.valid, found.test))
        # Asked of the table: an isolated learner is wrapped.
        if algorithm(self.config.strategy).load_learner().joint:
            train, valid = self._of_all_tasks("train"), self._of_all_tasks("valid")
        return TaskData(train, valid, test, found.classes)

    def accuracy(self, state: Payload, received: Payload, stage: Stage) -> list[float]:
        """Return the fraction of right answers on every task so far, or concept."""
        hidden = self.scenario.stream is not None
        found = []
        for task in range(self.scenario.num_tasks if hidden else stage.task + 1):
            known, asked = received, task
            if hidden and not self.config.concept_ids:
                # As if the client met the concept now, with fresh examples of it.
                recent = self._examples(task, "valid")
                known = self.learner.recognise(state, received, recent)
                asked = stage.task
            predict = partial(self.learner.predict, state, known, asked)
            found.append(score(predict, self._examples(task, "test")).accuracy)
        return found

    def _of_all_tasks(self, split: SplitName) -> Examples:
        tasks = range(self.scenario.num_tasks)
        return together([self._examples(task, split) for task in tasks])

    def _examples(self, task: int, split: SplitName) -> Examples:
        return self._here(self.samples.examples(task, split))

    def _here(self, examples: Examples) -> Examples:
        """Return the examples on the device of the model."""
        device = self.learner.place.device
        return Examples(examples.x.to(device), examples.y.to(device))
