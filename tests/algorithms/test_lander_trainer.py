"""Anchors of names, and samples near them, against NumPy and a tiny text encoder."""

import numpy as np
import pytest
import torch
from encoders import saved, saved_tokenizer
from fakes import exact
from synthesis_cases import (
    CHOSEN,
    LABELS,
    SHAPE,
    SMALL,
    TRAINING,
    by_hand,
    kl,
    network,
    softmax,
)
from torch import nn
from transformers import AutoModel

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.examples import PublicExamples
from fcl_flower.training.loop import fit
from fcl_flower.training.tensors import snapshot
from strategies.lander import LanderParams
from strategies.lander.trainer import (
    AnchoredGenerator,
    AnchoredSynthesis,
    AnchoredTrainer,
    bounding_loss,
    name_anchors,
    projection,
)

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "cat", "sea", "dog"]
WIDTH = 3
LAYER = {"projection.weight": np.zeros((WIDTH, 6), np.float32)}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    return saved_tokenizer(saved(folder, "bert"), WORDS)


# ---- anchors


def test_an_anchor_is_the_mean_of_the_encoders_last_states_of_a_name(encoder):
    found = name_anchors(("cat", "sea_dog"), encoder)

    assert (found.dtype, found.shape) == (np.float32, (2, 16))
    theirs = AutoModel.from_pretrained(encoder).eval()
    for anchor, ids in zip(found, ([2, 4, 3], [2, 5, 6, 3]), strict=True):
        states = theirs(torch.tensor([ids])).last_hidden_state
        expected = states.detach().mean(1)[0]
        np.testing.assert_allclose(anchor, expected, atol=1e-4)


def test_classes_of_one_name_are_refused(encoder):
    sentence = r"data\.datasets: got 'cat, cat', expected classes whose names"
    with pytest.raises(ConfigError, match=sentence):
        name_anchors(("cat", "cat"), encoder)
    with pytest.raises(ConfigError, match="expected classes whose names"):
        name_anchors(("cat", ""), encoder)


def test_features_cost_what_lies_beyond_the_radius_in_the_mean_of_a_batch():
    rng = np.random.default_rng(0)
    projected, anchors = torch.tensor(rng.normal(size=(2, 4, 3)))
    distance = float(((projected - anchors) ** 2).mean())
    found = float(bounding_loss(0.3, projected, anchors))
    assert found == pytest.approx(distance - 0.3)
    assert float(bounding_loss(distance + 0.1, projected, anchors)) == 0


def test_a_projection_becomes_part_of_what_is_shared_once():
    model = network()
    layer = projection(model, LAYER)
    assert layer.weight.shape == (WIDTH, 6)
    assert {"projection.weight", "projection.bias"} < {*model.shared_names()}
    assert projection(model, {}) is layer


# ---- the generator


def test_a_sample_enters_by_the_random_layer_of_its_ten():
    torch.manual_seed(0)
    made = AnchoredGenerator(WIDTH, 12, 5, 4, SHAPE)
    seen = []
    made.images.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    anchors = torch.randn(12, WIDTH)
    made.redraw(torch.Generator().manual_seed(1))
    made(anchors)

    values = anchors.numpy()
    normal = (values - values.mean(0)) / np.sqrt(values.var(0) + 1e-5)
    assert len(made.layers) == 2
    for row in (0, 9, 10, 11):
        layer = made.layers[row // 10].weight.detach().numpy()
        expected = normal[row] @ layer.T
        np.testing.assert_allclose(seen[0][row].detach(), expected, atol=1e-5)


def test_random_layers_are_drawn_anew_with_variance_one():
    made = AnchoredGenerator(300, 10, 50, 2, SHAPE)
    made.layers[0].bias.data += 1
    made.redraw(torch.Generator().manual_seed(1))
    first = made.layers[0].weight.detach().clone()
    assert float(first.std()) == pytest.approx(1, abs=0.02)
    assert not made.layers[0].bias.any()
    made.redraw(torch.Generator().manual_seed(2))
    assert not torch.equal(made.layers[0].weight, first)


# ---- losses of the synthesis


def projected_model(seed):
    model = network(seed)
    layer = projection(model, LAYER)
    draw = torch.Generator().manual_seed(10 + seed)
    layer.weight.data = torch.randn(WIDTH, 6, generator=draw)
    return model


def synthesis(anchors, **params):
    given = projected_model(0), projected_model(1), CHOSEN
    params = LanderParams(**{**SMALL, **params})
    return AnchoredSynthesis(*given, params, TRAINING, 3, anchors)


def features_by_hand(model, x):
    """Return the features in the space of the anchors, in double precision."""
    found = {name: w.double().numpy() for name, w in model.state_dict().items()}
    hidden = x.reshape(len(x), -1).astype(float) @ found["body.1.weight"].T
    hidden = np.tanh(hidden + found["body.1.bias"])
    return hidden @ found["projection.weight"].T + found["projection.bias"]


def test_the_generators_loss_has_the_anchors_beside_the_labels():
    anchors = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(5))
    made = synthesis(anchors, anchor_weight=4.0, radius=0.1)
    pixels = torch.rand(6, *SHAPE, generator=torch.Generator().manual_seed(2))
    wanted = torch.tensor([0, 1, 1, 0, 1, 1])

    found = float(made.loss(pixels, wanted, against=False).detach())

    x = (pixels.double().numpy() - 0.5) / 0.25
    logits = by_hand(made.teacher, x)
    entropy = -np.log(softmax(logits)[np.arange(6), wanted.numpy()]).mean()
    near = features_by_hand(made.teacher, x) - anchors.numpy()[wanted.numpy()]
    expected = 0.5 * entropy + 4.0 * max(0, (near**2).mean() - 0.1)
    assert found == pytest.approx(expected, rel=1e-5)


def test_the_student_learns_features_beside_the_answers(monkeypatch):
    made = synthesis(torch.zeros(2, WIDTH), anchor_weight=4.0)
    x = torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(4))
    losses = []

    def noted(job):
        losses.append(float(job.objective(torch.arange(5), torch.arange(5)).detach()))
        return fit(job)

    monkeypatch.setattr("strategies.target.trainer.fit", noted)
    teacher, student, values = made.teacher, made.student, x.numpy()
    far = features_by_hand(student, values) - features_by_hand(teacher, values)
    answers = kl(by_hand(teacher, values) / 20, by_hand(student, values) / 20)
    made.teach(x, 0)

    expected = 400 * answers.mean() + 4.0 * (far**2).mean()
    assert losses[0] == pytest.approx(expected, rel=1e-3)


def test_samples_come_with_the_projected_features_of_the_model(encoder):
    none = torch.empty(0, dtype=torch.int64)
    public = PublicExamples(torch.empty(0, 0), none, none)
    made = AnchoredTrainer(network(7), public, TRAINING, 5)
    anchors = made.anchors(("cat", "dog", "sea", "sea dog"), encoder)
    teacher = network(0)
    projection(teacher, {"projection.weight": np.zeros((16, 6))})
    learned = snapshot(teacher, teacher.shared_names())
    params = LanderParams(**SMALL)

    found = made.synthesize_near(learned, LABELS, params, 1, anchors)

    x = (found["x"] / 255 - 0.5) / 0.25
    expected = features_by_hand(teacher, x)
    np.testing.assert_allclose(found["features"], expected, rtol=1e-3, atol=1e-4)
    expected = by_hand(teacher, x)
    np.testing.assert_allclose(found["logits"], expected, rtol=1e-3, atol=1e-4)
    again = made.synthesize_near(learned, LABELS, params, 1, anchors)
    assert exact({"": again}) == exact({"": found})
    other = made.synthesize_near(learned, LABELS, params, 1, anchors[::-1].copy())
    assert other["x"].tolist() != found["x"].tolist()


def test_the_anchors_of_the_labels_are_those_that_are_used(monkeypatch):
    none = torch.empty(0, dtype=torch.int64)
    public = PublicExamples(torch.empty(0, 0), none, none)
    made, seen = AnchoredTrainer(network(7), public, TRAINING, 5), []
    forward = AnchoredGenerator.forward

    def noted(self, anchors):
        seen.append(anchors)
        return forward(self, anchors)

    monkeypatch.setattr(AnchoredGenerator, "forward", noted)
    teacher = network(0)
    projection(teacher, LAYER)
    learned = snapshot(teacher, teacher.shared_names())
    anchors = np.arange(12, dtype=np.float32).reshape(4, WIDTH)
    made.synthesize_near(learned, LABELS, LanderParams(**SMALL), 1, anchors)

    rows = {tuple(row) for row in torch.cat(seen).tolist()}
    assert rows == {(3, 4, 5), (9, 10, 11)}
    assert isinstance(teacher.projection, nn.Linear)
