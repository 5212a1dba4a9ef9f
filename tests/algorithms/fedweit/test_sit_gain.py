"""A planted example in which the right choice of an adapter pays, without Flower."""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from clients.fedseit import FedSeit as ClientLearner
from fcl_flower.algorithms.base import ClientContext, ServerContext
from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.build import create_model
from fcl_flower.training.loop import Training, score
from fcl_flower.training.tensors import snapshot
from strategies.fedseit import FedSeit, FedSeitParams

DIMENSIONS, WORDS, LENGTH = 8, 40, 10
FOREIGN, NEW = 0, 1
MANY, FEW = 300, 12
# The gate shuts the base out: what a task has learnt is in its adapter alone.
SETTINGS = {
    "initial_gate": 0.0,
    "mask_rate": 0.0,
    "initial_adapter": 1.0,
    "initial_attention": 8.0,
    "lambda1": 1e-4,
    "clusters": 10,
}


class Language(NamedTuple):
    """Two domains of words with vectors around different points.

    A document is noise with two words side by side, and its label is their order, so
    that neither its words nor their mean give the label away: filters must be learnt.
    """

    table: np.ndarray
    rng: np.random.Generator

    @classmethod
    def drawn(cls, seed):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(2, WORDS + 2, DIMENSIONS)) / np.sqrt(DIMENSIONS)
        for domain in (0, 1):
            rows[domain, :, domain] += 0.5
            rows[domain, :2] = 1.5 * np.eye(DIMENSIONS)[2 + 2 * domain :][:2]
        rows = rows.reshape(-1, DIMENSIONS)
        table = np.concatenate([np.zeros((1, DIMENSIONS)), rows])
        return cls(table.astype(np.float32), rng)

    def documents(self, domain, count):
        first = 1 + domain * (WORDS + 2)
        x = first + 2 + self.rng.integers(WORDS, size=(count, LENGTH))
        y = np.arange(count) % 2
        rows, places = np.arange(count), self.rng.integers(LENGTH - 1, size=count)
        x[rows, places] = first + y
        x[rows, places + 1] = first + 1 - y
        return Examples(torch.from_numpy(x), torch.from_numpy(y))

    def task(self, domain, count):
        splits = (self.documents(domain, n) for n in (count, 20, 300))
        return TaskData(*splits, classes=2)


def aggregate_query(strategy, state, learner, own, stage, data):
    answer = learner.answer_query(own, {}, stage, data)
    strategy.check_query_reply(state, answer)
    return strategy.aggregate_query(state, stage, {learner.context.client: answer})


def trained(strategy, state, learner, own, stage, data):
    """Return both halves' state after a round, and what came down in it."""
    client = learner.context.client
    received = strategy.configure_train(state, stage, client)
    own, update = learner.train(own, received, stage, data)
    strategy.check_update(state, update)
    return strategy.aggregate_train(state, stage, {client: update}), own, received


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_relevant_adapter_of_a_task_long_past_beats_the_last_one(seed):
    torch.set_num_threads(1)
    language = Language.drawn(seed)
    relevant, irrelevant = language.task(0, MANY), language.task(1, MANY)
    task = language.task(0, FEW)

    def learner(client, epochs):
        model = create_model(
            "kim-cnn",
            tasks=3,
            classes=2,
            single_head=False,
            seed=seed,
            table=language.table,
        )
        training = Training(epochs, batch_size=64, learning_rate=3e-3)
        place = ClientContext(client, seed, training)
        return ClientLearner(FedSeitParams(**SETTINGS), model, place)

    sit = FedSeit(FedSeitParams(knowledge="sit:1"), ServerContext(seed))
    other, new = learner(FOREIGN, epochs=15), learner(NEW, epochs=10)
    state = sit.init(snapshot(new.model, new.model.shared_names()))
    own = other.init()
    for number, data in enumerate((relevant, irrelevant)):
        stage = TaskStage(number + 1, number, starts_task=True, ends_task=True)
        state = aggregate_query(sit, state, other, own, stage, data)
        state, own, _ = trained(sit, state, other, own, stage, data)
    begins = TaskStage(3, 2, starts_task=True, ends_task=False)
    begun = aggregate_query(sit, state, new, new.init(), begins, task)
    scores = sit.diagnostics(begun, begins, {})["overlap"].values["1/2"]
    assert scores["0/0"] > 0.8
    assert scores["0/1"] < 0.5

    def accuracy(knowledge):
        """Return who was chosen, and the accuracy after two rounds."""
        strategy = FedSeit(FedSeitParams(knowledge=knowledge), ServerContext(seed))
        now, mine, received = trained(strategy, begun, new, new.init(), begins, task)
        ends = TaskStage(4, 2, starts_task=False, ends_task=True)
        _, mine, _ = trained(strategy, now, new, mine, ends, task)
        found = score(lambda x: new.predict(mine, {}, 2, x), task.test)
        return {g for g in received if g.startswith("adapters/")}, found.accuracy

    chosen, right = accuracy("sit:1")
    assert chosen == {"adapters/0/0"}
    last, wrong = accuracy("previous")
    assert last == {"adapters/0/1"}
    assert right > wrong + 0.15
