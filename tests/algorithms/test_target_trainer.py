"""Samples made from a model alone: each term of the loss against NumPy, then all."""

import numpy as np
import pytest
import torch
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

from fcl_flower.data.examples import Examples, PublicExamples
from fcl_flower.training.loop import Fit, Training, fit
from fcl_flower.training.tensors import snapshot
from strategies.target import SynthesisParams
from strategies.target.trainer import (
    ImageGenerator,
    SampleTrainer,
    Synthesis,
    disagreement,
    norm_distances,
)


def synthesis(teacher=None, student=None, **params):
    params = SynthesisParams(**{**SMALL, **params})
    given = teacher or network(0), student or network(1), CHOSEN
    return Synthesis(*given, params, TRAINING, seed=3)


# ---- the terms


def test_only_images_of_which_the_two_disagree_count_in_a_mean_over_all():
    teacher = np.array([[2.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
    student = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    found = disagreement(torch.tensor(student), torch.tensor(teacher))
    expected = kl(teacher, student)[1:].sum() / 3
    assert float(found) == pytest.approx(expected)


def test_statistics_of_a_batch_are_compared_with_those_of_each_layer():
    layers = nn.Sequential(nn.BatchNorm2d(2), nn.ReLU(), nn.BatchNorm2d(2)).eval()
    layers[0].running_mean[:] = torch.tensor([1.0, -1.0])
    layers[2].running_var[:] = torch.tensor([4.0, 0.5])
    x = torch.randn(3, 2, 4, 5, generator=torch.Generator().manual_seed(0))
    with norm_distances(layers) as distances:
        layers(x)
    layers(x)
    assert len(distances) == 4, "and nobody watches any more"
    found = float(sum(distances).detach())

    entering = [x.numpy(), np.maximum(layers[0](x).detach().numpy(), 0)]
    expected = 0.0
    for values, layer in zip(entering, (layers[0], layers[2]), strict=True):
        mean, variance = values.mean((0, 2, 3)), values.var((0, 2, 3))
        expected += np.linalg.norm(mean - layer.running_mean.numpy())
        expected += np.linalg.norm(variance - layer.running_var.numpy())
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("against", [False, True])
def test_the_loss_is_the_sum_of_its_weighted_terms(against):
    teacher, student = network(0), network(1)
    weights = {"label_weight": 0.5, "norm_weight": 7.0}
    made = synthesis(teacher, student, **weights)
    pixels = torch.rand(8, *SHAPE, generator=torch.Generator().manual_seed(2))
    wanted = torch.tensor([0, 1] * 4)

    found = float(made.loss(pixels, wanted, against=against).detach())

    x = (pixels.double().numpy() - 0.5) / 0.25
    taught, learned = by_hand(teacher, x), by_hand(student, x)
    entropy = -np.log(softmax(taught)[np.arange(8), wanted.numpy()]).mean()
    differ = taught.argmax(1) != learned.argmax(1)
    assert 0 < differ.sum() < 8
    adversarial = (differ * kl(taught, learned)).mean()
    expected = 0.5 * entropy - adversarial * against
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_network_with_batch_normalisation_adds_its_statistics():
    def loss(weight):
        made = synthesis(network(0, norm=True), network(1, norm=True), **weight)
        draw = torch.Generator().manual_seed(2)
        pixels = torch.rand(8, *SHAPE, generator=draw)
        wanted = torch.zeros(8, dtype=torch.int64)
        return float(made.loss(pixels, wanted, against=False)), pixels

    (with_norms, pixels), (without, _) = loss({}), loss({"norm_weight": 0.0})

    x = (pixels.numpy() - 0.5) / 0.25
    distance = abs(x.mean()) + abs(x.var() - 1)
    assert with_norms - without == pytest.approx(10 * distance, rel=1e-4)


# ---- the student and the generator


def test_the_student_learns_the_softened_answers_of_the_teacher(monkeypatch):
    teacher, student = network(0), network(1)
    made = synthesis(teacher, student)
    x = torch.randn(7, *SHAPE, generator=torch.Generator().manual_seed(4))
    losses = []

    def noted(job):
        assert job.training.epochs == SMALL["student_epochs"]
        assert (job.training.batch_size, job.training.learning_rate) == (8, 0.05)
        losses.append(float(job.objective(torch.arange(7), torch.arange(7)).detach()))
        return fit(job)

    monkeypatch.setattr("strategies.target.trainer.fit", noted)
    taught, learned = by_hand(teacher, x.numpy()), by_hand(student, x.numpy())
    made.teach(x, 0)
    made.teach(x, 1)

    expected = 400 * kl(taught / 20, learned / 20).mean()
    assert losses[0] == pytest.approx(expected, rel=1e-3)
    assert losses[1] < losses[0]


def test_what_is_taught_is_all_that_is_kept_and_nothing_of_the_warm_up(monkeypatch):
    made, seen = synthesis(synthetic_samples=16, warmup=2), []
    batch = Synthesis._batch

    def noted(self, number, *, against):
        seen.append(("batch", number, against))
        return batch(self, number, against=against)

    monkeypatch.setattr(Synthesis, "_batch", noted)
    monkeypatch.setattr(
        Synthesis, "teach", lambda self, x, number: seen.append((len(x), number))
    )
    assert made.images().shape == (16, *SHAPE)
    assert seen == [
        ("batch", 0, False),
        ("batch", 1, False),
        ("batch", 2, False),
        (6, 2),
        ("batch", 3, True),
        (12, 3),
        ("batch", 4, True),
    ]


def test_the_generator_is_trained_on_even_labels_at_its_own_rate(monkeypatch):
    made, seen = synthesis(synthetic_batch=7, warmup=0, synthetic_samples=7), []

    def noted(job):
        seen.append((job.training, torch.bincount(job.examples.y).tolist()))
        return fit(job)

    monkeypatch.setattr("strategies.target.trainer.fit", noted)
    made.images()

    ((training, counts),) = seen
    assert training == Training(epochs=3, batch_size=7, learning_rate=2e-3)
    assert counts == [4, 3]


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 28, 28), (2, 5, 7), (1, 1, 1)])
def test_a_generator_makes_images_of_any_size(shape):
    torch.manual_seed(0)
    found = ImageGenerator(6, 3, shape)(torch.randn(4, 6))
    assert found.shape == (4, *shape)
    assert found.min() > 0 > found.max() - 1


# ---- all together


@pytest.fixture(scope="module")
def learned():
    """A teacher that tells which quarter of an image is bright; two classes count."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(200) % 4
    pixels = torch.rand(200, *SHAPE, generator=draw) * 0.3
    for quarter in range(4):
        rows, columns = 2 * (quarter // 2), 2 * (quarter % 2)
        pixels[y == quarter, :, rows : rows + 2, columns : columns + 2] += 0.6
    model = network(0)
    x = (pixels - 0.5) / 0.25

    def objective(x, y):
        return nn.functional.cross_entropy(model.train()(x, 0), y)

    job = Fit(
        parameters=dict(model.named_parameters()),
        objective=objective,
        examples=Examples(x, y),
        training=TRAINING,
        seed=0,
    )
    fit(job)
    return snapshot(model, model.shared_names())


def trainer(model=None, seed=5):
    none = torch.empty(0, dtype=torch.int64)
    public = PublicExamples(torch.empty(0, 0), none, none)
    return SampleTrainer(model or network(7), public, TRAINING, seed)


def test_a_model_takes_its_samples_for_the_classes_that_were_wanted(learned):
    params = SynthesisParams(
        **{**SMALL, "synthetic_samples": 60, "generator_steps": 12}
    )
    before = exact({"": learned})

    found = trainer().synthesize(learned, LABELS, params, 1)

    x, logits = found["x"], found["logits"]
    assert (x.dtype, x.shape) == (np.uint8, (60, *SHAPE))
    assert (logits.dtype, logits.shape) == (np.float32, (60, 2))
    assert found["labels"].tolist() == [1, 3]
    teacher = network()
    teacher.load_state_dict({n: torch.tensor(w) for n, w in learned.items()})
    np.testing.assert_allclose(
        logits, by_hand(teacher, (x / 255 - 0.5) / 0.25), rtol=1e-4, atol=1e-4
    )
    assert np.bincount(logits.argmax(1), minlength=2).min() >= 20
    assert np.unique(x.reshape(60, -1), axis=0).shape == (60, 16)
    # Class 1 is bright at the right above, class 3 at the right below.
    above = x[logits.argmax(1) == 0].mean(0)[0, :2, 2:].mean()
    below = x[logits.argmax(1) == 1].mean(0)[0, :2, 2:].mean()
    assert above > below + 30
    assert exact({"": learned}) == before


def test_the_student_is_a_fresh_network_each_time(learned, monkeypatch):
    def of(model):
        return exact({"": snapshot(model, model.state_dict())})

    students = []
    monkeypatch.setattr(
        Synthesis,
        "teach",
        lambda self, x, number: students.append(of(self.student)),
    )
    made = trainer(network(7))
    for number in (1, 2):
        made.synthesize(learned, LABELS, SynthesisParams(**SMALL), number)
    assert students == [of(network(7))] * 2


def test_the_same_call_makes_the_same_and_another_number_or_seed_others(learned):
    params, made = SynthesisParams(**SMALL), trainer()
    assert len(made.labels) == 0

    def images(maker, number):
        return maker.synthesize(learned, LABELS, params, number)["x"].tolist()

    one = images(made, 1)
    assert images(made, 1) == one
    assert images(made, 2) != one
    assert images(trainer(seed=6), 1) != one
