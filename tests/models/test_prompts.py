"""Prompts: what attention sees of them, what stays frozen, what is computed once."""

import copy

import pytest
import torch
from encoders import BLOCKS, IMAGES, KNOWN, WIDTH, inputs, plain, prompted
from torch.nn.functional import cosine_similarity
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from fcl_flower.core.errors import ConfigError
from fcl_flower.models import prompts
from fcl_flower.models.prompts import Components, PromptPool

pytestmark = pytest.mark.usefixtures("one_thread")

COUNT, LENGTH = 3, 4


def prompt_by_hand(query, pool):
    """Return what equations 3 to 5 make of each query, component by component."""
    total = torch.zeros(len(query), LENGTH, WIDTH)
    for key, attention, prompt in zip(*pool.components(), strict=True):
        alike = cosine_similarity(query * attention, key[None], dim=1)
        total += alike[:, None, None] * prompt
    return total


def last_states(body, x):
    """Return what Hugging Face's own forward pass makes of inputs, and their mask."""
    found = body.encoder(**body.encoder_inputs(x)).last_hidden_state
    return found, (x > 0).float() if body.text else torch.ones(found.shape[:2])


def mean(states, mask):
    return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def features_by_hand(backbone, kind, pools, x):
    """Let another attention function of the library see the prompts."""
    body, seen = plain(backbone(kind)), {}
    states, mask = last_states(body, x)
    query = states[:, 0] if kind in IMAGES else mean(states, mask)
    for block, pool in zip(body.blocks, pools, strict=False):
        (module,) = (
            module
            for module in block.modules()
            if {"key", "k_lin", "k_proj"} & dict(module.named_children()).keys()
        )
        seen[module] = prompt_by_hand(query, pool).chunk(2, dim=1)

    def attention(module, query, key, value, mask, scaling, **_):
        heads, room = query.shape[1], 0
        if module in seen:
            front = [t.unflatten(2, (heads, -1)).transpose(1, 2) for t in seen[module]]
            key, value = (
                torch.cat([a, b], 2) for a, b in zip(front, (key, value), strict=True)
            )
            room = front[0].shape[2]
        scores = scaling * query @ key.mT
        if mask is not None:
            scores[..., room:] += mask
        return (scores.softmax(-1) @ value).transpose(1, 2), None

    AttentionInterface.register("by-hand", attention)
    AttentionMaskInterface.register("by-hand", eager_mask)
    body.encoder.set_attn_implementation("by-hand")
    return mean(*last_states(body, x))


# ---- the equations


@pytest.mark.parametrize("kind", KNOWN)
def test_attention_sees_the_prompt_before_its_keys_and_values(backbone, kind):
    x, body = inputs(kind), prompted(backbone(kind), blocks=2)
    with torch.no_grad():
        expected = features_by_hand(backbone, kind, body.prompt_pools, x)

    torch.testing.assert_close(body(x), expected, atol=1e-5, rtol=0)
    assert not torch.allclose(body(x), plain(backbone(kind))(x), atol=1e-2)


def test_the_length_of_a_key_and_of_an_attention_vector_does_not_matter(backbone):
    x, body = inputs("bert"), prompted(backbone("bert"))
    before = body(x)
    with torch.no_grad():
        for pool in body.prompt_pools:
            pool.keys[0] *= 7
            pool.attention[2] *= 0.01

    torch.testing.assert_close(body(x), before, atol=1e-6, rtol=0)


def test_a_query_of_zeros_has_a_prompt_of_zeros_and_a_finite_gradient():
    pool = PromptPool(COUNT, LENGTH, WIDTH)
    found = pool(torch.zeros(1, WIDTH))
    found.sum().backward()

    assert not found.any()
    assert all(torch.isfinite(p.grad).all() for p in pool.parameters())


def test_fresh_components_are_orthonormal_and_cost_nothing():
    pool = PromptPool(COUNT, LENGTH, WIDTH)

    for rows in pool.components():
        flat = rows.detach().flatten(1)
        torch.testing.assert_close(flat @ flat.T, torch.eye(COUNT))
    assert float(pool.orthogonality().detach()) < 1e-12


def test_the_penalty_is_the_mean_square_of_what_makes_rows_not_orthonormal():
    pool = PromptPool(2, 2, 3)
    with torch.no_grad():
        pool.attention[:] = torch.tensor([[1.0, 0, 0], [2, 1, 0]])  # (0 2; 2 4) away
        pool.prompts *= 2  # (3 0; 0 3) away

    assert float(pool.orthogonality().detach()) == pytest.approx(
        (4 + 4 + 16) / 4 + 18 / 4
    )


# ---- components of earlier tasks


def test_components_of_earlier_tasks_take_part_and_have_no_gradient(backbone):
    x, body = inputs("bert"), prompted(backbone("bert"), blocks=2)
    tasks = [dict(prompted(backbone("bert"), 2, seed=s).state_dict()) for s in (7, 8)]
    whole = prompted(backbone("bert"), blocks=2)
    for place, pool in enumerate(whole.prompt_pools):
        own = pool.components()
        old = [[t[f"pools.{place}.{k}"] for k in Components._fields] for t in tasks]
        pool.keys, pool.attention, pool.prompts = (
            torch.nn.Parameter(torch.cat(parts))
            for parts in zip(*old, own, strict=True)
        )
    alone = body(x)

    with body.after(tasks):
        found = body(x)
        found.sum().backward()
        penalty = body.prompt_pools[0].orthogonality()

    torch.testing.assert_close(found, whole(x), atol=1e-5, rtol=0)
    torch.testing.assert_close(penalty, whole.prompt_pools[0].orthogonality())
    assert all(not t.requires_grad and t.grad is None for t in tasks[0].values())
    assert all(p.grad.any() for p in body.pools.parameters())
    assert not torch.allclose(alone, found, atol=1e-3)
    assert torch.equal(body(x), alone)  # the context is closed


def test_a_copy_that_has_joined_its_components_answers_alike(backbone):
    x, body = inputs("bert"), prompted(backbone("bert"))
    older = dict(prompted(backbone("bert"), seed=7).state_dict())
    with body.after([older]):
        expected, other = body(x), copy.deepcopy(body)
    for pool in other.prompt_pools:
        pool.join()

    assert torch.equal(other(x), expected)
    assert other.state_dict()["pools.0.keys"].shape == (2 * COUNT, WIDTH)


# ---- what stays frozen


@pytest.mark.parametrize("kind", ["bert", "vit", "dinov2"])
def test_without_prompts_the_encoder_is_as_it_was(backbone, kind):
    x, body = inputs(kind), prompted(backbone(kind))
    states, mask = last_states(plain(backbone(kind)), x)

    assert torch.equal(body.embed(x), plain(backbone(kind))(x))
    assert body.embed(x[:0]).shape == (0, WIDTH)
    query = body.query(body.enter(x))
    expected = states[:, 0] if kind in IMAGES else mean(states, mask)
    torch.testing.assert_close(query, expected, atol=1e-5, rtol=0)


def test_pools_alone_are_trained(backbone):
    body = prompted(backbone("bert"), blocks=2).train()
    trained = {n: tuple(p.shape) for n, p in body.named_parameters() if p.requires_grad}

    assert trained == {
        f"pools.{place}.{kind}": (COUNT, *shape, WIDTH)
        for place in range(2)
        for kind, shape in (("keys", ()), ("attention", ()), ("prompts", (LENGTH,)))
    }
    assert not body.encoder.training


def test_an_encoder_of_fewer_blocks_has_prompts_in_all(backbone):
    assert len(prompted(backbone("bert"), blocks=5).pools) == BLOCKS


@pytest.mark.parametrize("kind", ["bert", "dinov2"])
def test_query_and_first_input_are_computed_once(backbone, kind, monkeypatch):
    x, body = inputs(kind), prompted(backbone(kind))
    expected = body(x)
    found = body.frozen_features(x)
    monkeypatch.setattr(body, "query", None)
    monkeypatch.setattr(body, "enter", None)

    assert found.shape[0] == 2
    assert found.shape[2] == WIDTH + 1
    torch.testing.assert_close(body(found), expected, atol=1e-6, rtol=0)
    # Of the shorter text alone common padding is cut.
    torch.testing.assert_close(body(found[1:]), expected[1:], atol=1e-6, rtol=0)


def test_no_inputs_have_no_features(backbone):
    body = prompted(backbone("bert"))
    nothing = body.frozen_features(inputs("bert")[:0])

    assert nothing.shape == (0, 1, WIDTH + 1)


def test_blocks_may_compute_in_bfloat16(backbone):
    x, body = inputs("bert"), prompted(backbone("bert"), dtype="bfloat16")

    found = body(x)

    assert found.dtype == torch.float32
    torch.testing.assert_close(found, prompted(backbone("bert"))(x), atol=0.3, rtol=0)


# ---- refusals


def test_more_components_than_directions_are_refused(backbone):
    with pytest.raises(
        ConfigError, match=r"model.components: got 17, expected at most"
    ):
        prompted(backbone("bert"), components=17)


def test_an_encoder_without_keys_of_its_width_is_refused(backbone, monkeypatch):
    monkeypatch.setattr(prompts, "KEYS", ("intermediate",))
    with pytest.raises(
        ConfigError, match="linear layer of the encoder's width called i"
    ):
        prompted(backbone("bert"))
