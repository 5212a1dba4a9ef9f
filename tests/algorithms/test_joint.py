"""Joint training: every task's data from the first round on."""

from collections import Counter

import pytest
import torch
from fakes import run_in_process, tiny

from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.data.examples import Examples, concat
from fcl_flower.data.registry import load_dataset
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve

GIVEN = {
    "strategy": "mtl",
    "dataset": "digits",
    "scenario": "classes",
    "head": "single",
    "tasks": 3,
}


@pytest.fixture
def watched(monkeypatch):
    """What every client trained on: (client, stage, data)."""
    calls, train = [], LocalTraining.train

    def watch(self, turn):
        calls.append((self.context.client, turn.stage, turn.data))
        return train(self, turn)

    monkeypatch.setattr(LocalTraining, "train", watch)
    return calls


@pytest.mark.run
@pytest.mark.parametrize("local_only", [False, True])
def test_every_round_has_the_data_of_all_tasks(tmp_path, watched, local_only):
    config = tiny(tmp_path, **GIVEN, local_only=local_only)
    run_in_process(config)

    run = Built(resolve(config))
    plan = run.scenario
    images = load_dataset("digits", run.data_root).train
    assert [(client, stage.task) for client, stage, _ in watched] == [
        (client, task) for task in range(3) for client in range(2)
    ]
    for client, stage, data in watched:
        for split in ("train", "valid"):
            expected = Counter(
                plan.labels.index(("digits", int(images.y[number])))
                for task in plan.clients[client]
                for number in getattr(task, split)
            )
            assert Counter(getattr(data, split).y.tolist()) == expected
        assert len(expected) == 6
        tested = set(data.test.y.tolist())
        classes = plan.clients[client][stage.task].classes
        assert tested == {plan.labels.index(("digits", label)) for label in classes}


def test_documents_of_all_tasks_are_padded_to_the_widest():
    parts = [
        Examples(torch.tensor([[1, 2]]), torch.tensor([0])),
        Examples(torch.empty(0, 9, dtype=torch.int64), torch.empty(0).long()),
        Examples(torch.tensor([[3, 4, 5]]), torch.tensor([1])),
    ]
    found = concat(parts)
    assert found.x.tolist() == [[1, 2, 0], [3, 4, 5]]
    assert found.y.tolist() == [0, 1]
    assert concat(parts[1:2]) is parts[1]
