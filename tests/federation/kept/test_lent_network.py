"""A network that is lent again and again is always as it was at first."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from fcl_flower.federation.network_pool import NetworkPool
from fcl_flower.models.heads import MultiHeadModel


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.5)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.width, self.sizes, self.act = 4, (3, 4), torch.tanh

    def forward(self, x):
        return self.act(self.frozen(self.norm(self.dropout(self.first(x)))))


def network(body=None):
    torch.manual_seed(3)
    return MultiHeadModel(
        body or Body(),
        features=4,
        input_shape=(3,),
        tasks=2,
        classes=2,
        single_head=False,
    )


def parts_of(model):
    """Return all that tells how a network stands."""
    return (
        {name: tensor.tolist() for name, tensor in model.state_dict().items()},
        [(n, p.requires_grad, p.grad, p.dtype) for n, p in model.named_parameters()],
        [(n, type(m), m.training) for n, m in model.named_modules()],
        (model.body.width, model.body.sizes, model.body.act, model.body.dropout.p),
        [head.closed for head in model.heads],
        [sorted(vars(module)) for module in model.modules()],
    )


def train(model):
    optimizer = torch.optim.Adam(p for p in model.parameters() if p.requires_grad)
    model.train()
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 3), 0).square().sum().backward()
        optimizer.step()


def fill(model):
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if "frozen" not in name:  # shared: nobody trains them
                tensor.fill_(7)


def set_attributes(model):
    model.body.width, model.body.sizes, model.body.act = 9, (1,), torch.relu
    model.body.dropout.p = 0.0
    model.note = ["of a learner"]


UNDONE = {
    "training": train,
    "values": fill,
    "evaluation": lambda model: model.eval(),
    "a mode of one part": lambda model: model.body.norm.eval(),
    "what is frozen": lambda model: model.requires_grad_(False),
    "what is trained": lambda model: model.requires_grad_(True),
    "closed logits": lambda model: model.heads[1].__setattr__(
        "closed", torch.tensor([True, False])
    ),
    "attributes": set_attributes,
}
KEPT_OUT = {
    "a layer more": lambda model: model.body.add_module("more", nn.Linear(2, 2)),
    "another layer": lambda model: setattr(model.body, "first", nn.Linear(3, 4)),
    "another head": lambda model: model.heads.__setitem__(0, nn.Linear(4, 2)),
    "a head less": lambda model: model.heads.pop(1),
    "the order of layers": lambda model: model.body._modules.update(
        first=model.body._modules.pop("first")
    ),
    "another parameter": lambda model: setattr(
        model.body.first, "weight", nn.Parameter(torch.zeros(4, 3))
    ),
    "a buffer more": lambda model: model.register_buffer("more", torch.zeros(2)),
    "another buffer": lambda model: setattr(
        model.body.norm, "running_mean", torch.ones(4)
    ),
    "another precision": lambda model: model.heads.double(),
    "other memory": lambda model: setattr(
        model.body.first.weight, "data", torch.ones(4, 3)
    ),
    "another layout": lambda model: setattr(
        model.body.first.weight, "data", model.body.first.weight.data.view(3, 4).T
    ),
    "a hook on a module": lambda model: model.body.register_forward_hook(
        lambda *given: None
    ),
    "a hook on a tensor": lambda model: model.body.first.weight.register_hook(
        lambda grad: grad * 2
    ),
    "a hook behind a gradient": (
        lambda model: model.body.first.weight.register_post_accumulate_grad_hook(
            lambda tensor: None
        )
    ),
    "another form of weights": lambda model: parametrizations.weight_norm(
        model.body.first
    ),
}


@pytest.mark.parametrize("deed", UNDONE.values(), ids=UNDONE.keys())
def test_what_a_learner_usually_does_is_undone_in_place(deed):
    lent = NetworkPool(network())
    wanted = parts_of(network())
    first = lent.get()
    assert parts_of(first) == wanted
    deed(first)
    assert parts_of(first) != wanted

    again = lent.get()

    assert again is first
    assert parts_of(again) == wanted


@pytest.mark.parametrize("deed", KEPT_OUT.values(), ids=KEPT_OUT.keys())
def test_a_network_that_was_rebuilt_is_lent_to_nobody_else(deed):
    lent = NetworkPool(network())
    first = lent.get()
    deed(first)

    again = lent.get()

    assert again is not first
    assert parts_of(again) == parts_of(network())
    train(again)
    assert lent.get() is again, "the copy is lent in its turn"
    assert parts_of(again) == parts_of(network())


@pytest.mark.parametrize("name", ["a list", "a tensor", "a dictionary"])
def test_attributes_that_cannot_be_compared_ask_for_a_copy_each_time(name):
    kinds = {"a list": [1], "a tensor": torch.ones(2), "a dictionary": {"a": 1}}
    body = Body()
    body.kept = kinds[name]
    lent = NetworkPool(network(body))
    first = lent.get()

    again = lent.get()

    assert again is not first
    assert again.body.kept is not first.body.kept


def test_training_from_a_lent_network_is_that_from_a_fresh_one():
    lent = NetworkPool(network())
    for deed in UNDONE.values():
        deed(lent.get())
    found, fresh = lent.get(), network()

    for model in (found, fresh):
        torch.manual_seed(1)
        train(model)

    assert parts_of(found)[0] == parts_of(fresh)[0]


def test_frozen_weights_are_those_of_the_first_network():
    initial = network()
    lent = NetworkPool(initial)

    assert lent.get().body.frozen.weight is initial.body.frozen.weight
    assert lent.get().body.first.weight is not initial.body.first.weight


def test_threads_that_train_at_the_same_time_have_a_network_each():
    lent = NetworkPool(network())
    first = lent.get()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(lent.get).result()
        fill(other)
        again = pool.submit(lent.get).result()
    assert other is again
    assert other is not first
    assert lent.get() is first
    assert parts_of(again) == parts_of(first)
