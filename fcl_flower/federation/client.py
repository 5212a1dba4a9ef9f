"""What a client makes of the run's configuration and of its node's."""

from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context

from fcl_flower.algorithms.base import ClientLearner
from fcl_flower.algorithms.registry import algorithm
from fcl_flower.config.node_config import NodeConfig
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.types import Evaluation, Payload, TaskStage, group_kind
from fcl_flower.data.client_data import ClientData, ScenarioData
from fcl_flower.data.examples import Examples, InputSpec, SplitName, TaskData, concat
from fcl_flower.data.local.client_data import LocalData
from fcl_flower.data.scenarios.registry import Scenario
from fcl_flower.data.text.vector_files import find_vectors
from fcl_flower.federation.transport.codec import encode
from fcl_flower.federation.transport.state_store import (
    ContextStateStore,
    FolderStateStore,
    StateStore,
)
from fcl_flower.models.registry import model_entry
from fcl_flower.setup import factory, resolve
from fcl_flower.setup.compatibility import has_local_data
from fcl_flower.setup.factory import local_data_spec
from fcl_flower.training.loop import score


def config_on_node(config: RunConfig, node: NodeConfig) -> RunConfig:
    """Return the run's configuration, completed, as it holds on one node.

    Raises:
        ConfigError: neither the run nor the node says how many clients there are, but
            the scenario deals out data; or the configuration cannot be completed.
    """
    clients = config.clients or node.num_partitions
    if not clients and not has_local_data(config):
        raise ConfigError(
            "node-config num-partitions: missing; expected how many clients there are, "
            "which the run does not say either"
        )
    config = resolve.resolve(
        config.with_values(
            clients=clients,
            device=node.device or config.device,
            min_replies=1,  # the server's business, and checked against the clients
        )
    )
    if node.word_vectors and resolve.data_kind(config) == "text":
        return config.with_values(word_vectors=node.word_vectors)
    return config


def client_data(
    config: RunConfig, plan: Scenario, node: NodeConfig, tasks: int
) -> ClientData:
    """Return where a client's samples come from.

    Args:
        config: of `config_on_node`.
        plan: the scenario.
        node: the client's node.
        tasks: how many tasks the client is asked for.

    Raises:
        ConfigError: the client should have data of its own, but has not, or not as
            described; or word vectors are missing.
    """
    shape = resolve.input_shape(config)
    root = resolve.data_root(config)
    if not plan.own:
        numbering = factory.build_tokenizer(config) or factory.build_word_vectors(
            config
        )
        form = InputSpec(root, shape, config.head == "single", numbering)
        return ScenarioData(plan, node.partition_id, form)
    if not node.data_path:
        raise ConfigError(
            "node-config data-path: missing; expected the folder with this client's "
            f"own data, for scenario {plan.name}"
        )
    folder = Path(node.data_path).expanduser()
    words = factory.build_tokenizer(config) or vector_file(config)
    return LocalData(folder, local_data_spec(config, shape), tasks, words)


def vector_file(config: RunConfig) -> Path | None:
    """Return the file of word vectors of a client with data of its own.

    None where the data are not text, or their model has tokens of its own.

    Raises:
        ConfigError: there is no such file, or none is named.
    """
    if resolve.data_kind(config) != "text" or model_entry(config.model).encoder:
        return None
    if not config.word_vectors:
        raise ConfigError(
            "word-vectors: '' is refused: expected a file, of the run or of the node, "
            "since clients with texts of their own have to agree on the vectors"
        )
    return find_vectors(config.word_vectors, resolve.data_root(config))


TRANSIENT = frozenset({"optimizer", "memory"})
"""Kinds of groups in a client's state that only training needs."""


def model_bytes(state: Payload, received: Payload) -> int:
    """Return the bytes that a client needs in order to predict, as it stores them.

    What only training needs (moments, samples of old tasks) is left out.
    """
    return sum(
        len(encode(tensor).data)
        for payload in (state, received)
        for group, arrays in payload.items()
        if group_kind(group) not in TRANSIENT
        for tensor in arrays.values()
    )


class Client:
    """What one message needs: the learner, its memory and its data."""

    def __init__(self, context: Context, stage: TaskStage) -> None:
        node = NodeConfig.of(context.node_config)
        self.config = config = config_on_node(RunConfig.of(context.run_config), node)
        self.scenario: Scenario = factory.build_scenario(config)
        self.samples = client_data(config, self.scenario, node, stage.task + 1)
        self.learner: ClientLearner[Any] = factory.build_learner(
            config, self.scenario, node.partition_id, self.samples.vectors
        )
        self.memory: StateStore = ContextStateStore(context)
        if config.memory != "context":
            folder = Path(config.memory) / f"client-{node.partition_id}"
            self.memory = FolderStateStore(folder, durable=False)
        if node.state_path:
            run = config.name or str(context.run_id)
            folder = Path(node.state_path) / run / f"client-{node.partition_id}"
            self.memory = FolderStateStore(folder)

    def state(self, before: int) -> Payload:
        """Return what the client knew before a round of its own."""
        saved = self.memory.load(before)
        return self.learner.init() if saved is None else saved.payload

    def evaluation(
        self, state: Payload, received: Payload, stage: TaskStage
    ) -> Evaluation:
        """Return the scores, and what it takes to get them."""
        accuracy = self.accuracy(state, received, stage)
        return Evaluation(accuracy, model_bytes(state, received))

    def data(self, stage: TaskStage) -> TaskData:
        """Return what the client trains on."""
        found = self.samples.training(stage)
        train, valid, test = map(self._here, (found.train, found.valid, found.test))
        # Asked of the table: an isolated learner is wrapped.
        if algorithm(self.config.strategy).load_client().joint:
            train, valid = self._of_all_tasks("train"), self._of_all_tasks("valid")
        return TaskData(train, valid, test, found.classes)

    def accuracy(
        self, state: Payload, received: Payload, stage: TaskStage
    ) -> list[float]:
        """Return the fraction of right answers on every task so far, or concept."""
        hidden = self.scenario.stream is not None
        found = []
        for task in range(self.scenario.num_tasks if hidden else stage.task + 1):
            known, asked = received, task
            if hidden and not self.config.concept_ids:
                # As if the client met the concept now, with fresh examples of it.
                recent = self._examples(task, "valid")
                known = self.learner.select_model(state, received, recent)
                asked = stage.task
            predict = partial(self.learner.predict, state, known, asked)
            found.append(score(predict, self._examples(task, "test")).accuracy)
        return found

    def _of_all_tasks(self, split: SplitName) -> Examples:
        tasks = range(self.scenario.num_tasks)
        return concat([self._examples(task, split) for task in tasks])

    def _examples(self, task: int, split: SplitName) -> Examples:
        return self._here(self.samples.examples(task, split))

    def _here(self, examples: Examples) -> Examples:
        """Return the examples on the device of the model."""
        device = self.learner.context.device
        return Examples(examples.x.to(device), examples.y.to(device))
