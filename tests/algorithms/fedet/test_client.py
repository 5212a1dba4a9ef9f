"""FedET, client half: classes on a circle, groups of a toy network, sums by hand."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from fakes import exact
from torch import nn

from clients.fedet import client
from clients.fedet.client import KNOWN, NEVER, FedEt, distillation_targets
from fcl_flower.algorithms.base import ClientContext, ServerContext, Turn
from fcl_flower.algorithms.local_only import LocalOnlyLearner
from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import Examples, PublicExamples, TaskData
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.distillation import predict_logits
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import load, snapshot
from strategies.fedet import FedEtParams
from strategies.fedet.server import FedEt as Server
from strategies.fedet.trainer import FedEtTrainer

CLASSES = 8
RIGHT, LEFT = 0, 1
FIRST, SECOND = (
    TaskStage(n + 1, n, starts_task=True, ends_task=True) for n in range(2)
)


pytestmark = pytest.mark.usefixtures("one_thread")


class Body(nn.Module):
    """Half of it is frozen. Points of the plane are their own features."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(2, 16).requires_grad_(False)
        self.learned = nn.Linear(16, 16)

    def embed(self, x):
        return x

    def forward(self, x):
        return torch.tanh(self.learned(torch.tanh(self.frozen(x))))


def model(classes=CLASSES):
    torch.manual_seed(0)
    return MultiHeadModel(
        Body(),
        features=16,
        input_shape=(2,),
        tasks=1,
        classes=classes,
        single_head=True,
    )


def learner(training=None, classes=CLASSES, **params):
    given = {"groups": 2, "buffer_fraction": 0.2, "copies": 2, "distil_epochs": 60}
    given |= {"distil_on": "memory", "label_weight": 0.0, "start": "fresh"}
    given |= {"least_share": 0.0, **params}
    chosen = {"epochs": 40, "batch_size": 20, "learning_rate": 0.02} | (training or {})
    place = ClientContext(client=0, seed=0, training=Training(**chosen, lr_patience=0))
    return FedEt(FedEtParams(**given), model(classes), place)


def centre(label, classes=CLASSES):
    angle = 2 * math.pi * (label + 0.5) / classes
    return torch.tensor([3 * math.cos(angle), 3 * math.sin(angle)])


def points(counts, seed=0, classes=CLASSES):
    """Return ``counts[label]`` points around the place of each label on a circle.

    Labels 0, 1, 6 and 7 of eight are on the right.
    """
    draw = torch.Generator().manual_seed(seed)
    x = [
        centre(label, classes) + 0.25 * torch.randn(count, 2, generator=draw)
        for label, count in counts.items()
    ]
    y = [torch.full((count,), label) for label, count in counts.items()]
    return Examples(torch.cat(x), torch.cat(y))


def task(*labels, count=30, classes=CLASSES, **counts):
    chosen = dict.fromkeys(labels, count) | {int(k[1:]): v for k, v in counts.items()}
    train, valid, test = (points(chosen, seed, classes) for seed in range(3))
    return TaskData(train, valid, test, classes)


def router(angle=0.0, groups=(RIGHT, LEFT)):
    """Return a router by which half plane a point is in, around an angle."""
    way = [math.cos(angle), math.sin(angle)]
    weights = np.array([way, [-way[0], -way[1]]], np.float32)
    offsets = np.zeros(2, np.float32)
    return {"weights": weights, "offsets": offsets, "groups": np.array(groups)}


def sent(count=2, classes=CLASSES, **router_of):
    """Return what a server of so many groups sends at the start."""
    known = {KNOWN: {"classes": np.zeros((count, classes), np.uint8)}}
    return known | ({"router": router(**router_of)} if count > 1 else {})


def served(before, update):
    """Return what it sends when a client alone has answered."""
    known = before[KNOWN]["classes"].copy()
    after = dict(before)
    for group, tensors in update.payload.items():
        kind, j = group.split("/")
        if kind == "enhancers":
            after[group] = tensors
            known[int(j), update.payload[f"meta/{j}"]["classes"]] = 1
    return {**after, KNOWN: {"classes": known}}


def accuracy(found, received, examples, state=None):
    logits = found.predict(state or {}, received, 0, examples.x)
    return float((logits.argmax(1) == examples.y).float().mean())


def told(update):
    return {
        int(group[5:]): tensors["classes"].tolist()
        for group, tensors in update.payload.items()
        if group.startswith("meta/")
    }


def test_remembered_samples_are_varied_until_old_classes_are_as_frequent(monkeypatch):
    found, seen = learner(groups=1, distil_on="task", copies=50), []
    state, one = found.train(Turn({}, sent(1), FIRST, task(0, 2)))
    monkeypatch.setattr(
        client, "distill", lambda m, lesson, *_: seen.append(lesson) or 0
    )

    found.train(Turn(state, served(sent(1), one), SECOND, task(3, 5)))

    # Six remembered samples of each old class, 30 new ones of each new class.
    assert torch.bincount(seen[0].labels).tolist() == [30, 0, 30, 30, 0, 30]


# ---------------------------------------------------------------- tasks


def test_in_a_first_task_the_temporary_group_travels():
    found = learner({"epochs": 1, "batch_size": 100}, groups=1)
    data = task(2, 7)

    state, update = found.train(Turn({}, sent(1), FIRST, data))

    # One step of Adam by torch alone, on the two logits of the task.
    plain = model()
    learned = [p for p in plain.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(learned, lr=0.02)
    logits = plain(data.train.x, 0)[:, [2, 7]]
    nn.functional.cross_entropy(logits, (data.train.y == 7).long()).backward()
    optimizer.step()
    tensors = update.payload["enhancers/0"]
    assert tensors.keys() == {
        *("body.learned.weight", "body.learned.bias"),
        *("heads.0.weight", "heads.0.bias"),
    }
    for name, values in tensors.items():
        np.testing.assert_allclose(values, plain.state_dict()[name], atol=1e-6)
    assert "distilled" not in update.metrics
    assert update.num_examples == 60
    # Of 60 samples 12 are remembered, six of each class.
    meta = update.payload["meta/0"]
    assert meta["classes"].tolist() == [2, 7]
    np.testing.assert_allclose(meta["distribution"][[2, 7]], [0.5, 0.5])
    assert float(meta["entropy"]) == pytest.approx(math.log(2))
    assert len(state["memory"]["y"]) == 12


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("distil_on", ["memory", "task"])
@pytest.mark.parametrize("start", ["fresh", "group"])
def test_after_a_second_task_old_and_new_classes_are_answered(groups, distil_on, start):
    # The labels decide: the errors alone leave open how old and new compare.
    found = learner(groups=groups, distil_on=distil_on, start=start, label_weight=30.0)
    # Two old and two new classes on each side: one alone is taught zero.
    one, two = task(0, 7, 2, 3), task(1, 6, 4, 5)
    state, update = found.train(Turn({}, sent(groups), FIRST, one))
    received = served(sent(groups), update)
    assert accuracy(found, received, one.test) > 0.95

    state, update = found.train(Turn(state, received, SECOND, two))

    received = served(received, update)
    assert accuracy(found, received, one.test) > 0.9
    assert accuracy(found, received, two.test) > 0.9
    assert "distilled" in update.metrics


@pytest.mark.parametrize("routed", [{}, {"angle": 0.7}, {"groups": (LEFT, LEFT)}])
def test_a_module_of_its_own_sends_points_to_groups_as_the_client_does(routed):
    found, first = learner({"epochs": 3}), sent(**routed)
    before = found.predictor({}, first, 0)
    state, update = found.train(Turn({}, first, FIRST, task(0, 3, 5, 7)))
    received = served(first, update)

    module = found.predictor(state, received, 0)

    x = task(*range(CLASSES)).test.x
    for part in (x, x[:1]):
        wanted = found.predict(state, received, 0, part)
        torch.testing.assert_close(module(part), wanted)
    assert len({*told(update)}) == (1 if "groups" in routed else 2)
    torch.testing.assert_close(before(x), found.predict({}, first, 0, x))


def test_a_class_that_comes_again_is_learned_anew_with_what_is_remembered(monkeypatch):
    found, seen = learner(groups=1), []
    state, update = found.train(Turn({}, sent(1), FIRST, task(0, 2)))
    fit = client.fit_classes

    def watched(learner, turn, *rest):
        seen.append(turn.data.train)
        return fit(learner, turn, *rest)

    monkeypatch.setattr(client, "fit_classes", watched)
    found.train(Turn(state, served(sent(1), update), SECOND, task(2, 4)))

    # Six samples of class 2 are remembered; none of class 0 is any of its business.
    assert torch.bincount(seen[0].y).tolist() == [0, 0, 36, 0, 30]


@pytest.mark.parametrize("distil_on", ["memory", "task"])
def test_a_class_that_comes_again_is_new_and_not_old(monkeypatch, distil_on):
    params = {"copies": 1, "distil_on": distil_on, "label_weight": 0.25}
    found, seen = learner(groups=1, **params), []
    state, one = found.train(Turn({}, sent(1), FIRST, task(0, 1, 2)))
    temporary = {}
    learn = client.fit_classes

    def watched(*given):
        done = learn(*given)
        temporary.update(snapshot(found.model, found._fresh))
        return done

    monkeypatch.setattr(client, "fit_classes", watched)
    monkeypatch.setattr(
        client, "distill", lambda m, lesson, *_: seen.append(lesson) or 0
    )
    state, _ = found.train(Turn(state, served(sent(1), one), SECOND, task(2, 4)))

    (lesson,) = seen
    assert (lesson.classes.tolist(), lesson.weight) == ([0, 1, 2, 4], 0.25)
    # Six remembered samples of classes 0 and 1, each with a variation; of class 2,
    # which is new, those of the task, or of both tasks in S.
    new = {"memory": [12, 0, 6], "task": [30, 0, 30]}[distil_on]
    assert torch.bincount(lesson.labels).tolist() == [12, 12, *new]
    # Equation 5: H_old speaks of 0 and 1 alone, the temporary group of 2 and 4.
    expected = np.zeros((len(lesson.labels), CLASSES))
    for tensors, classes in ((one.payload["enhancers/0"], [0, 1]), (temporary, [2, 4])):
        load(found.model, tensors)
        part = predict_logits(found.model, lesson.x).numpy()[:, classes]
        expected[:, classes] = part - part.mean(1, keepdims=True)
    np.testing.assert_allclose(lesson.targets, expected, atol=1e-5)


# ---------------------------------------------------------------- groups


def test_a_group_with_few_samples_hands_them_on_and_no_class_is_lost():
    data = task(0, n4=3)
    given = learner(least_share=0.1)
    _, update = given.train(Turn({}, sent(), FIRST, data))
    assert told(update) == {RIGHT: [0, 4]}
    assert accuracy(given, served(sent(), update), data.test) == 1

    # Three of 33 are enough for a twelfth.
    _, update = learner(least_share=1 / 12).train(Turn({}, sent(), FIRST, data))
    assert told(update) == {RIGHT: [0], LEFT: [4]}


@pytest.fixture
def distilled_on(monkeypatch):
    """The classes of each lesson that a client distils on from now on."""
    classes, distil = [], client.distill

    def watched(model, lesson, *rest):
        classes.append(set(lesson.labels.tolist()))
        return distil(model, lesson, *rest)

    monkeypatch.setattr(client, "distill", watched)
    return classes


def test_what_is_remembered_of_a_class_stays_with_the_group_that_learned_it(
    distilled_on,
):
    """Class 4 is the left side's, which was too small a part of the first task."""
    found = learner(least_share=0.1)
    state, update = found.train(Turn({}, sent(), FIRST, task(0, n4=3)))

    found.train(Turn(state, served(sent(), update), SECOND, task(1, 5)))

    # Of the left side nothing is old.
    assert distilled_on == [{0, 1, 4}]


ROUTERS = {
    "wrong": {"groups": (LEFT, RIGHT)},
    "blind": {"groups": (LEFT, LEFT)},
    # The border goes through the middle of class 1, and through that of class 5.
    "torn": {"angle": 2 * math.pi * 1.5 / 8 + math.pi / 2},
}


@pytest.mark.parametrize("name", ROUTERS)
def test_an_error_of_the_router_loses_no_class(name):
    found, first = learner(label_weight=30.0), sent(**ROUTERS[name])
    one, two = task(0, 1, 2, 3), task(4, 5, 6, 7)

    state, update = found.train(Turn({}, first, FIRST, one))
    assert set().union(*told(update).values()) == {0, 1, 2, 3}
    if name == "torn":
        assert all(1 in classes for classes in told(update).values())
    received = served(first, update)
    _, update = found.train(Turn(state, received, SECOND, two))
    assert set().union(*told(update).values()) == {4, 5, 6, 7}

    received = served(received, update)
    assert accuracy(found, received, one.test) > 0.9
    assert accuracy(found, received, two.test) > 0.9


def test_a_group_of_which_nothing_is_remembered_is_distilled_on_its_samples(
    monkeypatch,
):
    # Of 40 samples of class 1 a single one is remembered, on the right of the border
    # through its middle; the memory of the group on the left is lost.
    found, seen = learner({"epochs": 1}, buffer_fraction=0.01), []
    tensors = snapshot(found.model, found.model.shared_names())
    received = sent(**ROUTERS["torn"])
    received |= {"enhancers/0": tensors, "enhancers/1": tensors, KNOWN: known([0], [3])}
    monkeypatch.setattr(
        client, "distill", lambda m, lesson, *_: seen.append(lesson) or 0
    )

    _, update = found.train(Turn({}, received, FIRST, task(1, count=40)))

    assert told(update) == {0: [1], 1: [1]}
    counts = sorted(len(lesson.x) for lesson in seen)
    assert counts[0] == 1
    assert counts[1] > 5


# ---------------------------------------------------------------- predictions


def constant(*biases):
    """Return a group that answers the same to everything."""
    tensors = snapshot(model(), model().shared_names())
    group = {name: np.zeros_like(values) for name, values in tensors.items()}
    bias = np.array([*biases, *[99] * (CLASSES - len(biases))], np.float32)
    return {**group, "heads.0.bias": bias}


def known(*rows):
    places = np.zeros((2, CLASSES), np.uint8)
    for j, classes in enumerate(rows):
        places[j, list(classes)] = 1
    return {"classes": places}


X = torch.tensor([[2.0, 1.0], [-1.0, 0.1], [0.5, -9.0]])


def test_a_group_that_knows_nothing_is_not_asked():
    received = {
        **{"enhancers/0": constant(1, 2, 3), "enhancers/1": constant(4, 5, 6)},
        **{KNOWN: known([], [1]), "router": router()},
    }

    found = learner().predict({}, received, 0, X)

    assert found[:, 1].tolist() == [5, 5, 5]
    assert (found.argmax(1) == 1).all()


# ---------------------------------------------------------------- what is kept


def test_what_is_received_replaces_what_was_kept():
    kept = {"enhancers/0": constant(1, 2), KNOWN: known([0]), "router": router()}
    received = {"enhancers/0": constant(3, 4), KNOWN: known([0, 1])}
    found = learner({"epochs": 1})

    assert found.predict(kept, received, 0, X)[:, :2].tolist() == [[3, 4]] * 3
    state, _ = found.train(Turn(kept, received, FIRST, task(3)))
    assert exact(state).items() >= exact(received).items()
    assert found.predict(state, {}, 0, X)[:, :2].tolist() == [[3, 4]] * 3
    # Without news it is what was kept.
    same = found.predict(kept, {KNOWN: known([0])}, 0, X)
    assert same[:, :2].tolist() == [[1, NEVER]] * 3


def test_what_noised_statistics_cost_a_label_adds_up_and_their_noise_is_secret():
    noised = {"distribution": "noised", "entropy": "noised", "noise": 0.5}

    def statistics(rounds=1):
        client, state, found = learner(**noised), {}, []
        for number in range(1, rounds + 1):
            stage = TaskStage(number, 0, starts_task=number == 1, ends_task=False)
            state, update = client.train(
                Turn(state, sent(), stage, task(0, 7, count=10))
            )
            found.append(update)
        return found

    one, again = statistics(), statistics()
    for group in one[0].payload:
        if group.startswith("meta/"):
            first, second = (
                update.payload[group]["distribution"] for (update,) in (one, again)
            )
            assert not np.array_equal(first, second)

    twice = [update.metrics["label_epsilon"] for update in statistics(rounds=2)]
    assert 0 < one[0].metrics["label_epsilon"] == twice[0] < twice[1]
    exact, _ = learner().train(Turn({}, sent(), FIRST, task(0, 7, count=10)))
    assert "privacy" not in exact


def test_each_half_of_the_targets_is_less_its_own_mean():
    f_old = torch.tensor([[1.0, 50.0, 4.0, 60.0, 70.0]])
    f_t = torch.tensor([[80.0, -1.0, 90.0, 3.0, 70.0]])

    found = distillation_targets(
        f_old, f_t, old=torch.tensor([2, 0]), new=torch.tensor([1, 3])
    )

    # Old: 1 and 4, less 2.5. New: -1 and 3, less 1. The last is of neither.
    assert found.tolist() == [[-1.5, -2.0, 1.5, 2.0, 0.0]]


def test_a_class_alone_in_its_half_is_taught_zero_whatever_was_learned():
    f_old, f_t = torch.randn(2, 5, 3)

    found = distillation_targets(
        f_old, f_t, old=torch.tensor([1]), new=torch.tensor([2])
    )

    assert not found.any()


def test_the_old_group_is_taught_itself_and_the_temporary_one(monkeypatch):
    params = {"label_weight": 0.25, "start": "fresh", "distil_on": "memory"}
    found, lessons = learner(groups=1, **params), []
    _, one = found.train(Turn({}, sent(1), FIRST, task(0, 2)))
    received = served(sent(1), one)
    # The temporary group, as training left it.
    learn, temporary = client.fit_classes, {}

    def watched(*given):
        done = learn(*given)
        temporary.update(snapshot(found.model, found._fresh))
        return done

    def noted(model, lesson, training, epochs, seed):
        lessons.append((snapshot(model, one.payload["enhancers/0"]), lesson, epochs))
        return 0.5

    monkeypatch.setattr(client, "fit_classes", watched)
    monkeypatch.setattr(client, "distill", noted)
    state, two = found.train(Turn({}, received, SECOND, task(5, 3)))

    ((start, lesson, epochs),) = lessons
    assert exact({"": start}) == exact({"": one.payload["enhancers/0"]})
    assert lesson.classes.tolist() == [0, 2, 3, 5]
    assert (lesson.weight, epochs) == (0.25, 60)
    # S, which holds nothing of the old classes.
    assert len(state["memory"]["y"]) == 12
    np.testing.assert_array_equal(lesson.x, state["memory"]["x"])
    assert lesson.labels.tolist() == state["memory"]["y"].tolist()
    expected = np.zeros((12, CLASSES))
    for tensors, classes in ((start, [0, 2]), (temporary, [3, 5])):
        load(found.model, tensors)
        part = predict_logits(found.model, lesson.x).numpy()[:, classes]
        expected[:, classes] = part - part.mean(1, keepdims=True)
    np.testing.assert_allclose(lesson.targets, expected, atol=1e-5)
    assert two.metrics["distilled"] == 0.5


def test_the_task_is_distilled_on_as_well_if_asked_for(monkeypatch):
    found, seen = learner(groups=1, distil_on="task", copies=2), []
    state, one = found.train(Turn({}, sent(1), FIRST, task(0, 2)))
    monkeypatch.setattr(
        client, "distill", lambda m, lesson, *_: seen.append(lesson) or 0
    )

    state, _ = found.train(Turn(state, served(sent(1), one), SECOND, task(3, 5)))

    old = [label for label in state["memory"]["y"].tolist() if label in (0, 2)]
    assert len(old) == 12  # and two variations of each, for 60 samples of new classes
    assert sorted(seen[0].labels.tolist()) == sorted([3] * 30 + [5] * 30 + old * 3)


def test_a_group_is_validated_on_the_validation_samples_of_its_new_classes():
    found = learner({"epochs": 2})
    data = task(0, 7, n2=20, n3=10)
    _, update = found.train(Turn({}, sent(), FIRST, data))

    assert told(update) == {RIGHT: [0, 7], LEFT: [2, 3]}
    loss, hits = 0.0, 0.0
    for j, classes, share in ((RIGHT, [0, 7], 60 / 90), (LEFT, [2, 3], 30 / 90)):
        load(found.model, update.payload[f"enhancers/{j}"])
        mine = torch.isin(data.valid.y, torch.tensor(classes))
        logits = predict_logits(found.model, data.valid.x[mine])[:, classes].detach()
        y = (data.valid.y[mine] == classes[1]).long()
        loss += share * float(nn.functional.cross_entropy(logits, y))
        hits += share * float((logits.argmax(1) == y).float().mean())
    assert update.metrics["valid_loss"] == pytest.approx(loss, rel=1e-5)
    assert update.metrics["valid_accuracy"] == pytest.approx(hits)


def test_only_groups_that_learn_travel():
    found = learner()
    _, update = found.train(Turn({}, sent(), FIRST, task(0, 7)))
    assert set(update.payload) == {"enhancers/0", "meta/0"}

    _, update = found.train(Turn({}, sent(), FIRST, task(3, 7)))
    assert told(update) == {RIGHT: [7], LEFT: [3]}


def test_what_no_group_knows_is_not_distilled_on(distilled_on):
    """The server had no use for what the client learned of classes 0 and 4."""
    found = learner(groups=1)
    state, _ = found.train(Turn({}, sent(1), FIRST, task(0, 4)))
    _, update = found.train(Turn({}, sent(1), FIRST, task(2, 3)))

    found.train(Turn(state, served(sent(1), update), SECOND, task(1, 5)))

    assert distilled_on == [{1, 5}]


def test_there_is_always_a_group_that_learns():
    _, update = learner(least_share=0.9).train(Turn({}, sent(), FIRST, task(0, 4)))
    assert sorted(told(update).values()) in ([[0, 4]], [[0], [4]])


def test_a_sample_is_answered_by_its_group_alone():
    received = {
        **{"enhancers/0": constant(1, 2, 3), "enhancers/1": constant(4, 5, 6)},
        **{KNOWN: known([0, 2], [1]), "router": router()},
    }

    found = learner().predict({}, received, 0, X)

    rest = [NEVER] * 5
    right, left = [1, NEVER, 3, *rest], [NEVER, 5, NEVER, *rest]
    assert found.tolist() == [right, left, right]


def test_where_nobody_knows_anything_all_classes_are_equal():
    found = learner().predict({}, sent(), 0, X)
    assert found.tolist() == [[NEVER] * CLASSES] * 3


def test_a_client_that_lost_its_memory_works_with_what_it_is_sent():
    found, two = learner(), task(6, 5)
    _, update = found.train(Turn({}, sent(), FIRST, task(0, 3)))
    received = served(sent(), update)

    state, update = found.train(Turn(found.init(), received, SECOND, two))

    assert told(update) == {RIGHT: [6], LEFT: [5]}
    assert set(state["memory"]["task"]) == {1}
    assert set(state["memory"]["y"].tolist()) == {5, 6}
    # It was distilled from what was sent, of which the client has no sample.
    assert update.metrics["distilled"] > 0


def test_the_buffer_stays_within_its_fraction_and_a_round_adds_nothing():
    found = learner({"epochs": 1}, classes=20, buffer_fraction=0.05, distil_epochs=1)
    state, received, seen = {}, sent(classes=20), 0
    for n in range(10):
        data = task(2 * n, 2 * n + 1, classes=20)
        seen += len(data.train.y)
        before = None
        for first in (True, False):
            stage = TaskStage(
                2 * n + 2 - first, n, starts_task=first, ends_task=not first
            )
            state, update = found.train(Turn(state, received, stage, data))
            received = served(received, update)
            assert before is None or exact(state)["memory"] == before
            before = exact(state)["memory"]
        classes = state["memory"]["y"].tolist()
        assert len(classes) <= max(0.05 * seen, len(set(classes)))
        assert set(classes) == set(range(2 * n + 2))
    assert len(classes) == 30


def test_nothing_is_changed_in_place_and_the_same_call_gives_the_same():
    found, one, two = learner({"epochs": 2}, distil_epochs=2), task(0, 2), task(1, 4)
    state, update = found.train(Turn({}, sent(), FIRST, one))
    received = served(sent(), update)
    before = exact(state), exact(received), two.train.x.clone()

    after, first = found.train(Turn(state, received, SECOND, two))
    logits = found.predict(after, served(received, first), 0, X)
    found.train(Turn({}, sent(), FIRST, task(5, 6, 7)))
    again, second = found.train(Turn(state, received, SECOND, two))

    assert (exact(state), exact(received)) == before[:2]
    assert torch.equal(two.train.x, before[2])
    assert exact(after) == exact(again)
    assert exact(first.payload) == exact(second.payload)
    assert first.metrics == second.metrics
    assert torch.equal(found.predict(again, served(received, second), 0, X), logits)


def test_an_isolated_client_learns_by_itself():
    half = learner(groups=1, label_weight=30.0)
    none = torch.empty(0, dtype=torch.int64)
    public = PublicExamples(torch.empty(0, 0), none, none)
    trainer = partial(FedEtTrainer, half.model, public, half.context.training, seed=0)
    server = Server(FedEtParams(groups=1), ServerContext(0, trainer=trainer))
    found, tasks = LocalOnlyLearner(half, server), [task(0, 2), task(1, 4)]
    state = found.init()

    for stage, data in zip((FIRST, SECOND), tasks, strict=True):
        state, update = found.train(Turn(state, {}, stage, data))
        assert not update.payload

    for data in tasks:
        assert accuracy(found, {}, data.test, state) > 0.9
