"""Teaching logits: the loss by hand, and a toy model that learns."""

import math
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import nn

from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.distillation import (
    DistillationSet,
    distill,
    predict_logits,
)
from fcl_flower.training.loop import Training

CLASSES = 3


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


@pytest.fixture
def toy():
    torch.manual_seed(0)
    Body.calls.clear()
    return MultiHeadModel(
        Body(), features=4, input_shape=(2,), tasks=1, classes=CLASSES, single_head=True
    )


TRAINING = Training(epochs=99, batch_size=50, learning_rate=0.02)


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


def test_the_logits_that_count_are_learned_and_frozen_parts_stay(toy):
    given = lesson()
    before = {name: values.clone() for name, values in toy.state_dict().items()}
    first = distill(toy, given, TRAINING, 1, seed=0)

    last = distill(toy, given, TRAINING, 200, seed=0)

    assert last < 0.05 * first
    found = predict_logits(toy, given.x)[:, [0, 2]]
    assert float((found - given.x).square().mean()) < 0.05 * first
    after = toy.state_dict()
    same = {name for name, values in before.items() if torch.equal(values, after[name])}
    assert same == {"body.frozen.weight", "body.frozen.bias"}
    # The row of the class that does not count is not moved either.
    assert torch.equal(before["heads.0.weight"][1], after["heads.0.weight"][1])


def test_a_label_speaks_only_against_classes_that_occur(toy):
    """Class 1 has no sample, and does not count for the squared error either."""
    before = toy.heads[0].weight.detach().clone()

    distill(toy, lesson(weight=1.0), TRAINING, 3, seed=0)

    moved = (toy.heads[0].weight.detach() != before).any(1)
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
    assert predict_logits(toy, x[:0]).shape == (0, CLASSES)
