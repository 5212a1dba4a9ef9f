"""What methods of old samples and old models have in common: memory and teacher."""

from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from class_streams import (
    AGAIN,
    FIRST,
    FOURTH,
    NOTHING,
    SECOND,
    THIRD,
    data,
    logits_of,
    model,
    moved,
    place,
    same,
    start,
)
from resuming import check_resumed, small
from watched_fit import Watched

from clients.icarl import Icarl
from clients.lwf import Lwf
from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.exemplars import replay_samples
from fcl_flower.algorithms.local_training import LocalTraining, Turn
from fcl_flower.algorithms.registry import algorithm
from fcl_flower.algorithms.teacher import CLASSES, MODEL, Teacher
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.training.tensors import snapshot
from strategies.lwf import LwfParams

MEMORIES = ("replay", "der", "icarl", "dde-icarl", "bic", "ss-il", "podnet")
TEACHERS = ("lwf", "icarl", "dde-icarl", "bic", "ss-il", "podnet")
SHRINKS = {"replay": {"budget": "fixed"}, "podnet": {"finetune_epochs": 0}}


def learner(name, samples=8, where=None):
    entry, network = algorithm(name), model()
    given = {"memory_samples": samples, "memory_policy": "balanced"}
    params = entry.params({**SHRINKS.get(name, {}), **(given if name != "lwf" else {})})
    client = entry.load_client()
    if hasattr(client, "replace_heads"):
        client.replace_heads(network, params)
    return client(params, network, where or place())


def received(one):
    ones = np.ones(6, np.float32)
    sent = {"base": snapshot(one.model, one.model.shared_names())}
    bias = {"bias": {"scale": ones, "shift": 0 * ones}}
    return {**sent, **bias} if type(one).__name__ == "Bic" else sent


def memory(one, state):
    return state["exemplars" if isinstance(one, Icarl) else "memory"]


def teacher_of(one, state, stage, task, base=None):
    """Return the teacher of a round that trains on `task`, by a client's state."""
    base = base or start()["base"]
    return Teacher.of_turn(Turn(state, {}, stage, task), one.model, base)


# ---- the memory


@contextmanager
def replayed(one):
    """Collect what a learner takes out of its memory, in order."""
    taken = []

    def watch(*args, **more):
        taken.append(replay_samples(*args, **more))
        return taken[-1]

    with mock.patch(f"{one.train.__module__}.replay_samples", watch):
        yield taken


@pytest.mark.parametrize("name", MEMORIES)
def test_samples_are_kept_when_a_task_ends_and_old_classes_make_room(name):
    one = learner(name)
    sent = received(one)
    state, _ = one.train(Turn({}, sent, FIRST, data(0)))
    assert len(memory(one, state)["y"]) == 8
    with replayed(one) as taken:
        during, _ = one.train(Turn(state, sent, SECOND, data(1)))
    assert memory(one, during) is memory(one, state)
    assert len(taken[0].y) == 8
    after, _ = one.train(Turn(during, sent, THIRD, data(1)))
    if name != "der":  # those of a reservoir are any
        labels = sorted(memory(one, after)["y"].tolist())
        assert labels == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len(memory(one, after)["y"]) == 8


@pytest.mark.parametrize("name", MEMORIES)
def test_a_task_that_comes_back_is_not_joined_with_its_own_samples(name):
    one = learner(name)
    sent = received(one)
    state, _ = one.train(Turn({}, sent, FIRST, data(0)))
    with replayed(one) as taken:
        after, update = one.train(Turn(state, sent, AGAIN, data(0)))
    assert len(taken[0].y) == 0
    assert update.num_examples == 20
    np.testing.assert_array_equal(memory(one, after)["x"], memory(one, state)["x"])


@pytest.mark.parametrize("name", MEMORIES)
def test_a_repeated_round_keeps_the_same_samples(name):
    kept = []
    for _ in range(2):
        one = learner(name)
        sent = received(one)
        state, _ = one.train(Turn({}, sent, FIRST, data(0)))
        one.train(Turn(state, sent, THIRD, data(1)))
        state, _ = one.train(Turn(state, sent, THIRD, data(1)))
        kept.append(memory(one, state)["x"].tolist())
    assert kept[0] == kept[1]


@pytest.mark.parametrize("name", MEMORIES)
def test_clients_draw_their_samples_by_themselves(name):
    kept = []
    for client in (0, 1):
        one = learner(name, where=place(client))
        state, _ = one.train(Turn({}, received(one), FIRST, data(0)))
        kept.append(memory(one, state)["x"].tolist())
    assert kept[0] != kept[1]


@pytest.mark.parametrize("name", MEMORIES)
def test_a_task_without_samples_is_no_reason_to_fail(name):
    one = learner(name)
    sent = received(one)
    state, _ = one.train(Turn({}, sent, FIRST, data(0)))
    after, update = one.train(Turn(state, sent, THIRD, NOTHING))
    if name in ("ss-il", "der"):  # which train on no old sample by itself
        assert same(update.payload, sent)
    assert memory(one, after) is memory(one, state)
    nothing, update = one.train(Turn({}, sent, FIRST, NOTHING))
    assert memory(one, nothing) == {}
    assert same(update.payload, sent)
    assert update.num_examples == 0


@pytest.mark.run
@pytest.mark.parametrize("name", ["replay", "der", "icarl", "bic", "ss-il", "lwf"])
def test_a_run_that_is_interrupted_within_a_task_ends_as_if_it_were_not(tmp_path, name):
    settings = {
        "strategy": name,
        "dataset": "digits",
        "model": "small",
        "scenario": "class-incremental",
        "model.growing_head": True,
        "max_train_per_class": 20,
        "max_test_per_class": 10,
        "rounds": 2,
    }
    more = {"strategy.budget": "fixed"} if name == "replay" else {}
    # In the second round of the second task.
    check_resumed(tmp_path, small(**settings, **more), 4)


# ---- the teacher


@pytest.mark.parametrize("name", TEACHERS)
def test_the_teacher_is_the_model_of_the_tasks_first_round(name):
    one = learner(name)
    first = received(one)
    assert not teacher_of(one, {}, FIRST, data(0)).teaches
    state, _ = one.train(Turn({}, first, FIRST, data(0)))
    assert state[MODEL] == {}
    assert state[CLASSES]["known"].tolist() == [0, 1]
    during, _ = one.train(Turn(state, first, SECOND, data(1)))
    assert same({"base": during[MODEL]}, first)
    assert during[CLASSES]["old"].tolist() == [0, 1]
    assert during[CLASSES]["known"].tolist() == [0, 1, 2, 3]
    other = moved(first)
    later = teacher_of(one, during, THIRD, data(1), other["base"])
    assert same({"base": later.base}, first)
    after, _ = one.train(Turn(during, {**first, **other}, THIRD, data(1)))
    # After a task no model is kept.
    assert after[MODEL] == {}
    assert after[CLASSES].keys() == during[CLASSES].keys()


def lwf(where=None, dropout=0.0, **params):
    return Lwf(LwfParams(**params), model(dropout), where or place())


def test_without_a_teacher_it_is_training_on_the_task_alone():
    for strength, stage in ((1e3, FIRST), (0.0, SECOND)):
        one = lwf(place(epochs=3), strength=strength, contrast="all")
        plain = LocalTraining(Params(), model(), place(epochs=3))
        state = {}
        if stage is SECOND:
            state, _ = one.train(Turn({}, start(), FIRST, data(0)))
        _, found = one.train(Turn(state, start(), stage, data(stage.task)))
        _, expected = plain.train(Turn({}, start(), stage, data(stage.task)))
        assert same(found.payload, expected.payload)


def test_a_task_that_a_client_never_ended_leaves_no_teacher_to_the_next_one():
    one = lwf()
    state, _ = one.train(Turn({}, start(), FIRST, data(0)))
    during, _ = one.train(Turn(state, moved(start()), SECOND, data(1)))
    watched = Watched(one)
    one.train(Turn(during, moved(start(), 0.3), FOURTH, data(2)))
    assert watched["old"].tolist() == [0, 1, 2, 3]
    x = data(2).train.x.double().numpy()
    expected = logits_of(moved(start(), 0.3)["base"], x)
    np.testing.assert_allclose(watched["taught"].logits, expected, atol=1e-5)


def test_the_teacher_drops_nothing_out():
    one = lwf(dropout=0.5)
    watched = Watched(one)
    state, _ = one.train(Turn({}, start(), FIRST, data(0)))
    one.model.train()
    one.train(Turn(state, moved(start()), SECOND, data(1)))
    x = data(1).train.x.double().numpy()
    expected = logits_of(moved(start())["base"], x)
    np.testing.assert_allclose(watched["taught"].logits, expected, atol=1e-5)


def test_a_client_that_lost_its_state_starts_with_the_model_that_it_gets():
    one = lwf()
    watched = Watched(one)
    state, _ = one.train(Turn({}, start(), THIRD, data(1)))
    assert state[CLASSES]["known"].tolist() == [2, 3]
    assert watched["taught"] is None


def test_a_growing_head_tells_which_classes_others_have_met():
    network = model()
    network.restrict_head([0, 1, 2])
    first = TaskData(*[Examples(torch.zeros(3, 3), torch.tensor([1, 1, 0]))] * 3, 6)
    second = TaskData(*[Examples(torch.zeros(3, 3), torch.tensor([4, 4, 3]))] * 3, 6)
    one = Lwf(LwfParams(), network, place())
    teacher = teacher_of(one, {}, FIRST, first)
    assert teacher.known.tolist() == [0, 1, 2]
    assert not teacher.teaches
    network.restrict_head([0, 1, 2, 3, 4])
    later = teacher_of(one, teacher.record(FIRST), SECOND, second)
    assert later.old.tolist() == [0, 1, 2]
    assert later.known.tolist() == [0, 1, 2, 3, 4]


def test_a_class_that_comes_again_is_learned_from_labels_and_from_the_teacher():
    one = lwf()
    state, _ = one.train(Turn({}, start(), FIRST, data(0)))
    task = data(1)
    both = Examples(task.train.x, task.train.y - 1)  # classes 1 and 2
    watched = Watched(one)
    one.train(Turn(state, start(), SECOND, TaskData(both, task.valid, task.test, 6)))
    assert watched["old"].tolist() == [0, 1]
    assert watched["new"].tolist() == [1, 2]


def test_what_was_learned_of_a_task_is_not_old_when_a_reply_is_lost():
    one = lwf()
    state, _ = one.train(Turn({}, start(), FIRST, data(0)))
    first, second = moved(start()), moved(start(), 0.3)
    watched = Watched(one)
    lost, _ = one.train(Turn(state, first, SECOND, data(1)))
    # The server has no update of the task and takes the next round for the first.
    after, _ = one.train(Turn(lost, second, replace(THIRD, starts_task=True), data(1)))
    assert watched["old"].tolist() == [0, 1]
    assert watched["new"].tolist() == [2, 3]
    taught = watched["taught"].logits.double().numpy()
    x = data(1).train.x.double().numpy()
    np.testing.assert_allclose(taught, logits_of(first["base"], x), atol=1e-5)
    # A last round that is repeated for all begins where the first attempt ended.
    one.train(Turn(after, second, THIRD, data(1)))
    assert watched["old"].tolist() == [0, 1]


def test_hidden_concepts_make_each_round_a_task():
    one = lwf()
    watched = Watched(one)
    state, _ = one.train(Turn({}, start(), FIRST, data(0)))
    state, _ = one.train(Turn(state, start(), replace(FIRST, round=2), data(1)))
    assert watched["old"].tolist() == [0, 1]
    one.train(Turn(state, start(), replace(FIRST, round=3), data(0)))
    assert watched["old"].tolist() == [0, 1, 2, 3]
