"""Unbalanced classes: weights against replicated samples, batches against counts."""

import numpy as np
import pytest
import torch
from every_method import smallest
from fakes import rounds_of, run_in_process, summary_of, tiny
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional

from fcl_flower.algorithms.base import Turn
from fcl_flower.algorithms.registry import algorithm, algorithms
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import Examples, TaskData, task_data
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve
from fcl_flower.training.balance import (
    balanced_order,
    class_weights,
    mean_cross_entropy,
)
from fcl_flower.training.loop import Fit, Training, fit, score
from fcl_flower.training.tensors import snapshot

RARE, COMMON = 2, 8
ONLY = TaskStage(round=1, task=0, starts_task=True, ends_task=True)
SERVED = {name: algorithm(name).load_client().balances for name in sorted(algorithms())}
WEIGHED = [name for name, served in SERVED.items() if "weights" in served]

DRAWS = ("fedseit", "idbr")
"""Methods, or their networks, that draw at random for each sample of a batch."""


def seeded(seed):
    return torch.Generator().manual_seed(seed)


# ---- weights


def test_weights_are_those_of_scikit_learn_and_one_on_average():
    labels = torch.tensor([0] * 7 + [2] * 2 + [3])
    found = class_weights(labels, 5)
    known = compute_class_weight(
        "balanced", classes=np.array([0, 2, 3]), y=labels.numpy()
    )
    np.testing.assert_allclose(found[[0, 2, 3]], known, rtol=1e-6)
    assert found[labels].mean() == pytest.approx(1)
    assert found[1] == found[4] == 1


def test_without_weights_it_is_torchs_mean_bit_by_bit():
    logits, labels = torch.randn(9, 3, generator=seeded(0)), torch.arange(9) % 3
    expected = functional.cross_entropy(logits, labels)
    assert mean_cross_entropy(logits, labels).equal(expected)


def unbalanced(examples):
    """Return few samples of one of two classes, and more of the other."""
    rows = [
        (examples.y == label).nonzero()[:count, 0]
        for label, count in zip(torch.unique(examples.y), (RARE, COMMON), strict=True)
    ]
    assert [*map(len, rows)] == [RARE, COMMON]
    return Examples(*(part[torch.cat(rows)] for part in examples))


def replicated(examples):
    """Return the examples with the rare class as often as the other one."""
    times = torch.where(examples.y == examples.y.min(), COMMON // RARE, 1)
    return Examples(*(part.repeat_interleave(times, 0) for part in examples))


def third_loss(folder, name):
    """Return a function of a balance and training samples: the loss of a third step.

    Beside it, samples of two classes, of one fewer than of the other.
    """
    given = {"scenario.name": "overlapped", "batch_size": 100, "epochs": 3}
    given |= {**smallest(name, folder), "lr_patience": 0, "tasks": 1}
    if name in DRAWS:
        given["scenario.name"] = "text"
    if name == "lander":  # has a term that is no mean over samples
        given["strategy.anchor_weight"] = 0.0
    made = Built(resolve(tiny(folder, **given)))
    whole = task_data(made.scenario, 0, 0, made.inputs)

    def loss(balance, train):
        run = Built(resolve(tiny(folder, **given, balance=balance)))
        learner, network = run.learner(0), run.model()
        server = run.strategy(network)
        state = server.init(snapshot(network, network.shared_names()))
        received = server.send(state, ONLY, 0)
        data = TaskData(train, whole.valid, whole.test, whole.classes)
        _, update = learner.train(Turn(learner.init(), received, ONLY, data))
        return update.metrics["loss"]

    return loss, unbalanced(whole.train)


@pytest.mark.parametrize("name", [n for n in WEIGHED if n not in DRAWS])
def test_weights_are_the_same_as_replicated_samples(tmp_path, name):
    loss, few = third_loss(tmp_path, name)
    weighted = loss("weights", few)
    assert weighted == pytest.approx(loss("none", replicated(few)), rel=2e-4)
    assert weighted != pytest.approx(loss("none", few), rel=2e-3)


@pytest.mark.parametrize("name", DRAWS)
def test_weights_of_classes_of_one_size_change_nothing(tmp_path, name):
    loss, few = third_loss(tmp_path, name)
    alike = replicated(few)
    assert loss("weights", alike) == pytest.approx(loss("none", alike), rel=1e-5)
    assert loss("weights", few) != pytest.approx(loss("none", few), rel=2e-3)


# ---- batches


def test_batches_have_as_many_of_each_class():
    labels = torch.tensor([0] * 90 + [4] * 8 + [7] * 2)
    order = balanced_order(labels, seeded(3))
    assert len(order) == len(labels)
    for batch in labels[order].split(30)[:3]:
        assert torch.bincount(batch)[[0, 4, 7]].tolist() == [10, 10, 10]
    # 34 turns of three classes: all of a small one come, as often as each other.
    seen = torch.bincount(order, minlength=100)
    assert seen[:90].max() == 1
    assert {*seen[90:98].tolist()} <= {4, 5}
    assert {*seen[98:].tolist()} <= {16, 17}


def test_any_batch_has_in_expectation_as_many_of_each_class():
    labels = torch.tensor([0] * 9 + [1] * 3 + [2])
    found = torch.zeros(3)
    for seed in range(3000):
        drawn = labels[balanced_order(labels, seeded(seed))[3:5]]
        found += torch.bincount(drawn, minlength=3)
    # Two draws of an epoch, a third of each: 2000 with a deviation below 37.
    np.testing.assert_allclose(found, 2000, atol=150)


@pytest.mark.parametrize("labels", [[], [5], [1, 1, 1], [0, 1, 2, 3]])
def test_an_epoch_has_as_many_samples_as_there_are(labels):
    order = balanced_order(torch.tensor(labels, dtype=torch.int64), seeded(0))
    # Where each class has as many, each sample comes once.
    assert sorted(order.tolist()) == [*range(len(labels))]


def epochs_of(client=1, number=2, seed=3, **given):
    """Return the rows of two epochs, step by step."""
    seen = []
    leaf = torch.nn.Parameter(torch.zeros(1))

    def objective(rows, labels):
        seen.append(rows.tolist())
        return leaf.sum()

    labels = torch.tensor([0] * 20 + [1] * 3)
    training = {"epochs": 2, "batch_size": 5, "learning_rate": 0.1, "lr_patience": 0}
    usual = {"labelled": True, "parameters": {"leaf": leaf}, "objective": objective}
    job = Fit(
        examples=Examples(torch.arange(len(labels)), labels),
        training=Training(**training, balance=given.pop("balance", "batches")),
        client=client,
        round=number,
        seed=seed,
        **usual | given,
    )
    fit(job)
    return seen


def test_batches_are_drawn_by_seed_client_round_and_epoch():
    found = epochs_of()
    expected = []
    for epoch in range(2):
        draw = seeded(derive(3, "shuffle", 1, 2, epoch))
        order = balanced_order(torch.tensor([0] * 20 + [1] * 3), draw)
        expected += order.split(5)
    assert found == [rows.tolist() for rows in expected]
    assert epochs_of() == found
    for other in ({"client": 0}, {"number": 1}, {"seed": 4}):
        assert epochs_of(**other) != found


@pytest.mark.parametrize("given", [{"labelled": False}, {"balance": "weights"}])
def test_else_each_sample_comes_once_in_an_epoch(given):
    found = epochs_of(**given)
    assert sorted(row for batch in found[:5] for row in batch) == [*range(23)]
    assert found == epochs_of(labelled=False, balance="none")


# ---- validation


def test_a_balanced_loss_is_the_mean_of_the_classes():
    logits = torch.randn(12, 4, generator=seeded(1))
    labels = torch.tensor([0] * 9 + [2] * 3)
    held = Examples(torch.arange(12), labels)
    found = score(lambda rows: logits[rows], held, balanced=True)
    each = functional.cross_entropy(logits, labels, reduction="none")
    expected = (each[:9].mean() + each[9:].mean()) / 2
    assert found.loss == pytest.approx(float(expected), rel=1e-6)
    plain = score(lambda rows: logits[rows], held)
    assert plain.loss == pytest.approx(float(each.mean()), rel=1e-6)
    assert found.accuracy == plain.accuracy


# ---- runs


@pytest.mark.run
@pytest.mark.parametrize("balance", ["weights", "batches"])
def test_a_run_repeats_and_ends_with_other_numbers(tmp_path, balance):
    ends = []
    for value in (balance, balance, "none"):
        folder = tmp_path / f"run-{len(ends)}"
        run_in_process(tiny(folder, strategy="fedavg", balance=value))
        found = summary_of(folder)
        assert found["training"]["balance"] == value
        ends.append([row["loss"] for row in rounds_of(folder)])
    assert ends[0] == ends[1] != ends[2]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("analytic", "weights", "'none' for analytic, whose clients balance"),
        ("analytic", "batches", "'none' for analytic, whose clients balance"),
        ("glfc", "weights", "'none' or 'batches' for glfc"),
        ("fedcbdr", "weights", "'none' or 'batches' for fedcbdr"),
    ],
)
def test_a_method_that_does_not_balance_so_refuses_it(name, value, expected):
    config = RunConfig.from_settings(strategy=name, balance=value)
    with pytest.raises(ConfigError, match=f"training.balance: .*{expected}"):
        resolve(config)


def test_all_other_methods_balance_in_both_ways():
    partly = {name for name, served in SERVED.items() if len(served) < 2}
    assert partly == {"analytic", "disco", "glfc", "fedcbdr"}


@pytest.mark.parametrize("balance", ["weights", "batches"])
def test_frequencies_tell_of_single_examples(balance):
    private = {"unit": "example", "noise_multiplier": 1.0}
    with pytest.raises(ConfigError, match=r"balance.*'none' with privacy.unit"):
        RunConfig.from_settings(privacy=private, balance=balance)
