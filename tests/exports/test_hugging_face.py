"""Exported folders against the learner's logits, opened by transformers alone."""

import ast
import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from encoders import (
    CLASSES,
    IMAGES,
    KNOWN,
    enhanced,
    inputs,
    lora,
    plain,
    saved,
    saved_tokenizer,
)
from PIL import Image
from text_sets import encoded_topics
from transformers import AutoImageProcessor, AutoTokenizer

import fcl_flower as fcl
from fcl_flower.config.run_config import RunConfig
from fcl_flower.data.images import to_tensor
from fcl_flower.exports.hugging_face import write_transformers
from fcl_flower.exports.networks import Exported, exported
from fcl_flower.models.encoder import Transformer
from fcl_flower.models.heads import Head, Network
from fcl_flower.models.normalisation import FIXED, Normalisation
from fcl_flower.models.pretrained import EncoderParams
from fcl_flower.models.registry import LoraParams

pytestmark = pytest.mark.usefixtures("one_thread")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{n}" for n in range(36))]


@pytest.fixture(autouse=True)
def _own_modules(tmp_path, monkeypatch):
    """Let the library keep the code of opened folders here, not in the user's home."""
    cache = tmp_path / "modules"
    monkeypatch.setattr(
        transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(cache)
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name in [name for name in sys.modules if name.startswith("transformers_mod")]:
        del sys.modules[name]


@pytest.fixture
def encoder(tmp_path):
    """Return a function that writes an encoder with what belongs to it."""

    def of(kind):
        folder = saved(tmp_path / kind, kind)
        return folder if kind in IMAGES else saved_tokenizer(folder, WORDS)

    return of


def made(
    body,
    kind,
    encoder="",
    dtype="float32",
    names=(),
    x=None,
    normalisation=FIXED,
):
    """Return a network with a random head, as `exported` returns one."""
    torch.manual_seed(4)
    network = Network(body, Head(body.features, CLASSES))
    x = inputs(kind) if x is None else x
    names = names or tuple(f"class {n}" for n in range(CLASSES))
    run = SimpleNamespace(
        model_params=LoraParams(encoder=encoder, max_tokens=10, dtype=dtype),
        config=RunConfig.from_settings(model="lora-transformer"),
        normalisation=normalisation,
    )
    return Exported(
        model=SimpleNamespace(run=run),
        task=0,
        network=network,
        names=names,
        rows=tuple(range(len(names))),
        inputs=x,
        logits=network(x),
        raw=x,
        accuracy=None,
        tested=0,
    )


def opened(folder, kind="bert"):
    """Return what the library makes of a folder, evaluating."""
    what = "Image" if kind in IMAGES else "Sequence"
    auto = getattr(transformers, f"AutoModelFor{what}Classification")
    model = auto.from_pretrained(folder, trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules.")
    assert not model.training
    return model


def asked(x, kind, padding=0):
    """Return inputs under the library's names, without our code."""
    if kind in IMAGES:
        return {"pixel_values": x}
    ids = torch.where(x > 0, x - 1, padding)
    return {"input_ids": ids, "attention_mask": (x > 0).long()}


@pytest.mark.parametrize("kind", KNOWN)
def test_the_library_gives_the_logits_of_an_encoder_with_learned_changes(
    kind, encoder, tmp_path
):
    place = encoder(kind)
    found = made(lora(place, learned=True), kind, place)
    write_transformers(found, tmp_path / "out")

    model = opened(tmp_path / "out", kind)

    padding = 1 if kind == "roberta" else 0
    with torch.no_grad():
        logits = model(**asked(found.inputs, kind, padding)).logits
        without = Network(plain(place), found.network.head)(found.inputs)
    np.testing.assert_allclose(logits, found.logits, rtol=1e-4, atol=1e-4)
    assert (logits - without).abs().max() > 0.1
    assert (
        sum(p.numel() for p in model.parameters())
        == sum(p.numel() for p in plain(place).encoder.parameters()) + 17 * CLASSES
    )


@pytest.mark.parametrize("pooling", ["mean", "class", "both"])
def test_depth_size_pooling_and_pixels_of_images_go_along(tmp_path, pooling):
    place = saved(tmp_path / "dinov2", "dinov2")
    means, deviations = [0.4, 0.5, 0.6], [0.1, 0.2, 0.3]
    said = {"image_mean": means, "image_std": deviations}
    said |= {"do_rescale": True, "do_normalize": True}
    (tmp_path / "dinov2" / "preprocessor_config.json").write_text(json.dumps(said))
    settings = {"depth": 2, "image_size": 20, "pooling": pooling}
    params = EncoderParams(encoder=place, **settings)
    pixels = torch.rand(2, 3, 20, 20, generator=torch.Generator().manual_seed(1))
    normalisation = Normalisation(tuple(means), tuple(deviations))
    x = normalisation.standardized(pixels)
    body = Transformer(params).eval()
    found = made(body, "dinov2", place, x=x, normalisation=normalisation)
    write_transformers(found, tmp_path / "out")

    model = opened(tmp_path / "out", "dinov2")

    with torch.no_grad():
        logits = model(pixel_values=x).logits
    np.testing.assert_allclose(logits, found.logits, rtol=1e-4, atol=1e-4)
    about = json.loads((tmp_path / "out" / "preprocessor_config.json").read_text())
    assert (about["image_mean"], about["image_std"]) == (means, deviations)
    assert about["size"] == {"height": 20, "width": 20}
    assert model.config.encoder["num_hidden_layers"] == 2


def test_texts_go_in_as_they_are_read_and_names_of_classes_come_out(encoder, tmp_path):
    place = encoder("bert")
    names = ("apples", "pears", "<b>", "figs")
    found = made(plain(place), "bert", place, names=names)
    write_transformers(found, tmp_path / "out")
    ours = AutoTokenizer.from_pretrained(place)
    text = " ".join(f"w{n % 36}" for n in range(30))
    cut = ours(text, truncation=True, max_length=10, return_tensors="pt")

    pipe = transformers.pipeline(
        "text-classification", str(tmp_path / "out"), trust_remote_code=True
    )
    (told,) = pipe([text], truncation=True)

    logits = found.network(cut["input_ids"] + 1)[0, : len(names)]
    assert told["label"] == names[int(logits.argmax())]
    chance = float(torch.softmax(logits, 0).max())
    assert told["score"] == pytest.approx(chance, abs=1e-4)
    assert (
        pipe.tokenizer(text, truncation=True)["input_ids"]
        == cut["input_ids"][0].tolist()
    )
    assert pipe.model.config.label2id == {name: n for n, name in enumerate(names)}


@pytest.mark.parametrize("known", [((0.5,), (0.25,)), ((0.1, 0.4, 0.6), (0.2,))])
def test_images_are_prepared_as_in_training(known, encoder, tmp_path):
    place, known = encoder("vit"), Normalisation(*known)
    found = made(plain(place), "vit", place, normalisation=known)
    write_transformers(found, tmp_path / "out")
    pixels = np.random.default_rng(1).integers(0, 256, (2, 12, 12, 3), np.uint8)

    prepare = AutoImageProcessor.from_pretrained(tmp_path / "out")
    found = prepare([Image.fromarray(one) for one in pixels], return_tensors="pt")

    wanted = to_tensor(pixels, (3, 12, 12), known)
    np.testing.assert_allclose(found["pixel_values"], wanted, atol=1e-5)
    larger = np.kron(pixels[0], np.ones((3, 2, 1), np.uint8))
    found = prepare(Image.fromarray(larger), return_tensors="pt")
    # Theirs rounds to bytes between the two axes and behind them.
    wanted = to_tensor(larger[None], (3, 12, 12), known)
    np.testing.assert_allclose(found["pixel_values"], wanted, atol=3 / 255 / 0.25)


def test_the_loss_is_the_cross_entropy_and_a_text_needs_no_mask(encoder, tmp_path):
    place = encoder("bert")
    found = made(plain(place), "bert", place)
    write_transformers(found, tmp_path / "out")
    ids, labels = found.inputs[:1] - 1, torch.tensor([3])

    with torch.no_grad():
        answer = opened(tmp_path / "out")(input_ids=ids, labels=labels)

    logits = found.logits[0].double()
    wanted = float(torch.logsumexp(logits, 0) - logits[3])
    assert float(answer.loss) == pytest.approx(wanted, abs=1e-4)
    with pytest.raises(ValueError, match=r"^got neither"):
        opened(tmp_path / "out")(labels=labels)


def test_a_folder_needs_no_code_but_its_own_and_tells_no_place(encoder, tmp_path):
    place = encoder("bert")
    write_transformers(made(plain(place), "bert", place), tmp_path / "out")

    (code,) = (tmp_path / "out").glob("*.py")
    nodes = ast.walk(ast.parse(code.read_text()))
    imported = {
        name.partition(".")[0]
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None) or node.names[0].name]
    }
    # The first two come with the others.
    assert imported == {"typing", "typing_extensions", "torch", "transformers"}
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= written
    for path in (tmp_path / "out").glob("*.json"):
        assert str(tmp_path) not in path.read_text()


def test_what_the_librarys_form_would_not_predict_alike_is_refused(encoder, tmp_path):
    place = encoder("bert")
    message = "^model.name: got 'lora-transformer', expected transformer, vit, lora-"
    with pytest.raises(fcl.ConfigError, match=message):
        write_transformers(made(enhanced(place), "bert", place), tmp_path / "out")
    found = made(plain(place), "bert", place)
    other = Network(found.network.body, torch.nn.Linear(16, CLASSES))
    with pytest.raises(fcl.ConfigError, match=message):
        write_transformers(replace(found, network=other), tmp_path / "out")
    half = made(plain(place), "bert", place, dtype="bfloat16")
    half = replace(half, logits=half.logits + 0.01)
    message = "^model.dtype: got 'bfloat16', expected float32, as the library's own"
    with pytest.raises(fcl.ConfigError, match=message):
        write_transformers(half, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.run
@pytest.mark.parametrize("head", ["multi", "single"])
def test_a_run_leaves_a_network_that_the_library_opens(head, tmp_path):
    settings = encoded_topics(tmp_path) | {"model": "lora-transformer"}
    fcl.simulate(
        "fedavg",
        output=tmp_path / "run",
        **settings,
        **{"run.keep_clients": True, "model.head": head, "training.epochs": 3},
        scenario="classes",
        clients=2,
        tasks=2,
        rounds=1,
        progress=False,
    )
    found = exported(fcl.load(tmp_path / "run", client=1), 1)
    plan = json.loads((tmp_path / "run" / "scenario.json").read_text())["clients"][1]
    write_transformers(found, tmp_path / "out")

    model = opened(tmp_path / "out")

    with torch.no_grad():
        logits = model(**asked(found.inputs, "bert")).logits
    wanted = found.logits[:, list(found.rows)]
    np.testing.assert_allclose(logits, wanted, rtol=1e-4, atol=1e-4)
    own = plan[1]["class_names"]
    every = sorted({name for task in plan for name in task["class_names"]})
    wanted = own if head == "multi" else every
    assert list(model.config.id2label.values()) == wanted
