"""The frozen transformer: features of its last blocks, which nothing changes."""

import numpy as np
import pytest
import torch
from encoders import BLOCKS, WIDTH, inputs

from fcl_flower.core.errors import ConfigError
from fcl_flower.models import encoder
from fcl_flower.models.build import create_model
from fcl_flower.models.encoder import FrozenParams, FrozenTransformer
from fcl_flower.models.pretrained import load_encoder

pytestmark = pytest.mark.usefixtures("one_thread")


def frozen(backbone, blocks=2):
    return FrozenTransformer(
        FrozenParams(encoder=backbone, pooled_blocks=blocks)
    ).eval()


@pytest.mark.parametrize("kind", ["bert", "distilbert", "vit"])
def test_features_are_means_of_the_last_hidden_states_side_by_side(backbone, kind):
    x, body = inputs(kind), frozen(backbone(kind))
    theirs = load_encoder(backbone(kind))
    given = [body._numbers(x)] if body.text else [x]
    mask = (x > 0).long() if body.text else None
    masked = {"attention_mask": mask} if body.text else {}
    with torch.no_grad():
        found = theirs(*given, **masked, output_hidden_states=True)
    parts = []
    for hidden in found.hidden_states[-2:]:
        # A ViT has a norm behind its last block, which `pool` has, too.
        norm = getattr(theirs, "layernorm", None)
        values = hidden if norm is None else norm(hidden)
        weights = torch.ones(values.shape[:2]) if mask is None else mask.float()
        mean = (values * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)
        parts.append(mean / mean.norm(dim=1, keepdim=True))
    expected = torch.cat(parts, 1) / 2**0.5
    if kind == "vit":  # the library returns the last one behind the norm
        expected, ours = expected[:, :WIDTH], body(x)[:, :WIDTH]
    else:
        ours = body(x)
    torch.testing.assert_close(ours, expected)


def test_there_is_nothing_to_train_and_nothing_to_share_but_a_head(backbone):
    network = create_model(
        "frozen-transformer",
        tasks=2,
        classes=5,
        single_head=True,
        seed=3,
        params=FrozenParams(encoder=backbone("bert")),
    )
    assert network.shared_names() == ("heads.0.weight", "heads.0.bias")
    assert network.features == 2 * WIDTH
    assert not any(p.requires_grad for p in network.body.parameters())
    x = inputs("bert")
    assert network(x, 0).shape == (2, 5)


@pytest.mark.parametrize("kind", ["bert", "vit"])
def test_frozen_features_are_taken_in_place_of_inputs(backbone, kind, monkeypatch):
    monkeypatch.setattr(encoder, "_CHUNK", 1)
    body, x = frozen(backbone(kind)), inputs(kind)
    features = body.frozen_features(x)
    np.testing.assert_array_equal(body(features), features)
    torch.testing.assert_close(body(x), features)


def test_training_changes_no_feature(backbone):
    body, x = frozen(backbone("bert")), inputs("bert")
    expected = body(x)
    np.testing.assert_array_equal(body.train()(x), expected)


def test_more_blocks_than_there_are_cannot_be_pooled(backbone):
    with pytest.raises(ConfigError, match=r"model\.pooled_blocks: got 4, expected at"):
        frozen(backbone("bert"), blocks=BLOCKS + 1)
