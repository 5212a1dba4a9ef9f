"""A network that is handed out again and again is always as it was at first."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.rounds.client import NetworkPool


class Foreign(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x):
        return self.frozen(self.norm(self.first(x)))


class Ours(Foreign):
    pass


Ours.__module__ = "fcl_flower.models.of_a_test"


def network(body=Ours):
    torch.manual_seed(3)
    return MultiHeadModel(
        body(), features=4, input_shape=(3,), tasks=2, classes=2, single_head=False
    )


def parts_of(model):
    """Return all that tells how a network stands."""
    return (
        {name: tensor.tolist() for name, tensor in model.state_dict().items()},
        [(n, p.requires_grad, p.grad, p.dtype) for n, p in model.named_parameters()],
        [(n, type(m), m.training) for n, m in model.named_modules()],
        [getattr(head, "closed", None) for head in model.heads],
    )


def train(model):
    optimizer = torch.optim.Adam(p for p in model.parameters() if p.requires_grad)
    model.train()
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 3), 0).square().sum().backward()
        optimizer.step()


def close(model):
    model.heads[1].closed = torch.tensor([True, False])


UNDONE = {
    "training": train,
    "evaluation": lambda model: model.eval(),
    "a mode of one part": lambda model: model.body.norm.eval(),
    "what is frozen": lambda model: model.requires_grad_(False),
    "what is trained": lambda model: model.requires_grad_(True),
    "closed logits": close,
}
REBUILT = {
    "a layer more": lambda model: model.body.add_module("more", nn.Linear(2, 2)),
    "another head": lambda model: model.heads.__setitem__(0, nn.Linear(4, 2)),
    "a head less": lambda model: model.heads.pop(1),
    "a buffer more": lambda model: model.register_buffer("more", torch.zeros(2)),
    "another precision": lambda model: model.heads.double(),
    "another layout": lambda model: setattr(
        model.body.first.weight, "data", model.body.first.weight.data.view(3, 4).T
    ),
    "another form of weights": lambda model: parametrizations.weight_norm(
        model.body.first
    ),
}


@pytest.mark.parametrize("deed", UNDONE.values(), ids=UNDONE.keys())
def test_what_a_learner_does_is_undone_in_place(deed):
    pool = NetworkPool(network())
    first = pool.get()
    deed(first)
    assert parts_of(first) != parts_of(network())

    assert pool.get() is first
    assert parts_of(first) == parts_of(network())


@pytest.mark.parametrize("deed", REBUILT.values(), ids=REBUILT.keys())
def test_a_network_that_was_rebuilt_is_handed_to_nobody_else(deed):
    pool = NetworkPool(network())
    first = pool.get()
    deed(first)

    again = pool.get()

    assert again is not first
    assert parts_of(again) == parts_of(network())
    assert pool.get() is again


def test_a_network_of_somebody_else_is_copied_each_time():
    pool = NetworkPool(network(Foreign))
    first = pool.get()
    first.body.seen = [1]

    again = pool.get()

    assert again is not first
    assert not hasattr(again.body, "seen")


def test_frozen_weights_are_those_of_the_first_network():
    initial = network()
    pool = NetworkPool(initial)

    assert pool.get().body.frozen.weight is initial.body.frozen.weight
    assert pool.get().body.first.weight is not initial.body.first.weight


def test_threads_that_train_at_the_same_time_have_a_network_each():
    pool = NetworkPool(network())
    first = pool.get()
    with ThreadPoolExecutor(1) as executor:
        other = executor.submit(pool.get).result()
        train(other)
    assert other is not first
    assert pool.get() is first
    assert parts_of(first) == parts_of(network())
