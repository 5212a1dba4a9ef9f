"""Models of a user's own: a module, a callable, or an installed package."""

import warnings

import numpy as np
import pytest
import torch
from packages import install
from torch import nn
from torch.nn.utils import prune, weight_norm

import fcl_flower as fcl
from fcl_flower.core.errors import ConfigError, ContractError
from fcl_flower.models.build import create_model, from_module
from fcl_flower.models.convolutional import LeNetParams
from fcl_flower.models.registry import MODELS, ModelEntry

SHAPE = (1, 4, 4)


def small():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.BatchNorm1d(5))


def build(entry, **changes):
    settings = {"tasks": 2, "classes": 3, "single_head": False, "seed": 1}
    with MODELS.registered("mine", entry):
        return create_model("mine", **{**settings, **changes})


def weights(model):
    return model.body[1].weight


def declared(make, features=5):
    return ModelEntry(make, SHAPE, features, 8, 1e-2, "another package's")


# ---- what is made


def lazy():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(5), nn.LazyBatchNorm1d())


@pytest.mark.parametrize("make", [small, lazy])
def test_the_width_is_found_by_a_run_and_the_seed_initialises_what_a_callable_makes(
    make,
):
    entry = from_module(make, SHAPE)
    assert (entry.features, entry.modality, entry.input_shape) == (5, "images", SHAPE)
    model = build(entry)
    assert model(torch.zeros(2, *SHAPE), 1).shape == (2, 3)
    assert weights(model).shape == (5, 16)
    assert torch.equal(weights(model), weights(build(entry)))
    assert not torch.equal(weights(model), weights(build(entry, seed=2)))


def test_every_client_starts_from_a_copy_of_a_module_of_which_nothing_changes():
    module = small()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    state = torch.random.get_rng_state()
    entry = from_module(module, SHAPE)
    assert torch.equal(torch.random.get_rng_state(), state)
    one, other = build(entry), build(entry, seed=2)
    with torch.no_grad():
        weights(one).zero_()
    assert torch.equal(weights(other), before["1.weight"])
    assert module.training
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key])


def test_parts_that_were_loaded_for_evaluation_are_trained():
    model = build(from_module(lambda: nn.Sequential(small().eval()), SHAPE))
    assert not model.body[0].training
    for mode in (True, False, True):
        model.train(mode)
        assert {part.training for part in model.modules()} == {mode}


def test_a_network_that_changes_its_input_gets_a_copy():
    class Scaling(nn.Linear):
        def forward(self, x):
            return super().forward(x.flatten(1).add_(1))

    x = torch.zeros(2, *SHAPE)
    build(from_module(lambda: Scaling(16, 5), SHAPE)).body(x)
    assert not x.any()


def test_batch_normalisation_of_single_values_needs_two_inputs():
    assert build(from_module(small, SHAPE)).smallest_batch == 2
    spatial = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten())
    assert build(from_module(spatial, SHAPE)).smallest_batch == 1


def test_a_model_can_live_in_another_package(monkeypatch, tmp_path):
    source = """
from pydantic import Field
from torch import nn
from fcl_flower.config.parsing import Params
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
    params = MODELS["wide"].params(width=2)
    model = create_model(
        "wide", tasks=1, classes=2, single_head=True, seed=0, params=params
    )
    assert model.heads[0].in_features == 20
    assert "wide" in MODELS


# ---- what is refused


class OnlyByName(nn.Module):
    def forward(self, *, x):
        return x.flatten(1)


class InDouble(nn.Flatten):
    def forward(self, x):
        return super().forward(x).double()


class NoFeatures(nn.Flatten):
    def forward(self, x):
        return super().forward(x)[:, :0]


class InForward(nn.Module):
    def forward(self, x):
        self.layer = nn.Linear(16, 5)
        return self.layer(x.flatten(1))


class NoGradient(nn.Sequential):
    def forward(self, x):
        hidden = super().forward(x).exp()
        return hidden + hidden.add_(1)


class Squeezed(nn.Sequential):
    def forward(self, x):
        return super().forward(x).squeeze()


class Detached(nn.Sequential):
    def forward(self, x):
        return super().forward(x).detach()


class HalfDetached(nn.Sequential):
    def forward(self, x):
        return self[2](self[1](self[0](x)).detach())


class Memory(nn.Sequential):
    def get_extra_state(self):
        return {"steps": 1}

    def set_extra_state(self, state):
        pass


def linear(kind=nn.Sequential, **more):
    return kind(nn.Flatten(), nn.Linear(16, 5), **more)


def unused():
    module = linear()
    module.register_parameter("spare", nn.Parameter(torch.zeros(3)))
    return module


def empty():
    module = linear()
    module.register_parameter("empty", nn.Parameter(torch.zeros(5, 0)))
    return module


def pruned():
    module = linear()
    prune.l1_unstructured(module[1], "weight", 0.3)
    return module


def normed():
    with warnings.catch_warnings(action="ignore"):  # the old form is on its way out
        return nn.Sequential(nn.Flatten(), weight_norm(nn.Linear(16, 5)))


def quantized():
    with warnings.catch_warnings(action="ignore"):
        kinds = {nn.Linear}
        return torch.ao.quantization.quantize_dynamic(linear(), kinds, torch.qint8)


def compiled(compile_module, *inputs):
    with warnings.catch_warnings(action="ignore"):
        return compile_module(linear(), *inputs)


def of_batches():
    return nn.Sequential(linear(), nn.BatchNorm1d(5, track_running_stats=False))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: linear(Squeezed), r"Squeezed: got torch.Size\(\[5\]\) for 1 inputs"),
        (of_batches, "Expected more than 1 value .* in a test, .* one by one, too"),
        (lambda: linear(Detached), "no gradient for any parameter, .* not detach"),
        (
            lambda: HalfDetached(nn.Flatten(), nn.Linear(16, 6), nn.Linear(6, 5)),
            r"HalfDetached: got no gradient for 1\.weight, expected one for each",
        ),
        (unused, r"no gradient for spare, .* must be frozen with requires_grad_"),
        (lambda: linear(Memory), r"_extra_state with \{'steps': 1\}, .* plain tensors"),
        (quantized, "torch.qint8, expected plain tensors .* nor quantized layers"),
        (lambda: compiled(torch.jit.script), "scripted module, expected the module"),
        (
            lambda: compiled(torch.jit.trace, torch.zeros(2, *SHAPE)),
            "got a traced or scripted module",
        ),
        (pruned, r"Only Tensors created .* for a copy, .*prune\.remove"),
        (normed, r"for a copy, .*parametrizations\.weight_norm can"),
        (empty, r"empty of shape \(5, 0\), expected no empty parameters"),
        (nn.Identity, r"Identity: got torch.Size\(\[2, 1, 4, 4\]\) for 2 inputs"),
        (lambda: nn.Flatten(0), "Flatten: got .* expected .2, features"),
        (OnlyByName, r"OnlyByName: got .*forward.* for 2 inputs of shape"),
        (InDouble, r"got features of torch.float64, expected torch.float32"),
        (InForward, r"layer.bias, layer.weight made in forward, expected .* __init__"),
        (lambda: small().bfloat16(), r"1.weight of torch.bfloat16, expected .*float32"),
        (NoFeatures, "got no features"),
        (lambda: nn.ModuleList([nn.LazyLinear(4)]), r"ModuleList: got .*for 2 inputs"),
        (lambda: NoGradient(nn.Flatten(), nn.Linear(16, 5)), "for its gradient"),
    ],
)
def test_what_cannot_be_trained_is_one_sentence_before_any_round(make, sentence):
    with pytest.raises(ContractError, match=sentence):
        from_module(make, SHAPE)
    with pytest.raises(ContractError, match=sentence):
        build(declared(make))


def test_what_does_not_fit_its_declaration_is_refused():
    for shape in [(), (0,), (1, 2, 3, 4)]:
        with pytest.raises(ConfigError, match=r"input_shape: got \(.*expected \(C, H"):
            from_module(small, shape)
    with pytest.raises(ContractError, match=r"made a dict, no nn\.Module"):
        from_module(dict, SHAPE)
    with pytest.raises(ContractError, match="mine: got 5 features, expected 7"):
        build(declared(small, features=7))
    with pytest.raises(ContractError, match="mine: got LeNetParams, expected Params"):
        build(declared(small), params=LeNetParams())
    entry = from_module(lambda: nn.Linear(6, 4), (6,))
    assert build(entry, columns=6)(torch.zeros(2, 6), 0).shape == (2, 3)
    with pytest.raises(ConfigError, match="model: got 'mine', expected one for 7 col"):
        build(entry, columns=7)


@pytest.mark.parametrize("make", [linear, of_batches])
def test_another_default_type_is_refused_before_a_network_is_tried(make):
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ConfigError, match=r"got torch\.float64, .*\.set_default_d"):
            from_module(make, SHAPE)
        with pytest.raises(ConfigError, match=r"get_default_dtype\(\): got "):
            build(declared(make))
    finally:
        torch.set_default_dtype(torch.float32)


def test_fedweit_refuses_weights_by_which_a_norm_divides():
    def make():
        layer = torch.nn.utils.parametrizations.weight_norm(nn.Linear(64, 8))
        return nn.Sequential(nn.Flatten(), layer)

    sentence = "model: got 'a parametrized layer 1', expected layers whose weights"
    with pytest.raises(ConfigError, match=sentence):
        fcl.simulate("fedweit", model=make, clients=1, tasks=1, progress=False)


# ---- tied weights


class Tied(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 64))
        self[2].weight = self[1].weight


@pytest.mark.run
@pytest.mark.parametrize("method", ["fedweit", "apd", "matched-ensemble"])
def test_methods_that_replace_weights_train_tied_ones(method):
    model = build(from_module(Tied, (1, 8, 8)))
    assert model.shared_names() == ("body.1.weight", "body.1.bias", "body.2.bias")
    size = {"clients": 1, "tasks": 1, "rounds": 1, "max_train_per_class": 4}
    result = fcl.simulate(
        method, model=Tied, max_test_per_class=2, progress=False, **size
    )
    assert not np.isnan(result.accuracy).any()
