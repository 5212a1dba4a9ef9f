"""The Flower ClientApp: it wraps any `Learner` of ours."""

from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fcl_flower import assembly, wire
from fcl_flower.codec import encode
from fcl_flower.config import RunConfig
from fcl_flower.contracts import Learner
from fcl_flower.data.scenarios import Scenario
from fcl_flower.data.tasks import (
    Examples,
    Form,
    SplitName,
    TaskData,
    met_data,
    task_data,
    task_examples,
)
from fcl_flower.ledger import kind
from fcl_flower.memory import ClientMemory, ContextMemory, FolderMemory
from fcl_flower.training import score
from fcl_flower.types import Payload, Stage, Update

TRANSIENT = "optimizer"
# The server is trusted with more than a peer: it sends the adapters of all clients.
MAX_RECEIVED = 2**36

app = ClientApp()


@app.query()
def who(message: Message, context: Context) -> Message:
    """Tell the partition number, the client's name for good."""
    record = ConfigRecord({"partition": int(context.node_config["partition-id"])})
    return Message(RecordDict({"who": record}), reply_to=message)


@app.query("survey")
def survey(message: Message, context: Context) -> Message:
    """Answer the question that the strategy asks before a task."""
    client = _Client(context)
    stage = wire.open_stage(message.content)
    question = wire.unpack(message.content, MAX_RECEIVED)
    data = client.data(stage)
    answer = client.learner.answer(client.state(), question, stage, data)
    packer = wire.Packer(client.config.precision)
    return Message(packer.uplink(Update(answer, 0)), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train one round on the client's current task."""
    client = _Client(context)
    stage = wire.open_stage(message.content)
    state = client.state()
    data = client.data(stage)
    received = wire.unpack(message.content, MAX_RECEIVED)
    state, update = client.learner.train(state, received, stage, data)
    client.memory.save(state)
    packer = wire.Packer(client.config.precision)
    return Message(packer.uplink(update), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Score every task so far, or every concept, on its whole test set."""
    client = _Client(context)
    stage = wire.open_stage(message.content)
    state = client.state()
    received = wire.unpack(message.content, MAX_RECEIVED)
    accuracy = client.accuracy(state, received, stage)
    row = MetricRecord(
        {"accuracy": accuracy, "model-bytes": model_bytes(state, received)}
    )
    return Message(RecordDict({wire.METRICS: row}), reply_to=message)


def model_bytes(state: Payload, received: Payload) -> int:
    """Return the bytes that a client needs in order to predict, as it stores them.

    What only training needs (the optimizer's moments) is left out.
    """
    return sum(
        len(encode(tensor).data)
        for payload in (state, received)
        for group, arrays in payload.items()
        if kind(group) != TRANSIENT
        for tensor in arrays.values()
    )


class _Client:
    """What one message needs: the learner, its memory and its data."""

    def __init__(self, context: Context) -> None:
        config = RunConfig.of(context.run_config)
        if not config.clients:
            nodes = int(context.node_config["num-partitions"])
            config = config.with_values(clients=nodes)
        self.config = config = assembly.completed(config)
        self.number = int(context.node_config["partition-id"])
        self.scenario: Scenario = assembly.scenario(config)
        self.learner: Learner[Any] = assembly.learner(
            config, self.scenario, self.number
        )
        self.memory: ClientMemory = ContextMemory(context)
        if config.memory != "context":
            folder = Path(config.memory) / f"client-{self.number}"
            self.memory = FolderMemory(folder, durable=False)

    def state(self) -> Payload:
        return self.memory.load() or self.learner.init()

    def data(self, stage: Stage) -> TaskData:
        """Return what the client trains on."""
        if self.scenario.stream is None:
            found = task_data(self.scenario, self.number, stage.task, self.form())
        else:
            found = met_data(self.scenario, self.number, stage.round, self.form())
        train, valid, test = map(self._here, (found.train, found.valid, found.test))
        return TaskData(train, valid, test, found.classes)

    def accuracy(self, state: Payload, received: Payload, stage: Stage) -> list[float]:
        """Return the fraction of right answers on every task so far, or concept."""
        learner = self.learner
        if self.scenario.stream is None:
            return [
                score(
                    partial(learner.predict, state, received, task),
                    self._examples(task, "test"),
                ).accuracy
                for task in range(stage.task + 1)
            ]
        found = []
        for concept in range(self.scenario.num_tasks):
            # As if the client met the concept now, with fresh examples of it.
            recent = self._examples(concept, "valid")
            chosen = learner.recognise(state, received, recent)
            predict = partial(learner.predict, state, chosen, stage.task)
            found.append(score(predict, self._examples(concept, "test")).accuracy)
        return found

    def _examples(self, task: int, split: SplitName) -> Examples:
        return self._here(
            task_examples(self.scenario, self.number, task, split, self.form())
        )

    def _here(self, examples: Examples) -> Examples:
        """Return the examples on the device of the model."""
        device = self.learner.place.device
        return Examples(examples.x.to(device), examples.y.to(device))

    def form(self) -> Form:
        """Return the form in which the model takes samples."""
        return Form(
            assembly.data_root(self.config),
            self.learner.model.input_shape,
            self.config.head == "single",
            assembly.vectors(self.config),
        )
