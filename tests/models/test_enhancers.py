"""Enhancers: what they add, what stays frozen, and what is computed once."""

import numpy as np
import pytest
import torch
from encoders import BLOCKS, CLASSES, KNOWN, WIDTH, enhanced, inputs, model, plain

from fcl_flower.algorithms.base import ClientContext, Params
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models import encoder
from fcl_flower.models.adapters import Enhancer
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import snapshot

PLACEMENTS = ("both", "attention", "feed-forward")
ENHANCER = 148  # 2 * 4 * 16 + 16 + 4

# The linear layers behind which Enhancers act, in Hugging Face's own names.
PROJECTIONS = {
    "bert": (
        "encoder.layer.{}.attention.output.dense",
        "encoder.layer.{}.output.dense",
    ),
    "distilbert": (
        "transformer.layer.{}.attention.out_lin",
        "transformer.layer.{}.ffn.lin2",
    ),
    "dinov2": ("encoder.layer.{}.attention.o_proj", "encoder.layer.{}.mlp.fc2"),
    "vit": ("layers.{}.attention.o_proj", "layers.{}.mlp.fc2"),
}
PROJECTIONS["roberta"] = PROJECTIONS["electra"] = PROJECTIONS["bert"]
PROJECTIONS["deit"] = PROJECTIONS["vit"]


pytestmark = pytest.mark.usefixtures("one_thread")


def count(tensors):
    return sum(tensor.numel() for tensor in tensors)


# ---------------------------------------------------------------- Enhancers


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("kind", KNOWN)
def test_fresh_enhancers_change_no_bit(backbone, kind, placement):
    x = inputs(kind)

    assert torch.equal(enhanced(backbone(kind), placement)(x), plain(backbone(kind))(x))


@pytest.mark.parametrize(
    ("placement", "places"),
    [("both", (0, 1)), ("attention", (0,)), ("feed-forward", (1,))],
)
@pytest.mark.parametrize("kind", PROJECTIONS)
def test_an_enhancer_that_adds_a_constant_is_a_larger_bias_of_its_projection(
    backbone, kind, placement, places
):
    x, body = inputs(kind), enhanced(backbone(kind), placement, blocks=2)
    shifts = [torch.linspace(-1, step, WIDTH) for step in range(1, 2 * len(places) + 1)]
    for enhancer, shift in zip(body.enhancers, shifts, strict=True):
        enhancer.up.bias.data += shift
    other = plain(backbone(kind))
    names = [PROJECTIONS[kind][p].format(block) for block in (1, 2) for p in places]
    for name, shift in zip(names, shifts, strict=True):
        other.encoder.get_submodule(name).bias.data += shift

    torch.testing.assert_close(body(x), other(x), atol=1e-5, rtol=0)
    assert not torch.allclose(body(x), plain(backbone(kind))(x), atol=1e-2)


def test_an_enhancer_goes_through_its_bottleneck_beside_the_identity():
    enhancer = Enhancer(2, 1)
    for parameter, values in zip(
        enhancer.parameters(), ([[1, 2]], [0.5], [[2], [-1]], [0, 3]), strict=True
    ):
        parameter.data = torch.tensor(values, dtype=torch.float32)

    # 100 + 2 * 200 + 0.5 is so large that GELU returns it as it is, and -100 so small
    # that it returns 0.
    found = enhancer(torch.tensor([[100.0, 200.0], [-100.0, 0.0]]))

    assert found.tolist() == [[1101.0, -297.5], [-100.0, 3.0]]


@pytest.mark.parametrize(
    ("placement", "blocks", "expected"),
    [("both", 0, 6), ("attention", 0, 3), ("feed-forward", 0, 3), ("both", 1, 2)],
)
def test_enhancers_have_as_many_parameters_as_equation_9_says(
    backbone, placement, blocks, expected
):
    body = enhanced(backbone("bert"), placement, blocks)

    trained = [p for p in body.parameters() if p.requires_grad]
    assert count(trained) == expected * ENHANCER


@pytest.mark.parametrize("kind", ["bert", "vit"])
def test_learned_enhancers_leave_representations_alone(backbone, kind):
    x, body = inputs(kind), enhanced(backbone(kind), learned=True)
    before = body(x)

    assert torch.equal(body.embed(x), plain(backbone(kind)).embed(x))
    assert torch.equal(body(x), before)
    assert not torch.allclose(before, body.embed(x), atol=1e-2)


# ---------------------------------------------------------------- frozen


def test_the_encoder_is_frozen_and_evaluates_while_enhancers_learn(backbone):
    network, x = model(backbone("bert")), inputs("bert")
    before = snapshot(network, network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)

    for _ in range(3):
        network.train()
        optimizer.zero_grad()
        network(x, 0)[:, 0].sum().backward()
        optimizer.step()

    assert network.training
    assert not any(module.training for module in network.body.encoder.modules())
    assert all(p.grad is None for p in network.body.encoder.parameters())
    assert all(p.grad is not None for p in network.body.enhancers.parameters())
    changed = {
        name
        for name, tensor in network.state_dict().items()
        if not np.array_equal(tensor.numpy(), before[name])
    }
    assert changed == set(network.shared_names())


def test_plain_training_computes_blocks_before_the_first_enhancer_once(
    backbone, monkeypatch
):
    def trained(seen):
        network, x = model(backbone("bert"), blocks=1), inputs("bert")
        network.body.blocks[0].register_forward_hook(
            lambda block, given, output: seen.append(len(given[0]))
        )
        examples = Examples(x, torch.tensor([0, 1]))
        learner = LocalTraining(
            Params(), network, ClientContext(0, 0, Training(3, 2, 0.01))
        )
        base = {"base": snapshot(network, network.shared_names())}
        stage = TaskStage(round=1, task=0, starts_task=True, ends_task=False)
        data = TaskData(examples, examples, examples, CLASSES)
        return learner.train({}, base, stage, data)[1].payload["base"]

    once, always = [], []
    found = trained(once)
    monkeypatch.setattr(MultiHeadModel, "frozen_features", lambda self, x: x)
    expected = trained(always)

    assert (sum(once), sum(always)) == (
        4,
        12,
    )  # 2 to train on, 2 to validate on, 3 epochs
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        np.testing.assert_allclose(tensor, expected[name], atol=1e-6)


# ---------------------------------------------------------------- prepared inputs


@pytest.mark.parametrize("blocks", range(BLOCKS + 1))
@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "vit"])
def test_prepared_inputs_give_the_same_features_and_gradients(
    backbone, kind, blocks, monkeypatch
):
    monkeypatch.setattr(encoder, "_CHUNK", 1)
    body = enhanced(backbone(kind), blocks=blocks, learned=True).double()
    # In double precision: what a batch's shape does to the rounding is no difference.
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    x = inputs(kind)
    x = x.double() if x.is_floating_point() else x

    def results(given):
        body.zero_grad()
        features = body(given)
        features[:, ::3].sum().backward()
        return [
            features.detach(),
            *(p.grad.clone() for p in body.enhancers.parameters()),
        ]

    # The other way round too, so that the shorter text is in front, and alone.
    for rows in ([0, 1], [1, 0], [1]):
        prepared = body.frozen_features(x[rows])
        assert not prepared.requires_grad
        torch.testing.assert_close(
            results(prepared), results(x[rows]), atol=1e-7, rtol=0
        )
    alone = body.frozen_features(x)[1:]
    torch.testing.assert_close(body(alone), body(x[1:]), atol=1e-7, rtol=0)


def test_padding_that_a_batch_shares_is_not_computed(backbone):
    body = enhanced(backbone("bert"), blocks=1)
    tokens = []
    body.blocks[-1].register_forward_hook(
        lambda *given: tokens.append(given[1][0].shape)
    )

    prepared = body.frozen_features(inputs("bert"))
    body(prepared)
    body(prepared[1:])

    assert tokens == [(2, 6, WIDTH), (1, 3, WIDTH)]


def test_no_samples_are_prepared_as_no_hidden_states(backbone):
    found = enhanced(backbone("bert")).frozen_features(
        torch.zeros(0, 6, dtype=torch.int64)
    )

    assert (found.shape, found.dtype) == ((0, 0, WIDTH + 1), torch.float32)
