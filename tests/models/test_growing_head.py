"""A single head that grows with the classes: later ones are not there yet."""

import pytest
import torch
from fakes import rounds_of, run_in_process, tiny

from fcl_flower.models.heads import CLOSED, MultiHeadModel
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve

# Closed forms know no class that nobody has sent anything of, grown or not.
CLASS_INCREMENTAL = {"name": "class-incremental", "split": "iid"}


def network(labels=()):
    torch.manual_seed(0)
    made = MultiHeadModel(
        torch.nn.Flatten(),
        features=3,
        input_shape=(3,),
        tasks=2,
        classes=5,
        single_head=True,
    )
    if labels:
        made.restrict_head(labels)
    return made


def small(folder, **values):
    known = {"dataset": "digits", "model": "small", "strategy": "fedavg"}
    known |= {"public_fraction": 0.0, "max_train_per_class": 12}
    known |= {"scenario": CLASS_INCREMENTAL, "max_test_per_class": 4, "head": "single"}
    return tiny(folder, **{**known, **values})


def test_a_grown_head_answers_as_one_that_has_these_rows_alone():
    x, whole, grown = torch.randn(7, 3), network(), network([1, 3, 4])
    found = grown(x, 0)
    assert torch.equal(found[:, [1, 3, 4]], whole(x, 0)[:, [1, 3, 4]])
    assert (found[:, [0, 2]] == CLOSED).all()
    assert (found.softmax(1)[:, [0, 2]] == 0).all()


def test_the_loss_and_its_gradients_are_those_of_the_classes_so_far():
    x, y = torch.randn(7, 3), torch.tensor([1, 3, 4, 1, 3, 4, 4])
    grown, whole = network([1, 3, 4]), network()
    loss = torch.nn.functional.cross_entropy(grown(x, 0), y)
    loss.backward()
    place = torch.tensor([-1, 0, -1, 1, 2])
    oracle = torch.nn.functional.cross_entropy(whole(x, 0)[:, [1, 3, 4]], place[y])
    oracle.backward()
    assert loss.item() == pytest.approx(oracle.item())
    found, expected = grown.heads[0].weight.grad, whole.heads[0].weight.grad
    torch.testing.assert_close(found, expected)
    assert not found[[0, 2]].any()


def test_the_classes_until_a_task_are_those_of_all_clients(tmp_path):
    run = resolve(small(tmp_path, tasks=3, classes_per_task=3))
    plan = Built(run).scenario
    for task in range(3):
        found = [plan.labels[index] for index in plan.labels_until(task)]
        assert found == sorted(
            {
                ("digits", label)
                for stream in plan.clients
                for one in stream[: task + 1]
                for label in one.classes
            }
        )
    assert plan.labels_until(2) == tuple(range(9))


@pytest.mark.run
def test_each_task_opens_its_classes_and_a_run_without_the_setting_none(
    tmp_path, monkeypatch
):
    opened = []
    grow = MultiHeadModel.restrict_head

    def noted(self, labels):
        opened.append(tuple(labels))
        grow(self, labels)

    monkeypatch.setattr(MultiHeadModel, "restrict_head", noted)
    run_in_process(small(tmp_path / "usual"))
    assert not opened
    config = small(tmp_path / "grown", growing_head=True)
    run_in_process(config)
    plan = Built(resolve(config)).scenario
    assert {*opened} == {plan.labels_until(0), plan.labels_until(1)}
    assert opened[0] == plan.labels_until(0)
    usual, grown = (rounds_of(tmp_path / kind) for kind in ("usual", "grown"))
    # Untrained, the loss is the logarithm of the number of classes: four, or two.
    assert usual[0]["loss"] > 1.2 > 0.8 > grown[0]["loss"]
