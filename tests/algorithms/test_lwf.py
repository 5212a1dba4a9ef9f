"""Learning without forgetting, and the old model as a teacher."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from class_streams import (
    FIRST,
    FOURTH,
    NOTHING,
    SECOND,
    THIRD,
    check_loss,
    data,
    five_and_five,
    logits_of,
    model,
    moved,
    place,
    same,
    softmax,
    start,
)

from clients.lwf import Lwf
from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.algorithms.rehearsal import Teacher
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.federation.client import model_bytes
from fcl_flower.training.distillation import distillation_loss
from fcl_flower.training.tensors import load
from strategies.lwf import LwfParams

# ---------------------------------------------------------------- equations


def test_the_distillation_is_the_scaled_divergence_of_softened_answers():
    rng = np.random.default_rng(0)
    z, targets = rng.normal(size=(2, 5, 3)) * 2
    q, p = softmax(z / 3.0), softmax(targets / 3.0)
    expected = 9 * (p * (np.log(p) - np.log(q))).sum(1).mean()

    found = distillation_loss(torch.from_numpy(z), torch.from_numpy(targets), 3.0)

    assert float(found) == pytest.approx(expected)
    alike = distillation_loss(torch.from_numpy(z), torch.from_numpy(z), 3.0)
    assert float(alike) == pytest.approx(0, abs=1e-12)


def objective(base, old_base, x, y, old, new, params):
    """Return LwF's loss by NumPy: labels among new classes, the teacher among old."""
    z, taught = logits_of(base, x), logits_of(old_base, x)
    p = softmax(z[:, new] if params.contrast == "new" else z)
    places = [new.index(label) if params.contrast == "new" else label for label in y]
    entropy = -np.log(p[np.arange(len(y)), places]).mean()
    t = params.temperature
    q, r = softmax(z[:, old] / t), softmax(taught[:, old] / t)
    divergence = (r * (np.log(r) - np.log(q))).sum(1).mean()
    return entropy + params.strength * t**2 * divergence


@pytest.mark.parametrize("contrast", ["new", "all"])
@pytest.mark.parametrize("growing", [False, True])
def test_the_loss_of_a_second_task_and_its_gradient_by_numpy(contrast, growing):
    params = LwfParams(strength=1.7, temperature=2.5, contrast=contrast)
    learner = Lwf(params, model(), place(learning_rate=1e-12))
    if growing:
        learner.model.restrict_head([0, 1])
    state, _ = learner.train({}, start(), FIRST, data(0))
    if growing:
        learner.model.restrict_head([0, 1, 2, 3])
    old_base = moved(start())["base"]
    learner.train(state, {"base": old_base}, SECOND, data(1))
    now = moved(start(), 0.07)["base"]
    load(learner.model, now)
    rows = torch.tensor([3, 0, 11])
    examples = data(1).train
    x, y = examples.x[rows], examples.y[rows]

    def by_hand(weight):
        base = {**now, "heads.0.weight": weight}
        if growing and contrast == "all":  # classes 4 and 5 do not exist yet
            base = {n: v[:4] if n.startswith("heads") else v for n, v in base.items()}
        inputs = x.double().numpy()
        return objective(base, old_base, inputs, y.tolist(), [0, 1], [2, 3], params)

    check_loss(learner, x, y, rows, by_hand)


# ---------------------------------------------------------------- the teacher


def test_the_first_task_has_no_teacher():
    learner = Lwf(LwfParams(strength=1e3, contrast="all"), model(), place(epochs=3))
    plain = LocalTraining(Params(), model(), place(epochs=3))
    state, found = learner.train({}, start(), FIRST, data(0))
    _, expected = plain.train({}, start(), FIRST, data(0))
    assert same(found.payload, expected.payload)
    assert state["memory/teacher"] == {}
    assert state["memory/classes"]["known"].tolist() == [0, 1]


def test_without_strength_it_is_training_on_the_task_alone():
    learner = Lwf(LwfParams(strength=0.0, contrast="all"), model(), place(epochs=3))
    plain = LocalTraining(Params(), model(), place(epochs=3))
    state, _ = learner.train({}, start(), FIRST, data(0))
    _, found = learner.train(state, start(), SECOND, data(1))
    _, expected = plain.train({}, start(), SECOND, data(1))
    assert same(found.payload, expected.payload)


def test_the_teacher_is_the_model_of_the_tasks_first_round():
    learner = Lwf(LwfParams(), model(), place())
    state, _ = learner.train({}, start(), FIRST, data(0))
    first, second = moved(start()), moved(start(), 0.3)
    during, _ = learner.train(state, first, SECOND, data(1))
    assert same({"base": during["memory/teacher"]}, first)
    assert during["memory/classes"]["old"].tolist() == [0, 1]
    assert during["memory/classes"]["known"].tolist() == [0, 1, 2, 3]
    after, _ = learner.train(during, second, THIRD, data(1))
    taught = learner._taught.logits.double().numpy()
    x = data(1).train.x.double().numpy()
    np.testing.assert_allclose(taught, logits_of(first["base"], x), atol=1e-5)
    assert learner.old.tolist() == [0, 1]
    # After a task no model is kept.
    assert after["memory/teacher"] == {}
    assert after["memory/classes"].keys() == during["memory/classes"].keys()


def test_a_task_that_a_client_never_ended_leaves_no_teacher_to_the_next_one():
    learner = Lwf(LwfParams(), model(), place())
    state, _ = learner.train({}, start(), FIRST, data(0))
    during, _ = learner.train(state, moved(start()), SECOND, data(1))
    learner.train(during, moved(start(), 0.3), FOURTH, data(2))
    assert learner.old.tolist() == [0, 1, 2, 3]
    x = data(2).train.x.double().numpy()
    expected = logits_of(moved(start(), 0.3)["base"], x)
    np.testing.assert_allclose(learner._taught.logits, expected, atol=1e-5)


def test_the_teacher_drops_nothing_out():
    learner = Lwf(LwfParams(), model(dropout=0.5), place())
    state, _ = learner.train({}, start(), FIRST, data(0))
    learner.model.train()
    learner.train(state, moved(start()), SECOND, data(1))
    x = data(1).train.x.double().numpy()
    expected = logits_of(moved(start())["base"], x)
    np.testing.assert_allclose(learner._taught.logits, expected, atol=1e-5)


def test_a_client_that_lost_its_state_starts_with_the_model_that_it_gets():
    learner = Lwf(LwfParams(), model(), place())
    state, _ = learner.train({}, start(), THIRD, data(1))
    assert state["memory/classes"]["known"].tolist() == [2, 3]
    assert learner._taught is None


def test_a_growing_head_tells_which_classes_others_have_met():
    network = model()
    network.restrict_head([0, 1, 2])
    labels = torch.tensor([1, 1, 0])
    teacher = Teacher.of_task({}, start(), FIRST, network, labels)
    assert teacher.known.tolist() == [0, 1, 2]
    assert not teacher.teaches
    network.restrict_head([0, 1, 2, 3, 4])
    later = Teacher.of_task(teacher.kept(FIRST), start(), SECOND, network, labels + 3)
    assert later.old.tolist() == [0, 1, 2]
    assert later.known.tolist() == [0, 1, 2, 3, 4]


def test_a_class_that_comes_again_is_learned_from_labels_and_from_the_teacher():
    learner = Lwf(LwfParams(), model(), place())
    state, _ = learner.train({}, start(), FIRST, data(0))
    task = data(1)
    both = Examples(task.train.x, task.train.y - 1)  # classes 1 and 2
    learner.train(state, start(), SECOND, TaskData(both, task.valid, task.test, 6))
    assert learner.old.tolist() == [0, 1]
    assert learner.new.tolist() == [1, 2]


def test_a_task_without_samples_is_no_reason_to_fail():
    learner = Lwf(LwfParams(), model(), place())
    state, _ = learner.train({}, start(), FIRST, data(0))
    after, update = learner.train(state, start(), SECOND, NOTHING)
    assert update.num_examples == 0
    assert same(update.payload, start())
    assert after["memory/classes"]["old"].tolist() == [0, 1]


def test_the_teacher_is_of_a_task_alone():
    learner = Lwf(LwfParams(), model(), place())
    state, _ = learner.train({}, start(), FIRST, data(0))
    during, _ = learner.train(state, start(), SECOND, data(1))
    assert during["memory/teacher"]
    without = {**during, "memory/teacher": {}}
    size = model_bytes(learner, during, start())
    assert size == model_bytes(learner, without, start())
    # Eight bytes for each of the old classes, once more while the task lasts.
    assert size <= model_bytes(learner, {}, start()) + 8 * (4 + 2)


def test_what_was_learned_of_a_task_is_not_old_when_a_reply_is_lost():
    learner = Lwf(LwfParams(), model(), place())
    state, _ = learner.train({}, start(), FIRST, data(0))
    first, second = moved(start()), moved(start(), 0.3)
    lost, _ = learner.train(state, first, SECOND, data(1))
    # The server has no update of the task and takes the next round for the first.
    retried = replace(THIRD, starts_task=True)
    after, _ = learner.train(lost, second, retried, data(1))
    assert learner.old.tolist() == [0, 1]
    assert learner.new.tolist() == [2, 3]
    taught = learner._taught.logits.double().numpy()
    x = data(1).train.x.double().numpy()
    np.testing.assert_allclose(taught, logits_of(first["base"], x), atol=1e-5)
    # A last round that is repeated for all begins where the first attempt ended.
    learner.train(after, second, THIRD, data(1))
    assert learner.old.tolist() == [0, 1]


def test_hidden_concepts_make_each_round_a_task():
    learner = Lwf(LwfParams(), model(), place())
    state, _ = learner.train({}, start(), FIRST, data(0))
    state, _ = learner.train(state, start(), replace(FIRST, round=2), data(1))
    assert learner.old.tolist() == [0, 1]
    learner.train(state, start(), replace(FIRST, round=3), data(0))
    assert learner.old.tolist() == [0, 1, 2, 3]


# ---------------------------------------------------------------- runs


def test_the_teacher_keeps_old_classes_that_are_forgotten_without_it(tmp_path):
    alone, taught = (
        five_and_five(tmp_path / str(s), "lwf", **{"strategy.strength": s})
        for s in (0.0, 1.0)
    )
    assert taught[0] > alone[0] + 0.1
    assert taught.mean() > alone.mean() + 0.05
