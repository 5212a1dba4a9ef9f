"""Shapes, sizes, seeds and the parts that differ from torch's own."""

import hashlib

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from fcl_flower.core.errors import ConfigError
from fcl_flower.models.build import create_model, seeded
from fcl_flower.models.convolutional import (
    Block,
    EfficientNet,
    GreyCnn,
    HarCnn,
    LeNet,
    LeNetParams,
    ResNet18,
    ResponseNorm,
)
from fcl_flower.models.encoder import Transformer
from fcl_flower.models.registry import MODELS, TABULAR, TEXT, check_modality

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = np.random.default_rng(0).normal(size=(12, 6)).astype(np.float32)
WORDS[0] = 0
ENCODERS = {}
CLASSIFIERS = sorted(n for n, e in MODELS.items() if e.modality != "instructions")
"""The models whose labels are classes; test_language.py has the others."""


@pytest.fixture(scope="module", autouse=True)
def tiny_encoders(backbone):
    ENCODERS.update(text=backbone("bert"), images=backbone("vit"))


def inputs(model, count):
    """Return images, or documents of nine words of which the first is shorter."""
    if model.input_shape != TEXT:
        encoder = isinstance(model.body, Transformer)
        return torch.randn(count, *((3, 12, 12) if encoder else model.input_shape))
    documents = torch.randint(1, len(WORDS), (count, 9))
    documents[0, 7:] = 0
    return documents


def build(name="small", **changes):
    settings = {"tasks": 3, "classes": 5, "single_head": False, "seed": 7}
    entry = MODELS[name]
    if entry.encoder:
        settings["params"] = entry.params(encoder=ENCODERS[entry.modality])
    elif entry.input_shape == TEXT:
        settings["table"] = WORDS
    elif entry.input_shape == TABULAR:
        settings["columns"] = 6
    return create_model(name, **{**settings, **changes})


def size(module):
    return sum(parameter.numel() for parameter in module.parameters())


# ---- every model


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_every_model_has_about_the_same_gradients_in_mixed_precision(name):
    model = build(name).eval()
    torch.manual_seed(1)
    x, y, found = inputs(model, 8), torch.arange(8) % 5, {}
    for mixed in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            loss = nn.functional.cross_entropy(model(x, 0), y)
        loss.backward()
        learned = [p.grad for p in model.parameters() if p.grad is not None]
        assert {gradient.dtype for gradient in learned} == {torch.float32}
        found[mixed] = torch.cat([gradient.flatten() for gradient in learned])

    wrong = (found[True] - found[False]).norm() / found[False].norm()
    assert 0 < wrong < 0.25


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("single_head", [False, True])
def test_every_model_gives_the_features_and_logits_it_promises(name, single_head):
    model = build(name, single_head=single_head)
    x = inputs(model, 2)
    assert model.input_shape == ((6,) if name == "mlp" else MODELS[name].input_shape)
    features = MODELS[name].features or model.body.features
    assert model.body(x).shape == (2, features)
    assert model(x, 2).shape == (2, 5)
    assert torch.equal(model.eval()(x, 0), model(x, 2)) == single_head
    model.train()(x, 2).square().sum().backward()
    heads = {f"heads.{n}" for n in range(1 if single_head else 3)}
    for key, parameter in model.named_parameters():
        answered = key.startswith("body.") or single_head or key.startswith("heads.2.")
        assert key.startswith("body.") or key.rpartition(".")[0] in heads
        learns = answered and parameter.requires_grad
        # What tells orders and tasks apart has losses of its own.
        learns &= not key.startswith(("body.order.", "body.task."))
        assert (parameter.grad is not None) == learns, key


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(name):
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first = build(name).state_dict()
    again = build(name).state_dict()
    assert torch.equal(torch.random.get_rng_state(), state)
    other = build(name, seed=8).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    # A pre-trained encoder is what it is, as fixed filters are, and an Enhancer starts
    # as the identity.
    weights = [
        key
        for key in first
        if key.endswith("weight") and first[key].ndim > 1
        if not key.startswith("body.encoder.") and not key.endswith(".up.weight")
        if key != "body.weight"
    ]
    assert weights
    assert not any(torch.equal(first[key], other[key]) for key in weights)


def test_the_body_does_not_depend_on_the_number_of_heads():
    few, many = build(tasks=1, classes=2), build(tasks=9, classes=50, single_head=True)
    for key, value in few.body.state_dict().items():
        assert torch.equal(value, many.body.state_dict()[key])


@pytest.mark.parametrize("accelerator", [False, True])
def test_the_numbers_are_those_of_torchs_own_seed(monkeypatch, accelerator):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        expected = torch.rand(5)
    before, seeds, plain = torch.random.get_rng_state(), [], torch.manual_seed
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: accelerator)
    monkeypatch.setattr(torch, "manual_seed", lambda s: (seeds.append(s), plain(s)))

    def fail():
        with seeded(7):
            assert torch.equal(torch.rand(5), expected)
            raise KeyError

    with pytest.raises(KeyError):
        fail()

    assert seeds == [7] * accelerator  # which seeds the accelerator's generators, too
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "modality", "fitting"),
    [
        ("lenet", "time-series", r"har-cnn$"),
        ("kim-cnn", "time-series", r"har-cnn$"),
        ("har-cnn", "text", r"kim-cnn, transformer, .*, prompted-transformer$"),
        ("har-cnn", "images", "small, grey-cnn, lenet, .*resnet18"),
    ],
)
def test_a_model_for_another_modality_is_refused_with_those_that_fit(
    name, modality, fitting
):
    sentence = f"^model: got '{name}', expected one for {modality}: {fitting}"
    with pytest.raises(ConfigError, match=sentence):
        check_modality(name, modality)
    check_modality(name, MODELS[name].modality)


def test_word_vectors_and_a_model_for_words_go_together():
    with pytest.raises(ConfigError, match=r"'har-cnn', expected one for text: kim-c"):
        build("har-cnn", table=WORDS)
    with pytest.raises(ConfigError, match="'kim-cnn', expected one for images: sma"):
        build("kim-cnn", table=None)
    with pytest.raises(ConfigError, match=r"model: got 'lenett', .*you mean 'lenet'\?"):
        check_modality("lenett", "images")


@pytest.mark.parametrize(
    ("body", "parameters"),
    [
        (GreyCnn, 46_080),
        (HarCnn, 77_568),
        (EfficientNet, 426_212),
        (ResNet18, 11_168_832),
    ],
)
def test_a_network_has_the_size_that_its_layers_add_up_to(body, parameters):
    assert size(body()) == parameters


# ---- LeNet


def test_lenet_with_ten_heads_of_five_has_the_size_of_the_paper():
    model = build("lenet", tasks=10, classes=5)
    assert size(model) == 3_012_920
    assert list(model.buffers()) == []  # that could be averaged


@pytest.mark.parametrize(
    ("width", "layers", "digest"),
    [
        (0.8, [16, 40, 640, 400], "b12d993705fcf22a28d5aecc93d25361"),
        (1.2, [24, 60, 960, 600], "1639d81f6b6cbaf852d12e1f4869a511"),
        (1e-6, [1, 1, 1, 1], None),
    ],
)
def test_a_lenet_of_another_width_has_a_fifth_less_or_more(width, layers, digest):
    model = build("lenet", params=LeNetParams(width=width), tasks=2, classes=3)
    body = model.body
    found = [body.conv1, body.conv2, body.fc1, body.fc2]
    assert [len(layer.bias) for layer in found] == layers
    # The weights that the models lenet-small and lenet-large had in published runs.
    weights = hashlib.sha256()
    for key, tensor in model.state_dict().items():
        weights.update(key.encode() + tensor.numpy().tobytes())
    weights.update(repr(model.input_shape).encode())
    assert digest is None or weights.hexdigest()[:32] == digest


def test_dropout_leaves_out_neurons_of_both_fully_connected_layers_in_training():
    params = LeNetParams(width=0.2, dropout=0.75)
    thin, plain = (
        build("lenet", params=given).body for given in (params, LeNetParams(width=0.2))
    )
    x, inputs = torch.randn(4, 3, 32, 32), []
    for body in (thin, plain):
        body.fc2.register_forward_hook(
            lambda _, given, out: inputs.append((given, out))
        )
    torch.testing.assert_close(thin.eval()(x), plain.eval()(x), rtol=0, atol=0)
    inputs.clear()

    features = thin.train()(x)
    before = torch.get_rng_state()
    plain.train()(x)
    assert torch.equal(torch.get_rng_state(), before)  # without dropout none is drawn

    (((hidden,), before), ((whole,), _)) = inputs
    # What stays is divided by 1 - 0.75, so that sums are the same in the mean.
    for found, expected in ((hidden, whole), (features, before.clamp(min=0))):
        kept = found != 0
        torch.testing.assert_close(found, torch.where(kept, 4 * expected, 0.0))
        assert 0.15 < float(kept[expected > 0].float().mean()) < 0.35


def test_lenet_computes_what_its_layers_say():
    body = LeNet(LeNetParams())
    x = torch.randn(3, 3, 32, 32)
    norm = nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0)
    pool = nn.MaxPool2d(3, 2)
    far_side = nn.ZeroPad2d((0, 1, 0, 1))  # zero is neutral after ReLU
    h = pool(far_side(norm(torch.relu(body.conv1(x)))))
    h = pool(far_side(norm(torch.relu(body.conv2(h)))))
    h = torch.relu(body.fc2(torch.relu(body.fc1(h.reshape(3, -1)))))
    torch.testing.assert_close(body(x), h, rtol=1e-4, atol=1e-5)


def test_several_lenets_answer_one_batch_in_one_pass():
    bodies = [LeNet(LeNetParams(width=0.2)).eval() for _ in range(3)]
    parameters, buffers = stack_module_state(bodies)
    x = torch.randn(2, 3, 32, 32)

    def answer(one, its_buffers):
        return functional_call(bodies[0], (one, its_buffers), (x,))

    found = vmap(answer)(parameters, buffers)
    torch.testing.assert_close(found, torch.stack([body(x) for body in bodies]))


@pytest.mark.parametrize("channels", [1, 3, 20])
def test_response_norm_equals_that_of_torch(channels):
    ours = ResponseNorm(radius=4, bias=1.5, alpha=0.02, beta=0.75)
    # Torch divides alpha by the window's size, here 9 channels.
    torchs = nn.LocalResponseNorm(9, alpha=9 * 0.02, beta=0.75, k=1.5)
    x = (torch.randn(2, channels, 5, 6) * 10).requires_grad_()
    weight = torch.randn(2, channels, 5, 6)
    mine, theirs = ours(x), torchs(x)
    torch.testing.assert_close(mine, theirs)
    (mine_grad,) = torch.autograd.grad((mine * weight).sum(), x)
    (their_grad,) = torch.autograd.grad((theirs * weight).sum(), x)
    torch.testing.assert_close(mine_grad, their_grad)


def test_response_norm_by_hand():
    norm = ResponseNorm(radius=1, bias=1.0, alpha=0.5, beta=2.0)
    x = torch.tensor([1.0, 2.0, 0.0, 2.0]).reshape(1, 4, 1, 1)
    # Sums of squares over neighbours: 5, 5, 8, 4.
    expected = [1 / 3.5**2, 2 / 3.5**2, 0, 2 / 3**2]
    assert norm(x).reshape(-1).tolist() == pytest.approx(expected)


def test_response_norm_works_on_several_inputs_at_once():
    norm = ResponseNorm(radius=2, bias=1.0, alpha=0.3, beta=0.75)
    x = torch.randn(3, 2, 6, 4, 4)

    def total(one):
        return (norm(one) ** 2).sum()

    outputs, gradients = vmap(norm)(x), vmap(grad(total))(x)
    for one, output, gradient in zip(x, outputs, gradients, strict=True):
        torch.testing.assert_close(output, norm(one))
        one.requires_grad_()
        (wanted,) = torch.autograd.grad(total(one), one)
        torch.testing.assert_close(gradient, wanted)


# ---- the other networks


def test_grey_cnn_computes_what_its_layers_say():
    body, x = GreyCnn(), torch.randn(2, 1, 28, 28)
    h = x
    for layer in (body.conv1, body.conv2):
        windows = nn.functional.unfold(h, 5)
        h = layer.weight.flatten(1) @ windows + layer.bias[:, None]
        side = int(h.shape[2] ** 0.5)
        h = h.clamp(min=0).view(2, -1, side // 2, 2, side // 2, 2).amax((3, 5))
    expected = (h.flatten(1) @ body.fc1.weight.T + body.fc1.bias).clamp(min=0)
    torch.testing.assert_close(body(x), expected, rtol=1e-4, atol=1e-5)


def test_har_cnn_does_not_mind_the_unit_of_its_sensors():
    body = HarCnn()
    with torch.no_grad():
        body.conv1.bias.zero_()
    x = torch.randn(2, 9, 128)
    torch.testing.assert_close(body(1000 * x), body(x), rtol=1e-3, atol=1e-4)


def test_efficientnet_treats_an_image_alike_whatever_its_batch():
    body = EfficientNet()
    assert list(body.buffers()) == []
    x = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(body.train()(x)[1:2], body.eval()(x[1:2]))


def test_a_block_of_efficientnet_computes_what_its_layers_say():
    block = Block(16, 16, 1)
    x = torch.randn(2, 16, 5, 5)
    wide = torch.einsum("nihw,oi->nohw", x, block.expand.weight[:, :, 0, 0])
    wide = block.norm1(wide)
    wide = wide * torch.sigmoid(wide)
    # Each channel by itself, written as 64 convolutions.
    each = [
        nn.functional.conv2d(wide[:, [c]], block.depthwise.weight[[c]], padding=1)
        for c in range(64)
    ]
    wide = block.norm2(torch.cat(each, 1))
    wide = wide * torch.sigmoid(wide)
    small = block.squeeze(wide.flatten(2).mean(2))
    gate = torch.sigmoid(block.excite(small * torch.sigmoid(small)))
    wide = torch.einsum("nihw,ni->nihw", wide, gate)
    y = torch.einsum("nihw,oi->nohw", wide, block.project.weight[:, :, 0, 0])
    torch.testing.assert_close(block(x), x + block.norm3(y), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "stride", "shape"), [(8, 1, (16, 6, 6)), (16, 2, (16, 3, 3))]
)
def test_a_block_whose_shape_changes_has_no_shortcut(inputs, stride, shape):
    block = Block(inputs, 16, stride)
    with torch.no_grad():
        block.project.weight.zero_()
    y = block(torch.randn(2, inputs, 6, 6))
    assert y.shape == (2, *shape)
    assert not y.any()


def test_resnet18_halves_the_image_three_times():
    seen, body = [], ResNet18()
    for block in body.blocks:
        block.register_forward_hook(lambda m, i, out: seen.append(tuple(out.shape[1:])))
    body(torch.randn(1, 3, 32, 32))
    stages = [(64, 32), (128, 16), (256, 8), (512, 4)]
    assert seen == [(width, side, side) for width, side in stages for _ in range(2)]


@pytest.mark.parametrize(
    "name", ["small", "grey-cnn", "lenet", "har-cnn", "efficientnet"]
)
def test_a_small_batch_is_learnt_by_heart(name):
    model = build(name, classes=2)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, *model.input_shape, generator=generator)
    y = torch.arange(8) % 2
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x, 1), y).backward()
        optimizer.step()
    assert model(x, 1).argmax(1).tolist() == y.tolist()
