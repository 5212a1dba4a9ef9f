"""Features that are computed once: the same, and never those of something else."""

import pytest
import torch
from torch import nn

from fcl_flower.algorithms.base import ClientContext, Params
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.feature_cache import (
    FeatureCache,
    frozen_features,
    memory,
    share,
)
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import snapshot

pytestmark = pytest.mark.usefixtures("one_thread")


def body(seed=0, changed=0.0):
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(4, 200), nn.Tanh(), nn.Linear(200, 3)).eval()
    network[0].bias.data[0] += changed
    return network


def inputs(seed=0, count=5):
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


class Cache(FeatureCache):
    """Counts what is computed; with one input it only shows what it does."""

    calls = 0

    @torch.no_grad()
    def of(self, network, x, factor=1):
        def compute(x):
            self.calls += len(x) > 1
            return factor * network(x)

        return self.features(network, x, compute)


def test_the_same_inputs_are_computed_once():
    cache = Cache(2**20)
    first = cache.of(body(), inputs())
    again = cache.of(body(), inputs())  # as another message makes it
    assert cache.calls == 1
    assert again is first
    assert torch.equal(first, body()(inputs()))
    assert cache.of(body(), inputs(count=0)).shape == (0, 3)


@pytest.mark.parametrize(
    "other",
    [
        lambda: (body(seed=1), inputs()),
        lambda: (body(changed=1.0), inputs()),
        lambda: (body(), inputs(seed=1)),
        lambda: (body(), inputs(count=4)),
        lambda: (body().double(), inputs().double()),
        lambda: (nn.Sequential(*body()[:-1]).eval(), inputs()),
        lambda: (nn.Sequential(*body(), nn.ReLU()).eval(), inputs()),
        lambda: (body(), inputs(), 2),  # a setting that no weight shows
    ],
)
def test_other_weights_inputs_or_settings_are_computed_anew(other):
    cache, (network, x, *factor) = Cache(2**20), other()
    cache.of(body(), inputs())
    found = cache.of(network, x, *factor)
    assert cache.calls == 2
    assert torch.equal(found, sum(factor or [1]) * network(x))


def test_what_is_used_least_leaves_when_memory_is_full():
    network, cache = body(), Cache(2 * 5 * 3 * 4)  # two sets of features
    for seed in (0, 1, 0, 2):  # 1 is the one that was not used again
        cache.of(network, inputs(seed))
    assert cache.calls == 3
    cache.of(network, inputs(0))
    assert cache.calls == 3
    cache.of(network, inputs(1))
    assert cache.calls == 4
    nothing = Cache(8)
    for _ in range(2):
        assert torch.equal(nothing.of(network, inputs()), network(inputs()))
    assert nothing.calls == 2


class HalfFrozen(nn.Module):
    """A frozen layer in front of a trained one."""

    def __init__(self):
        super().__init__()
        self.front, self.back = body().requires_grad_(False), nn.Linear(3, 3)
        self.calls = 0

    def frozen_features(self, x):
        self.calls += len(x) > 1
        return self.front(x)

    def forward(self, x):
        return self.back(x if x.shape[1] == 3 else self.front(x))


def model(of_body):
    return MultiHeadModel(
        of_body, features=3, input_shape=(4,), tasks=1, classes=2, single_head=True
    )


def test_what_is_trained_behind_frozen_features_does_not_make_them_others():
    half = HalfFrozen()
    network, x = model(half), inputs(seed=77)
    first = frozen_features(network, x)
    with torch.no_grad():
        half.back.weight += 1
    assert frozen_features(network, x) is first
    assert half.calls == 1
    with torch.no_grad():
        half.front[0].weight += 1
    assert not torch.equal(frozen_features(network, x), first)
    assert half.calls == 2
    assert frozen_features(network, x[:0]).shape == (0, 3)
    assert frozen_features(model(nn.Linear(4, 2)), x) is x


def test_a_frozen_part_meets_test_samples_once_and_answers_as_without_a_cache():
    half = HalfFrozen()
    network, x = model(half), inputs(seed=78)
    learner = LocalTraining(Params(), network, ClientContext(0, 0, Training(1, 4, 0.1)))
    received = {"base": snapshot(network, network.shared_names())}
    for _ in range(2):
        logits = learner.predict({}, received, 0, x)
        assert torch.equal(logits, network(x, 0))
    assert half.calls == 1


def test_a_process_for_each_core_shares_an_eighth_of_the_memory():
    assert share(2**37, 16) == 2**30
    assert share(2**31, 8) == 2**28, "as many as an edge device can spare"


def test_the_memory_is_that_of_the_container(tmp_path):
    limit, machine = tmp_path / "memory.max", memory(tmp_path / "none")
    assert machine > 2**28
    for text, expected in (("max\n", machine), ("4096\n", 4096), (f"{2**60}", machine)):
        limit.write_text(text)
        assert memory(limit) == expected
