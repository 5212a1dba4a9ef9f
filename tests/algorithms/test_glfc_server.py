"""GLFC, server side: the mean, the best model of a task, and what is refused."""

import numpy as np
import pytest

from fcl_flower.algorithms.base import ServerContext
from fcl_flower.core.errors import WireError
from fcl_flower.core.types import SparseArray, TaskStage, Update
from strategies.glfc import GlfcParams
from strategies.glfc.server import Glfc

CLASSES = 4


class FakeTrainer:
    """A model's accuracy is its weight; an image is its gradient, whose sum is a label.

    A gradient of 99 is that of nothing.
    """

    def __init__(self):
        self.encoded = {"g": np.zeros(2, np.float32)}
        self.asked, self.searches = [], []

    def labels_of(self, gradients):
        return np.asarray(gradients["g"]).sum(1).astype(np.int64) % CLASSES

    def reconstruct(self, gradients, labels, steps, seed):
        self.searches.append((steps, seed))
        x = np.array(gradients["g"], np.float32)[:, None, None]
        return np.where(x == 99, np.nan, x)

    def accuracy(self, tensors, x, labels, classes):
        self.asked.append((float(tensors["w"][0]), labels.tolist(), classes.tolist()))
        return float(tensors["w"][0])


def model(value=0.0):
    return {
        "w": np.array([value, value], np.float32),
        "heads.0.bias": np.zeros(CLASSES, np.float32),
    }


def strategy(**params):
    return Glfc(GlfcParams(**params), ServerContext(0, trainer=FakeTrainer))


def stage(number, task, starts=False):
    return TaskStage(number, task, starts_task=starts, ends_task=False)


def update(value, prototypes=None, examples=1):
    payload = {"base": model(value)}
    if prototypes is not None:
        payload["prototypes"] = {"g": np.float32(prototypes)}
    return Update(payload, examples)


def played(server, *rounds):
    """Return the state after rounds: each a task and updates by client."""
    state = server.init(model())
    for number, (task, updates) in enumerate(rounds, 1):
        state = server.combine(state, stage(number, task), updates)
    return state


def sent_old(server, state, task, starts=True):
    sent = server.send(state, stage(9, task, starts), client=0)
    if "old" not in sent:
        assert sent.keys() == {"base"}
        return None
    return float(sent["old"]["w"][0]), sent["meta/old"]["classes"].tolist()


def test_models_are_averaged_by_their_examples():
    server = strategy()
    state = played(
        server, (0, {0: update(1.0, examples=1), 1: update(4.0, examples=3)})
    )
    assert state["base"]["w"].tolist() == [3.25, 3.25]
    assert state["base"]["w"].dtype == np.float32
    assert server.report(state, stage(1, 0), {}) == {}


def test_the_best_model_of_a_task_is_the_old_model_of_the_next():
    server = strategy()
    state = played(
        server,
        (0, {0: update(0.3, [[0, 1]])}),
        (0, {0: update(0.9)}),
        (0, {0: update(0.5)}),
    )
    assert state["best"]["w"][0] == np.float32(0.9)
    assert sent_old(server, state, task=0) is None, "there is nothing before a task"
    assert sent_old(server, state, task=1) == (pytest.approx(0.9), [0, 1, 0, 0])

    state = server.combine(state, stage(4, 1), {0: update(0.2, [[0, 2], [3, 0]])})
    # A new task begins anew: its best is not the best of all.
    assert state["best"]["w"][0] == np.float32(0.2)
    assert sent_old(server, state, task=1) == (pytest.approx(0.9), [0, 1, 0, 0])
    assert sent_old(server, state, task=2) == (pytest.approx(0.2), [0, 1, 1, 1])


def test_of_models_that_are_as_good_the_later_is_kept():
    server = strategy()
    server.trainer.accuracy = lambda tensors, x, labels, classes: 0.5
    state = played(server, (0, {0: update(0.3, [[0, 1]])}), (0, {0: update(0.1)}))
    assert state["best"]["w"][0] == np.float32(0.1)


def test_models_are_compared_on_the_images_of_the_task_alone():
    server = strategy()
    state = played(
        server, (0, {0: update(0.3, [[0, 1]])}), (1, {0: update(0.2, [[0, 2]])})
    )
    assert server.trainer.asked[-1] == (pytest.approx(0.2), [2], [1, 2])
    assert state["images"]["y"].tolist() == [2]


def test_images_that_come_later_join_those_of_other_clients():
    server = strategy()
    state = played(
        server,
        (0, {0: update(0.3, [[0, 1]]), 1: update(0.3, [[1, 1]])}),
        (0, {0: update(0.2, [[3, 0]])}),
    )
    assert state["images"]["client"].tolist() == [1, 0]
    assert state["images"]["y"].tolist() == [2, 3]
    assert state["best"]["w"][0] == np.float32(0.3)
    assert [asked[1] for asked in server.trainer.asked[-2:]] == [[2, 3], [2, 3]]
    found = server.report(state, stage(2, 0), {})
    assert found == {"proxy/accuracy": pytest.approx(0.3), "proxy/images": 2}


def test_an_image_that_is_not_found_does_not_count():
    server = strategy()
    state = played(
        server, (0, {0: update(0.3, [[99, 1], [0, 3]]), 1: update(0.3, [[99, 99]])})
    )
    assert state["images"]["y"].tolist() == [3]
    nothing = played(strategy(), (0, {0: update(0.3, [[99, 99]])}))
    assert "images" not in nothing
    assert int(nothing["meta/proxy"]["task"]) == -1


def test_a_client_that_is_told_gets_the_old_model_when_a_task_starts():
    rounds = [(0, {0: update(0.3, [[0, 1]])}), (1, {0: update(0.2, [[0, 2]])})]
    told, notices = strategy(), strategy(transition="entropy")
    for server, expected in (
        (told, None),
        (notices, (pytest.approx(0.3), [0, 1, 0, 0])),
    ):
        state = played(server, *rounds)
        assert sent_old(server, state, task=1, starts=False) == expected


def test_searches_are_as_long_as_set_and_each_has_a_seed_of_its_own():
    server = strategy(search_steps=7)
    played(server, (0, {0: update(0.3, [[0, 1]]), 1: update(0.3, [[0, 1]])}))
    steps, seeds = zip(*server.trainer.searches, strict=True)
    assert steps == (7, 7)
    assert len(set(seeds)) == 2


# ---- what is refused


def prototypes(**changes):
    return {**update(0.1, [[0, 1], [0, 2]]).payload, **changes}


@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        (prototypes(more={}), "groups"),
        ({"prototypes": {"g": np.zeros((1, 2), np.float32)}}, "groups"),
        (prototypes(base={"w": model()["w"]}), "base: tensors .* are missing"),
        (prototypes(prototypes={}), r"prototypes: tensors \['g'\] are missing"),
        (prototypes(prototypes={"h": np.zeros((1, 2))}), "prototypes: tensors"),
        (prototypes(prototypes={"g": np.float32([[0, 1]] * 2)}), "one gradient of a"),
        (prototypes(prototypes={"g": np.zeros((0, 2), np.float32)}), "expected 1 to 4"),
        (prototypes(prototypes={"g": np.zeros((5, 2), np.float32)}), "expected 1 to 4"),
        (prototypes(prototypes={"g": np.float32(1)}), "expected 1 to 4"),
        (prototypes(prototypes={"g": np.zeros((1, 3), np.float32)}), "of shape"),
        (prototypes(prototypes={"g": np.zeros((1, 2))}), "expected float32"),
        (
            prototypes(
                prototypes={
                    "g": SparseArray((1, 2), np.array([1], np.int32), np.float32([1]))
                }
            ),
            "expected a dense",
        ),
    ],
)
def test_an_update_that_does_not_fit_is_refused(payload, sentence):
    server = strategy()
    with pytest.raises(WireError, match=sentence):
        server.check_update(server.init(model()), Update(payload, 1))


def test_an_honest_update_is_taken_with_gradients_and_without():
    server = strategy()
    state = server.init(model())
    server.check_update(state, Update(prototypes(), 1))
    server.check_update(state, update(0.1))
