"""LoRA: what it changes, what stays frozen, and what is seen of the layers' inputs."""

import copy

import numpy as np
import pytest
import torch
from encoders import BLOCKS, KNOWN, RANK, WIDTH, inputs, lora, lora_model, plain

from fcl_flower.core.errors import ConfigError
from fcl_flower.models import adapters as lora_module
from fcl_flower.training.tensors import snapshot

# The linear layers of a block, in Hugging Face's own names and order; queries and
# values are the first and the third.
LAYERS = {
    "bert": [
        *(f"encoder.layer.{{}}.attention.self.{n}" for n in ("query", "key", "value")),
        "encoder.layer.{}.attention.output.dense",
        "encoder.layer.{}.intermediate.dense",
        "encoder.layer.{}.output.dense",
    ],
    "distilbert": [
        *(f"transformer.layer.{{}}.attention.{n}_lin" for n in ("q", "k", "v", "out")),
        *(f"transformer.layer.{{}}.ffn.lin{n}" for n in (1, 2)),
    ],
    "vit": [
        *(f"layers.{{}}.attention.{n}_proj" for n in ("q", "k", "v", "o")),
        *(f"layers.{{}}.mlp.fc{n}" for n in (1, 2)),
    ],
    "dinov2": [
        *(f"encoder.layer.{{}}.attention.{n}_proj" for n in ("q", "k", "v", "o")),
        *(f"encoder.layer.{{}}.mlp.fc{n}" for n in (1, 2)),
    ],
}
LAYERS["roberta"] = LAYERS["electra"] = LAYERS["bert"]
LAYERS["deit"] = LAYERS["vit"]

pytestmark = pytest.mark.usefixtures("one_thread")


def changed_layers(kind, layers="all", blocks=BLOCKS):
    chosen = LAYERS[kind] if layers == "all" else LAYERS[kind][0:3:2]
    return [n.format(block) for block in range(BLOCKS)[-blocks:] for n in chosen]


# ---------------------------------------------------------------- what is changed


@pytest.mark.parametrize("layers", ["all", "attention"])
@pytest.mark.parametrize("kind", KNOWN)
def test_a_change_that_has_learned_nothing_changes_no_bit(backbone, kind, layers):
    x = inputs(kind)

    assert torch.equal(lora(backbone(kind), layers)(x), plain(backbone(kind))(x))


def test_the_change_as_a_matrix_is_what_the_change_does():
    change = lora_module.Lora(3, 4, RANK)
    change.up.data.normal_(0, 1, generator=torch.Generator().manual_seed(1))

    torch.testing.assert_close(change.weight.T, change(torch.eye(3)))
    change.merged = (torch.eye(3), torch.arange(12.0).view(4, 3))
    assert torch.equal(change.weight, torch.arange(12.0).view(4, 3))


@pytest.mark.parametrize("layers", ["all", "attention"])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_learned_change_is_added_to_the_weights_of_its_layer(backbone, kind, layers):
    x, body = inputs(kind), lora(backbone(kind), layers, blocks=2, learned=True)
    other = plain(backbone(kind))
    names = changed_layers(kind, layers, blocks=2)
    for name, change in zip(names, body.adapters, strict=True):
        other.encoder.get_submodule(name).weight.data += change.up @ change.down

    torch.testing.assert_close(body(x), other(x), atol=1e-5, rtol=0)
    assert not torch.allclose(body(x), plain(backbone(kind))(x), atol=1e-2)


def test_merged_changes_act_in_place_of_the_factors_and_leave_them_alone(backbone):
    x, body = inputs("bert"), lora(backbone("bert"), learned=True)
    own, factors = body(x), snapshot(body, body.state_dict())
    other = plain(backbone("bert"))
    for name, change in zip(changed_layers("bert"), body.adapters, strict=True):
        down = torch.randn(5, change.down.shape[1])
        up = 0.1 * torch.randn(len(change.up), 5)
        change.merged = (down, up)
        other.encoder.get_submodule(name).weight.data += up @ down

    torch.testing.assert_close(body(x), other(x), atol=1e-5, rtol=0)
    for change in body.adapters:
        change.merged = None
    assert torch.equal(body(x), own)
    assert all(np.array_equal(factors[n], t) for n, t in body.state_dict().items())


def test_the_first_factor_is_uniform_and_the_second_zero(backbone):
    body = lora(backbone("bert"))

    drawn = torch.cat([c.down.flatten() * c.down.shape[1] ** 0.5 for c in body.changes])
    drawn = drawn.detach()
    assert float(drawn.abs().max()) <= 1
    # Of a uniform variable in [-1, 1], of which there are some 600.
    assert float(drawn.var()) == pytest.approx(1 / 3, abs=0.06)
    assert not any(change.up.any() for change in body.changes)


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


def test_a_copy_learns_with_changes_of_its_own(backbone):
    x, body = inputs("bert"), lora(backbone("bert"))
    before = body(x)
    twin = copy.deepcopy(body)
    for change in twin.adapters:
        change.up.data += 1

    assert torch.equal(body(x), before)
    assert not torch.allclose(twin(x), before)
    with twin.observed() as seen:
        body(x)
        assert seen.tokens == 0


# ---------------------------------------------------------------- what stays


def test_only_changes_and_head_learn(backbone):
    network, x = lora_model(backbone("bert")), inputs("bert")
    before = snapshot(network, network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)

    for _ in range(3):  # the first factor has no gradient while the second is 0
        network.train()
        optimizer.zero_grad()
        network(x, 0)[:, 0].sum().backward()
        optimizer.step()

    assert not any(module.training for module in network.body.encoder.modules())
    changed = {
        name
        for name, tensor in network.state_dict().items()
        if not np.array_equal(tensor.numpy(), before[name])
    }
    assert changed == set(network.shared_names())


@pytest.mark.parametrize("blocks", range(BLOCKS + 1))
@pytest.mark.parametrize("kind", ["bert", "vit"])
def test_what_is_frozen_is_computed_once(backbone, kind, blocks):
    x, body = inputs(kind), lora(backbone(kind), blocks=blocks, learned=True)
    expected, seen = body(x), [0] * BLOCKS
    for place, block in enumerate(body.blocks):
        block.register_forward_hook(
            lambda *given, place=place: seen.__setitem__(place, seen[place] + 1)
        )

    prepared = body.frozen_features(x)
    frozen = BLOCKS - blocks if blocks else 0
    assert seen == [1] * frozen + [0] * (BLOCKS - frozen)
    torch.testing.assert_close(body(prepared), expected, atol=1e-5, rtol=0)
    assert seen == [1] * BLOCKS


def test_an_encoder_without_such_layers_is_refused(backbone, monkeypatch):
    monkeypatch.setattr(lora_module, "_QUERY_AND_VALUE", ("nowhere",))

    with pytest.raises(ConfigError, match=r"linear layers of queries and values$"):
        lora(backbone("bert"), "attention")


# ---------------------------------------------------------------- what is seen


@pytest.mark.parametrize("blocks", [1, 0])
@pytest.mark.parametrize("kind", ["bert", "distilbert", "vit"])
def test_inputs_of_layers_are_seen_without_padding(backbone, kind, blocks):
    x, body = inputs(kind), lora(backbone(kind), blocks=blocks, learned=True)
    # Each sample alone, the shorter text without its padding.
    alone = [x[:1], x[1:, :3]] if kind in ("bert", "distilbert") else [x[:1], x[1:]]
    names = changed_layers(kind, blocks=blocks or BLOCKS)
    layers = [body.encoder.get_submodule(name) for name in names]
    expected, rows = [0] * len(layers), []
    hooks = [
        layer.register_forward_pre_hook(
            lambda layer, given: rows.append((layer, given[0][0].detach().double()))
        )
        for layer in layers
    ]
    for sample in alone:
        body(sample)
    for hook in hooks:
        hook.remove()
    for layer, entered in rows:
        squares = np.diag(entered.numpy().T @ entered.numpy())
        expected[layers.index(layer)] = expected[layers.index(layer)] + squares
    tokens = sum(len(entered) for layer, entered in rows if layer is layers[0])

    with body.observed() as seen:
        body(body.frozen_features(x))

    assert seen.tokens == tokens
    assert len(seen.squares) == len(expected)
    for squares, wanted in zip(seen.squares, expected, strict=True):
        np.testing.assert_allclose(squares, wanted, rtol=1e-4, atol=1e-5)
