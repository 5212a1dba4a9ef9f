"""Features that are computed once: the same, and never those of something else."""

import pytest
import torch
from torch import nn

from fcl_flower.algorithms.base import ClientContext, Params
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.feature_cache import FeatureCache, frozen_features
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import snapshot

pytestmark = pytest.mark.usefixtures("one_thread")


def body(seed=0, width=3):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 200), nn.Tanh(), nn.Linear(200, width)).eval()


class Counted:
    """Computes features with a body, and counts how often."""

    def __init__(self, network):
        self.network, self.calls = network, 0

    @torch.no_grad()
    def __call__(self, x):
        self.calls += len(x) > 1  # with one it only shows what it does
        return self.network(x)


def inputs(seed=0, count=5):
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


def test_the_same_inputs_are_computed_once():
    cache, network = FeatureCache(2**20), body()
    compute = Counted(network)
    first = cache.features(network, inputs(), compute)
    again = cache.features(body(), inputs(), compute)  # as another message makes it
    assert compute.calls == 1
    assert again is first
    assert torch.equal(first, network(inputs()))


@pytest.mark.parametrize(
    "other",
    [
        lambda: (body(seed=1), inputs()),
        lambda: (body(), inputs(seed=1)),
        lambda: (body(), inputs(count=4)),
        lambda: (body(), inputs().double()),
        lambda: (nn.Sequential(*body()[:-1]).eval(), inputs()),
        lambda: (nn.Sequential(*body(), nn.ReLU()).eval(), inputs()),
    ],
)
def test_other_weights_or_inputs_are_computed_anew(other):
    cache, network = FeatureCache(2**20), body()
    cache.features(network, inputs(), network)
    changed, x = other()
    compute = Counted(changed.to(x.dtype))
    cache.features(changed, x, compute)
    assert compute.calls == 1


def test_one_changed_weight_of_a_small_tensor_is_noticed():
    cache, network = FeatureCache(2**20), body()
    cache.features(network, inputs(), network)
    network[0].bias.data[0] += 1
    compute = Counted(network)
    assert torch.equal(cache.features(network, inputs(), compute), network(inputs()))
    assert compute.calls == 1


def test_a_setting_that_no_weight_shows_is_noticed():
    cache, network = FeatureCache(2**20), body()
    cache.features(network, inputs(), network)
    found = cache.features(network, inputs(), lambda x: 2 * network(x))
    torch.testing.assert_close(found, 2 * network(inputs()))


def test_no_inputs_have_no_features():
    network = body()
    found = FeatureCache(2**20).features(network, inputs(count=0), network)
    assert found.shape == (0, 3)


def test_what_is_used_least_leaves_when_memory_is_full():
    network = body()
    cache = FeatureCache(2 * 5 * 3 * 4)  # two sets of features
    compute = Counted(network)
    for seed in (0, 1, 0, 2):  # 1 is the one that was not used again
        cache.features(network, inputs(seed), compute)
    assert compute.calls == 3
    cache.features(network, inputs(0), compute)
    assert compute.calls == 3
    cache.features(network, inputs(1), compute)
    assert compute.calls == 4


def test_what_does_not_fit_at_all_is_not_held():
    cache, network = FeatureCache(8), body()
    compute = Counted(network)
    for _ in range(2):
        assert torch.equal(
            cache.features(network, inputs(), compute), network(inputs())
        )
    assert compute.calls == 2


class HalfFrozen(nn.Module):
    """A frozen layer in front of a trained one."""

    def __init__(self):
        super().__init__()
        self.front, self.back = body(seed=0), nn.Linear(3, 2)
        self.front.requires_grad_(False)
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


def test_a_body_without_frozen_parts_gives_the_inputs_themselves():
    x = inputs()
    assert frozen_features(model(nn.Linear(4, 2)), x) is x
    assert frozen_features(model(HalfFrozen()), x[:0]).shape == (0, 3)


def test_a_frozen_part_meets_test_samples_once_and_answers_as_without_a_cache():
    half = HalfFrozen()
    half.back = nn.Linear(3, 3)
    network, x = model(half), inputs(seed=78)
    learner = LocalTraining(Params(), network, ClientContext(0, 0, Training(1, 4, 0.1)))
    received = {"base": snapshot(network, network.shared_names())}
    for _ in range(2):
        logits = learner.predict({}, received, 0, x)
        assert torch.equal(logits, network(x, 0))
    assert half.calls == 1
