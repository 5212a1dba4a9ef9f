"""Teaching logits: the loss by hand, a toy model that learns, and tiny encoders."""

import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from encoders import inputs, model
from fakes import exact
from torch import nn

from fcl_flower.data.examples import PublicExamples
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.distillation import DistillationSet, distill, predict_logits
from fcl_flower.training.loop import Training
from fcl_flower.training.server_trainer import ServerTrainer
from fcl_flower.training.tensors import snapshot

TRAINING = Training(epochs=99, batch_size=50, learning_rate=0.02)


class Body(nn.Module):
    """Half of it is frozen; it notes in which mode it was called, and with how many."""

    calls: ClassVar[list[tuple[bool, int]]] = []

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(2, 4).requires_grad_(False)
        self.learned = nn.Linear(4, 4)

    def forward(self, x):
        self.calls.append((self.training, len(x)))
        return self.learned(torch.tanh(self.frozen(x)))


class Doubled(nn.Module):
    """Features are twice the inputs, times what is learned."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.two = nn.Parameter(torch.tensor(2.0), requires_grad=False)

    def forward(self, x):
        return x * self.scale * self.two


def made(body, features):
    return MultiHeadModel(
        body, features=features, input_shape=(2,), tasks=1, classes=3, single_head=True
    )


# ---- a lesson


@pytest.fixture
def toy():
    torch.manual_seed(0)
    Body.calls.clear()
    return made(Body(), 4)


def lesson(count=40, weight=0.0, classes=(0, 2)):
    x = torch.randn(count, 2, generator=torch.Generator().manual_seed(1))
    targets = torch.stack([x[:, 0], torch.full((count,), 1e6), x[:, 1]], 1)
    labels = 2 * (x[:, 0] < x[:, 1]).long()
    return DistillationSet(x, targets, torch.tensor(classes), labels, weight)


@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_the_loss_is_the_error_and_the_weighted_cross_entropy(toy, weight):
    given = lesson(count=5, weight=weight, classes=(2, 0))
    before = predict_logits(toy, given.x).tolist()

    found = distill(toy, given, TRAINING, 1, seed=0)

    errors, entropies = [], []
    for logits, targets, label in zip(
        before, given.targets.tolist(), given.labels.tolist(), strict=True
    ):
        errors += [(logits[c] - targets[c]) ** 2 for c in (0, 2)]
        total = math.exp(logits[0]) + math.exp(logits[2])
        entropies.append(-math.log(math.exp(logits[label]) / total))
    expected = sum(errors) / 10 + weight * sum(entropies) / 5
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_the_logits_that_count_are_learned_and_the_rest_stays(toy, weight):
    given = lesson(weight=weight)
    before = {name: values.clone() for name, values in toy.state_dict().items()}
    first = distill(toy, given, TRAINING, 1, seed=0)

    last = distill(toy, given, TRAINING, 200, seed=0)

    assert last < (0.9 if weight else 0.05) * first
    after = toy.state_dict()
    same = {name for name, values in before.items() if torch.equal(values, after[name])}
    assert same == {"body.frozen.weight", "body.frozen.bias"}
    # Class 1 has no sample, and does not count: no label speaks against it.
    moved = (before["heads.0.weight"] != after["heads.0.weight"]).any(1)
    assert moved.tolist() == [True, False, True]


def test_the_passes_are_those_asked_for_at_a_constant_rate(toy):
    impatient = replace(TRAINING, early_stopping_patience=1, lr_patience=1)
    distill(toy, lesson(count=6), impatient, 4, 0)
    assert Body.calls == [(True, 6)] * 4


def test_answers_are_of_evaluation_mode_and_come_in_order_by_parts(toy):
    x = torch.randn(7, 2)
    whole = toy.eval()(x, 0)
    toy.train()
    Body.calls.clear()

    found = predict_logits(toy, x, batch_size=3)

    torch.testing.assert_close(found, whole)
    assert Body.calls == [(False, 3), (False, 3), (False, 1)]
    assert not found.requires_grad
    assert predict_logits(toy, x[:0]).shape == (0, 3)


# ---- on the server


@pytest.fixture
def trainer():
    torch.manual_seed(0)
    x = torch.tensor([[1.0, 2.0], [0.0, -1.0], [3.0, 0.5]])
    public = PublicExamples(x, torch.tensor([2, -1, 0]), torch.tensor([0, 1, 2]))
    return ServerTrainer(made(Doubled(), 2), public, TRAINING, seed=0)


def tensors(scale=(1, 1), weight=((1, 0), (0, 1), (1, 1)), bias=(0, 0, 0)):
    return {
        "body.scale": np.array(scale, np.float32),
        "heads.0.weight": np.array(weight, np.float32),
        "heads.0.bias": np.array(bias, np.float32),
    }


def test_logits_are_those_of_the_given_tensors_on_the_chosen_samples(trainer):
    assert trainer.labels.tolist() == [2, -1, 0]
    assert trainer.classes.tolist() == [0, 1, 2]
    found = trainer.logits(tensors(scale=(3, 1), bias=(0, 0, 10)), np.array([2, 0, 2]))

    # Samples (3, 0.5) and (1, 2), by (6, 2): (18, 1) and (6, 4).
    assert found.tolist() == [[18, 1, 29], [6, 4, 20], [18, 1, 29]]


def test_logits_are_learned_and_the_start_stays(trainer):
    start, targets = tensors(), np.array([[1.0, 9e9, -1.0], [0.5, 9e9, 2.0]])
    before = exact({"": start})

    found = trainer.distill(start, np.array([0, 1]), targets, np.array([0, 2]), 800)

    assert exact({"": start}) == before
    assert found.keys() == start.keys()
    logits = trainer.logits(found, np.array([0, 1]))
    np.testing.assert_allclose(logits[:, [0, 2]], targets[:, [0, 2]], atol=0.05)
    # The same call gives the same, whatever came before.
    again = trainer.distill(start, np.array([0, 1]), targets, np.array([0, 2]), 800)
    assert exact({"": again}) == exact({"": found})


def test_labels_are_learned_where_every_chosen_sample_has_one(trainer):
    def found(chosen, weight):
        given = np.zeros((len(chosen), 3)), np.array([0, 2]), 3, weight
        return exact({"": trainer.distill(tensors(), np.array(chosen), *given)})

    assert found([0, 2], 1.0) != found([0, 2], 0.0)
    # Sample 1 is of no class that anybody has.
    assert found([0, 1, 2], 1.0) == found([0, 1, 2], 0.0)


@pytest.mark.parametrize(
    ("kind", "name"), [("bert", "enhanced-transformer"), ("vit", "enhanced-vit")]
)
def test_features_are_the_encoders_whatever_was_loaded(backbone, kind, name):
    network, x = model(backbone(kind), name), inputs(kind)
    expected = network.body.eval()(x).detach()  # fresh Enhancers change nothing
    public = PublicExamples(x, torch.tensor([0, 1]), torch.tensor([0, 1]))
    trainer = ServerTrainer(network, public, TRAINING, seed=0)
    rng = np.random.default_rng(0)
    learned = {
        key: rng.normal(size=values.shape).astype(np.float32)
        for key, values in snapshot(network, network.shared_names()).items()
    }

    logits = trainer.logits(learned, np.array([0, 1]))
    targets, classes = np.zeros_like(logits), np.array([0])
    trainer.distill(learned, np.array([1]), targets, classes, 1)

    np.testing.assert_allclose(trainer.features(), expected, atol=1e-5)
    assert not np.allclose(network.body(x).detach(), expected, atol=1e-2)


def test_there_may_be_no_public_data():
    none = torch.empty(0, dtype=torch.int64)
    public = PublicExamples(torch.empty(0, 0), none, none)
    trainer = ServerTrainer(nn.Identity(), public, TRAINING, seed=0)
    assert len(trainer.labels) == len(trainer.classes) == 0
