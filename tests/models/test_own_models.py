"""Models of a user's own: a module, a callable, or an installed package."""

import pytest
import torch
from packages import install
from torch import nn

from fcl_flower.core.errors import ConfigError, ContractError
from fcl_flower.models.convolutional.lenet import LeNetParams
from fcl_flower.models.registry import MODELS, create_model, from_module

SHAPE = (1, 4, 4)


def small():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.BatchNorm1d(5))


def build(entry, **changes):
    settings = {"tasks": 2, "classes": 3, "single_head": False, "seed": 1}
    with MODELS.registered("mine", entry):
        return create_model("mine", **{**settings, **changes})


def weights(model):
    return model.body[1].weight


def test_the_width_of_a_module_is_found_by_running_it():
    entry = from_module(small, SHAPE)
    assert (entry.features, entry.modality, entry.input_shape) == (5, "images", SHAPE)
    model = build(entry)
    assert model(torch.zeros(2, *SHAPE), 1).shape == (2, 3)
    assert model.heads[0].in_features == 5


def test_the_runs_seed_initialises_what_a_callable_makes():
    entry = from_module(small, SHAPE)
    assert torch.equal(weights(build(entry)), weights(build(entry)))
    assert not torch.equal(weights(build(entry)), weights(build(entry, seed=2)))


def test_every_client_starts_from_a_copy_of_a_module():
    module = small()
    entry = from_module(module, SHAPE)
    one, other = build(entry), build(entry, seed=2)
    assert torch.equal(weights(one), module[1].weight)
    assert torch.equal(weights(one), weights(other))
    with torch.no_grad():
        weights(one).zero_()
    assert module[1].weight.any()
    assert weights(other).any()


def test_parts_that_were_loaded_for_evaluation_are_trained_and_walked_over_once():
    walks = []

    class Loaded(nn.Sequential):
        def train(self, mode=True):
            walks.append(mode)
            return super().train(mode)

    model = build(from_module(lambda: Loaded(small().eval()), SHAPE))
    walks.clear()
    assert not model.body[0].training
    for mode in (True, True, False, False, True):
        model.train(mode)
        assert {part.training for part in model.modules()} == {mode}
    assert walks == [True, False, True]


def test_trying_a_module_leaves_no_trace():
    module = small()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    from_module(module, SHAPE)
    from_module(small, SHAPE)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert module.training
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key])


def test_a_table_needs_as_many_columns_as_the_module_takes():
    entry = from_module(lambda: nn.Linear(6, 4), (6,))
    assert entry.modality == "tabular"
    assert build(entry, columns=6)(torch.zeros(2, 6), 0).shape == (2, 3)
    with pytest.raises(ConfigError, match="model: got 'mine', expected one for 7 col"):
        build(entry, columns=7)


@pytest.mark.parametrize("shape", [(), (0,), (-1,), (1, 2, 3, 4), (3, 0)])
def test_a_shape_that_no_data_have_is_refused(shape):
    with pytest.raises(ConfigError, match=r"input_shape: got \(.*expected \(C, H, W"):
        from_module(small, shape)


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (nn.Identity, r"Identity: got torch.Size\(\[2, 1, 4, 4\]\) for 2 inputs"),
        (nn.Sequential(nn.Flatten(0)), "Sequential: got .* expected .2, features"),
        (dict, "made a dict, no nn.Module"),
    ],
)
def test_what_returns_no_features_is_refused(module, sentence):
    with pytest.raises(ContractError, match=sentence):
        from_module(module, SHAPE)


def test_settings_of_another_model_are_refused():
    with pytest.raises(ContractError, match="mine: got LeNetParams, expected Params"):
        build(from_module(small, SHAPE), params=LeNetParams())
    assert build(from_module(small, SHAPE), params=None)


def test_a_model_can_live_in_another_package(monkeypatch, tmp_path):
    source = """
from pydantic import Field
from torch import nn
from fcl_flower.config.params import Params
from fcl_flower.models.registry import ModelEntry

class WideParams(Params):
    width: int = Field(3, ge=1)

class Wide(nn.Sequential):
    def __init__(self, params):
        self.features = 10 * params.width
        super().__init__(nn.Flatten(), nn.Linear(16, self.features))

wide = ModelEntry("their_package:Wide", (1, 4, 4), 0, 8, 1e-2, "a wide one", WideParams)
"""
    install(monkeypatch, tmp_path, "fcl_flower.models", {"wide": "wide"}, source)
    entry = MODELS["wide"]
    model = create_model(
        "wide",
        tasks=1,
        classes=2,
        single_head=True,
        seed=0,
        params=entry.params(width=2),
    )
    assert model.heads[0].in_features == 20
    assert "wide" in MODELS
