"""Enhancers and LoRA: what they add, what stays frozen, what is computed once."""

import copy

import numpy as np
import pytest
import torch
from encoders import (
    BLOCKS,
    KNOWN,
    RANK,
    WIDTH,
    enhanced,
    inputs,
    lora,
    lora_model,
    model,
    plain,
)
from torch.nn.attention import SDPBackend, sdpa_kernel

from fcl_flower.algorithms.base import ClientContext, Params, Turn
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models import adapters, encoder
from fcl_flower.models.adapters import Enhancer
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import snapshot

pytestmark = pytest.mark.usefixtures("one_thread")

ENHANCER = 148  # 2 * 4 * 16 + 16 + 4

# The linear layers of a block, in Hugging Face's own names and order: queries, keys,
# values, and what is behind the attention; then the feed-forward network.
_ATTENTION = ("{}.attention.self.query", "{}.attention.self.key")
_ATTENTION += ("{}.attention.self.value", "{}.attention.output.dense")
_PROJECTED = tuple(f"{{}}.attention.{n}_proj" for n in "qkvo")
BLOCK_LAYERS = {
    "bert": (*_ATTENTION, "{}.intermediate.dense", "{}.output.dense"),
    "distilbert": (
        *(f"{{}}.attention.{n}_lin" for n in ("q", "k", "v", "out")),
        *("{}.ffn.lin1", "{}.ffn.lin2"),
    ),
    "vit": (*_PROJECTED, "{}.mlp.fc1", "{}.mlp.fc2"),
}
BLOCK_LAYERS |= dict.fromkeys(("roberta", "electra"), BLOCK_LAYERS["bert"])
BLOCK_LAYERS |= dict.fromkeys(("deit", "dinov2"), BLOCK_LAYERS["vit"])
LISTS = {"distilbert": "transformer.layer", "vit": "layers", "deit": "layers"}
# Places of the layers that a setting of LoRA or of Enhancers chooses.
CHOSEN = {"all": range(6), "attention": (0, 2), "keys-values": (1, 2)}
BEHIND = {"both": (3, 5), "attention": (3,), "feed-forward": (5,)}


def names_of(kind, places, blocks=BLOCKS):
    home = LISTS.get(kind, "encoder.layer")
    return [
        BLOCK_LAYERS[kind][place].format(f"{home}.{block}")
        for block in range(BLOCKS)[-blocks:]
        for place in places
    ]


@pytest.fixture(params=[enhanced, lora], ids=["enhanced", "lora"])
def made(request):
    return request.param


# ---- what is added


@pytest.mark.parametrize("kind", KNOWN)
def test_what_has_learned_nothing_changes_no_bit(backbone, kind):
    x, expected = inputs(kind), plain(backbone(kind))(inputs(kind))
    for placement in BEHIND:
        assert torch.equal(enhanced(backbone(kind), placement)(x), expected)
    for layers in CHOSEN:
        assert torch.equal(lora(backbone(kind), layers)(x), expected)


@pytest.mark.parametrize("placement", BEHIND)
@pytest.mark.parametrize("kind", BLOCK_LAYERS)
def test_an_enhancer_that_adds_a_constant_is_a_larger_bias_of_its_projection(
    backbone, kind, placement
):
    x, body = inputs(kind), enhanced(backbone(kind), placement, blocks=2)
    other, names = plain(backbone(kind)), names_of(kind, BEHIND[placement], blocks=2)
    for step, (name, one) in enumerate(zip(names, body.enhancers, strict=True), 1):
        shift = torch.linspace(-1, step, WIDTH)
        one.up.bias.data += shift
        other.encoder.get_submodule(name).bias.data += shift

    torch.testing.assert_close(body(x), other(x), atol=1e-5, rtol=0)
    assert not torch.allclose(body(x), plain(backbone(kind))(x), atol=1e-2)


@pytest.mark.parametrize("layers", CHOSEN)
@pytest.mark.parametrize("kind", BLOCK_LAYERS)
def test_a_learned_change_is_added_to_the_weights_of_its_layer(backbone, kind, layers):
    x, body = inputs(kind), lora(backbone(kind), layers, blocks=2, learned=True)
    other, names = plain(backbone(kind)), names_of(kind, CHOSEN[layers], blocks=2)
    for name, change in zip(names, body.adapters, strict=True):
        other.encoder.get_submodule(name).weight.data += change.up @ change.down

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
    trained = [p.numel() for p in body.parameters() if p.requires_grad]
    assert sum(trained) == expected * ENHANCER


def test_a_rank_counts_rows_and_columns(backbone):
    network = lora_model(backbone("bert"), blocks=1)

    shapes = {n: tuple(network.state_dict()[n].shape) for n in network.shared_names()}
    heads = {name: shapes.pop(name) for name in ("heads.0.weight", "heads.0.bias")}
    assert heads == {"heads.0.weight": (5, WIDTH), "heads.0.bias": (5,)}
    wide = [(WIDTH, WIDTH)] * 4 + [(WIDTH, 24), (24, WIDTH)]  # of BERT's feed-forward
    assert shapes == {
        f"body.adapters.{place}.{factor}": shape
        for place, (ins, outs) in enumerate(wide)
        for factor, shape in (("down", (RANK, ins)), ("up", (outs, RANK)))
    }


def test_the_first_factor_is_uniform_and_the_second_zero(backbone):
    body = lora(backbone("bert"))
    factors = [change.down.detach() for change in body.changes]
    drawn = torch.cat([down.flatten() * down.shape[1] ** 0.5 for down in factors])
    assert float(drawn.abs().max()) <= 1
    # Of a uniform variable in [-1, 1], of which there are some 600.
    assert float(drawn.var()) == pytest.approx(1 / 3, abs=0.06)
    assert not any(change.up.any() for change in body.changes)


def test_fixed_changes_act_beside_the_factors_as_long_as_they_are_there(backbone):
    x, body = inputs("bert"), lora(backbone("bert"), learned=True)
    own, factors = body(x), snapshot(body, body.state_dict())
    other, names = plain(backbone("bert")), names_of("bert", CHOSEN["all"])
    fixed = []
    for name, change in zip(names, body.adapters, strict=True):
        down = torch.randn(5, change.down.shape[1])
        up = 0.1 * torch.randn(len(change.up), 5)
        fixed.append((down, up))
        both = up @ down + change.up @ change.down
        other.encoder.get_submodule(name).weight.data += both.detach()

    with body.beside(fixed):
        torch.testing.assert_close(body(x), other(x), atol=1e-5, rtol=0)
        for name, weight in other.encoder.state_dict().items():
            torch.testing.assert_close(body.encoder_state()[name], weight)
    assert torch.equal(body(x), own)
    assert all(np.array_equal(factors[n], t) for n, t in body.state_dict().items())


def test_merged_changes_are_in_the_weights_and_cost_nothing_more(backbone):
    x, body = inputs("bert"), lora(backbone("bert"), learned=True)
    fixed = [(torch.randn_like(c.down), torch.randn_like(c.up)) for c in body.changes]
    with body.beside(fixed):
        expected, weights = body(x), body.encoder_state()
        merged = copy.deepcopy(body)
    own = body(x)

    merged.merge()

    torch.testing.assert_close(merged(x), expected, atol=1e-5, rtol=0)
    for name, weight in merged.encoder_state().items():
        assert torch.equal(weight, weights[name])
    for change in merged.changes:
        change.forward = None  # it is called no more
    torch.testing.assert_close(merged(x), expected, atol=1e-5, rtol=0)
    assert torch.equal(body(x), own)


def test_an_encoder_without_such_layers_or_blocks_is_refused(backbone, monkeypatch):
    for build in (enhanced, lora):
        with pytest.raises(ConfigError, match=r"num_blocks: got 4, expected at most t"):
            build(backbone("bert"), blocks=4)
    for layers, (what, _) in adapters._LAYERS.items():
        monkeypatch.setitem(adapters._LAYERS, layers, (what, ("nowhere",)))
        with pytest.raises(ConfigError, match=rf"linear layers{what}$"):
            lora(backbone("bert"), layers)


# ---- what stays


@pytest.mark.parametrize("kind", ["bert", "vit"])
def test_what_was_learned_leaves_representations_alone(backbone, kind, made):
    x, body = inputs(kind), made(backbone(kind), learned=True)
    before = body(x)

    assert torch.equal(body.embed(x), plain(backbone(kind)).embed(x))
    assert torch.equal(body(x), before)
    assert not torch.allclose(before, body.embed(x), atol=1e-2)


def test_a_copy_learns_with_adapters_of_its_own(backbone, made):
    x, body = inputs("bert"), made(backbone("bert"))
    before = body(x)
    twin = copy.deepcopy(body)
    for parameter in twin.parameters():
        parameter.data += torch.rand_like(parameter) * parameter.requires_grad

    assert torch.equal(body(x), before)
    assert not torch.allclose(twin(x), before)


@pytest.mark.parametrize("build", [model, lora_model])
def test_the_encoder_is_frozen_and_evaluates_while_the_rest_learns(backbone, build):
    network, x = build(backbone("bert")), inputs("bert")
    before = snapshot(network, network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)

    for _ in range(3):  # LoRA's first factor has no gradient while the second is 0
        network.train()
        optimizer.zero_grad()
        network(x, 0)[:, 0].sum().backward()
        optimizer.step()

    assert network.training
    assert not any(module.training for module in network.body.encoder.modules())
    assert all(p.grad is None for p in network.body.encoder.parameters())
    changed = {
        name
        for name, tensor in network.state_dict().items()
        if not np.array_equal(tensor.numpy(), before[name])
    }
    assert changed == set(network.shared_names())


# ---- what is computed once


@pytest.mark.parametrize(
    ("kind", "name"), [("bert", "enhanced-transformer"), ("dinov2", "enhanced-vit")]
)
def test_plain_training_computes_blocks_before_the_first_enhancer_once(
    backbone, monkeypatch, kind, name
):
    def trained(seen):
        network, x = model(backbone(kind), name, blocks=1), inputs(kind)
        network.body.blocks[0].register_forward_hook(
            lambda block, given, output: seen.append(len(given[0]))
        )
        examples = Examples(x, torch.tensor([0, 1]))
        training = ClientContext(0, 0, Training(3, 2, 0.01))
        learner = LocalTraining(Params(), network, training)
        base = {"base": snapshot(network, network.shared_names())}
        stage = TaskStage(round=1, task=0, starts_task=True, ends_task=False)
        data = TaskData(examples, examples, examples, 5)
        return learner.train(Turn({}, base, stage, data))[1].payload["base"]

    once, always = [], []
    found = trained(once)
    monkeypatch.setattr(MultiHeadModel, "frozen_features", lambda self, x: x)
    expected = trained(always)

    # 2 to train on, 2 to validate on, 3 epochs.
    assert (sum(once), sum(always)) == (4, 12)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        np.testing.assert_allclose(tensor, expected[name], atol=1e-6)


@pytest.mark.parametrize("blocks", range(BLOCKS + 1))
@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "vit", "dinov2"])
def test_prepared_inputs_give_the_same_features_and_gradients(
    backbone, kind, blocks, made, monkeypatch
):
    monkeypatch.setattr(encoder, "CHUNK", 1)
    body = made(backbone(kind), blocks=blocks, learned=True).double()
    # In double precision: what a batch's shape does to the rounding is no difference.
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    x = inputs(kind)
    x = x.double() if x.is_floating_point() else x

    def results(given):
        body.zero_grad()
        features = body(given)
        features[:, ::3].sum().backward()
        learned = [p.grad.clone() for p in body.parameters() if p.requires_grad]
        return [features.detach(), *learned]

    # The other way round too, so that the shorter text is in front, and alone.
    for rows in ([0, 1], [1, 0], [1]):
        prepared = body.frozen_features(x[rows])
        assert not prepared.requires_grad
        torch.testing.assert_close(
            results(prepared), results(x[rows]), atol=1e-7, rtol=0
        )
    alone = body.frozen_features(x)[1:]
    torch.testing.assert_close(body(alone), body(x[1:]), atol=1e-7, rtol=0)


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "vit", "dinov2"])
def test_torch_func_finds_the_gradients_of_single_examples(
    backbone, kind, made, prepared
):
    body = made(backbone(kind), blocks=1, learned=True).train()
    x = inputs(kind)
    x = body.frozen_features(x) if prepared else x
    leaves = {n: p.detach() for n, p in body.named_parameters() if p.requires_grad}

    def total(leaves, one):
        features = torch.func.functional_call(body, leaves, (one[None],))
        return features[:, ::3].sum()

    with sdpa_kernel(SDPBackend.MATH):
        found = torch.func.vmap(torch.func.grad(total), in_dims=(None, 0))(leaves, x)

    for row, one in enumerate(x):
        body.zero_grad()
        body(one[None])[:, ::3].sum().backward()
        for name in leaves:
            expected = body.get_parameter(name).grad
            torch.testing.assert_close(found[name][row], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("blocks", range(BLOCKS + 1))
def test_what_is_frozen_and_common_padding_are_computed_once(backbone, blocks, made):
    x, body = inputs("bert"), made(backbone("bert"), blocks=blocks)
    frozen, seen = BLOCKS - blocks if blocks else 0, []
    for place, block in enumerate(body.blocks):
        block.register_forward_hook(
            lambda *given, place=place: seen.append((place, *given[1][0].shape[:2]))
        )

    prepared = body.frozen_features(x)
    assert seen == [(place, 2, 6) for place in range(frozen)]
    seen.clear()
    body(prepared[1:])
    assert seen == [(place, 1, 3) for place in range(frozen, BLOCKS)]


def test_no_samples_are_prepared_as_no_hidden_states(backbone):
    nothing = torch.zeros(0, 6, dtype=torch.int64)
    found = enhanced(backbone("bert")).frozen_features(nothing)
    assert (found.shape, found.dtype) == ((0, 0, WIDTH + 1), torch.float32)


# ---- what is seen of the inputs of LoRA's layers


@pytest.mark.parametrize("blocks", [1, 0])
@pytest.mark.parametrize("kind", ["bert", "distilbert", "vit"])
def test_inputs_of_layers_are_seen_without_padding(backbone, kind, blocks):
    x, body = inputs(kind), lora(backbone(kind), blocks=blocks, learned=True)
    # Each sample alone, the shorter text without its padding.
    alone = [x[:1], x[1:, :3]] if kind in ("bert", "distilbert") else [x[:1], x[1:]]
    names = names_of(kind, CHOSEN["all"], blocks or BLOCKS)
    expected, tokens = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)

    def note(name):
        def hook(layer, given):
            entered = given[0][0].detach().double().numpy()
            expected[name] = expected[name] + entered.T @ entered
            tokens[name] += len(entered)

        return hook

    hooks = [
        body.encoder.get_submodule(name).register_forward_pre_hook(note(name))
        for name in names
    ]
    for sample in alone:
        body(sample)
    for hook in hooks:
        hook.remove()

    with body.observed(adapters.squares) as seen:
        body(body.frozen_features(x))
    with body.observed(adapters.gram, step=2) as half:
        body(body.frozen_features(x))
    body(x)  # nobody looks any more

    assert {seen.tokens, half.tokens} == {*tokens.values()}
    wanted = list(expected.values())
    for squares, gram in zip(seen.sums, wanted, strict=True):
        np.testing.assert_allclose(squares, np.diag(gram), rtol=1e-4, atol=1e-5)
    for found, gram in zip(half.sums, wanted[::2], strict=True):
        np.testing.assert_allclose(found, gram, rtol=1e-4, atol=1e-4)
