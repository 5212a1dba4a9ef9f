"""The analytic client: what it sends of a task, when, and how it predicts."""

import numpy as np
import pytest
import torch
from fakes import exact as plain
from torch import nn

from clients.analytic import Analytic
from fcl_flower.algorithms.base import ClientContext, Turn
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.loop import Training
from strategies.analytic import AnalyticParams
from strategies.analytic.server import check
from strategies.analytic.sums import add_up

CLASSES, WIDTH = 3, 5

pytestmark = pytest.mark.usefixtures("one_thread")


class Body(nn.Module):
    """A network with dropout, which evaluation leaves out."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, WIDTH)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return torch.tanh(self.dropout(self.layer(x)))


def learner(client=0, seed=0, *, single_head=True, **params):
    torch.manual_seed(0)
    model = MultiHeadModel(
        Body(),
        features=WIDTH,
        input_shape=(4,),
        tasks=2,
        classes=CLASSES,
        single_head=single_head,
    )
    training = Training(epochs=1, batch_size=4, learning_rate=0.1)
    context = ClientContext(client=client, seed=seed, training=training)
    return Analytic(AnalyticParams(**{"min_samples": 1, **params}), model, context)


def stage(task=0, number=1, *, starts=True):
    return TaskStage(number, task, starts_task=starts, ends_task=True)


def examples(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=generator)
    return Examples(x, torch.arange(count) % CLASSES)


def data(train=20, valid=6, seed=0):
    none = Examples(torch.empty(0, 4), torch.empty(0, dtype=torch.int64))
    parts = [examples(n, seed + i) if n else none for i, n in enumerate((train, valid))]
    return TaskData(*parts, none, CLASSES)


def sent(made, given, state=None, received=None):
    _, update = made.train(Turn(state or {}, received or {}, stage(), given))
    return update


def test_features_have_length_one_and_are_those_of_an_evaluating_body():
    made, x = learner(), examples(7).x
    h = made.features(x)
    body = torch.tanh(made.model.body.layer(x)).detach().numpy().astype(np.float64)
    expected = body / np.linalg.norm(body, axis=1, keepdims=True)
    np.testing.assert_allclose(h, expected, rtol=1e-12)
    assert h.dtype == np.float64


def test_features_of_nothing_have_their_width():
    assert learner().features(examples(0).x).shape == (0, WIDTH)


def test_more_samples_than_go_through_the_body_at_once_are_all_there():
    x = examples(600).x
    made = learner()
    np.testing.assert_allclose(made.features(x)[599:], made.features(x[599:]), 1e-6)


def test_the_projection_is_the_same_for_all_clients_and_another_for_each_seed():
    x, lifted = examples(9).x, {"lift": "relu", "width": 30}
    first, second = (learner(client, **lifted).features(x) for client in (0, 1))
    np.testing.assert_array_equal(first, second)
    assert first.shape == (9, 30)
    assert (first >= 0).all()
    assert (first == 0).any()
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1)
    assert np.abs(learner(seed=1, **lifted).features(x) - first).max() > 0.1


def test_the_projection_is_relu_of_gaussian_weights():
    x = examples(50).x
    made = learner(lift="relu", width=4000)
    h, lifted = learner().features(x), made.features(x)
    # The arc-cosine kernel, which such features have on average.
    cosine = np.clip(h @ h.T, -1, 1)
    angle = np.arccos(cosine)
    kernel = (np.sin(angle) + (np.pi - angle) * cosine) / np.pi
    np.testing.assert_allclose(lifted @ lifted.T, kernel, atol=0.08)


@pytest.mark.parametrize("form", ["exact", "gram", "low-rank", "class-sums"])
def test_the_sums_of_a_task_travel(form):
    rank = {"rank": WIDTH} if form == "low-rank" else {}
    made, given = learner(form=form, **rank), data()
    update = sent(made, given)
    assert update.payload.keys() == {"meta", "sums", "valid"}
    assert update.num_examples == 20
    params = made.params
    for group, part in (("sums", given.train), ("valid", given.valid)):
        check(group, update.payload[group], params, CLASSES, WIDTH)
        found = add_up([update.payload[group]], CLASSES, WIDTH)
        h, y = made.features(part.x), part.y.numpy()
        cross = np.eye(CLASSES)[y].T @ np.column_stack([h, np.ones(len(h))])
        np.testing.assert_allclose(found.cross, cross, atol=1e-12)
        if form != "class-sums":
            np.testing.assert_allclose(found.gram, h.T @ h, atol=1e-12)


def test_the_subsets_of_class_sums_follow_from_seed_client_and_data_alone():
    given = data()

    def parts(client=0, seed=0, of=given):
        made = learner(client, seed, form="class-sums")
        return sent(made, of).payload["sums"]["parts"]

    np.testing.assert_array_equal(parts(), parts())
    for other in (parts(client=1), parts(seed=1)):
        assert np.abs(other - parts()).max() > 0.01


def test_with_a_penalty_validation_samples_are_trained_on():
    made, given = learner(penalty=0.1, form="gram"), data()
    update = sent(made, given)
    assert update.payload.keys() == {"meta", "sums"}
    assert update.payload["sums"]["cross"][:, -1].sum() == 26


def test_without_validation_samples_none_are_sent():
    assert sent(learner(), data(valid=0)).payload.keys() == {"meta", "sums"}


def test_a_task_is_sent_once_and_again_when_the_server_has_it_not():
    made, given = learner(), data()
    state, first = made.train(Turn({}, {}, stage(), given))
    later, nothing = made.train(Turn(state, {}, stage(number=2, starts=False), given))
    assert nothing.payload == {}
    assert plain(later) == plain(state)
    _, again = made.train(Turn(state, {}, stage(number=2), given))
    assert plain(again.payload) == plain(first.payload)


def test_a_client_that_lost_its_state_sends_the_same_again():
    made, given = learner(), data()
    _, first = made.train(Turn({}, {}, stage(), given))
    _, again = made.train(Turn({}, {}, stage(number=9, starts=False), given))
    assert plain(again.payload) == plain(first.payload)


def test_new_data_of_a_known_task_are_sent():
    made = learner()
    state, first = made.train(Turn({}, {}, stage(), data()))
    state, second = made.train(
        Turn(state, {}, stage(number=2, starts=False), data(seed=50))
    )
    assert first.payload["meta"]["data"] != second.payload["meta"]["data"]
    assert second.payload["sums"].keys() == first.payload["sums"].keys()
    for old in (data(), data(seed=50)):
        _, nothing = made.train(Turn(state, {}, stage(number=3, starts=False), old))
        assert nothing.payload == {}


@pytest.mark.parametrize("penalty", [0.0, 0.1])
def test_validation_samples_of_several_windows_count_once(penalty):
    made = learner(penalty=penalty, form="gram")
    held = data().valid
    windows = [TaskData(data(seed=s).train, held, held, CLASSES) for s in (0, 50)]
    state, counted = {}, []
    for number, window in enumerate([*windows, *windows, windows[0]]):
        # Where concepts are hidden each round starts a task.
        state, update = made.train(Turn(state, {}, stage(number=number), window))
        sums = [update.payload[g] for g in ("sums", "valid") if g in update.payload]
        counted.append(sum(one["cross"][:, -1].sum() for one in sums))
    # The same data give the same sums: they may be what the server has not got.
    assert counted == [26, 20, 26, 20, 26]
    assert len(state["memory/sent"]["data"]) == 2


def test_other_labels_are_other_data():
    made, given = learner(), data()
    other = given.train._replace(y=(given.train.y + 1) % CLASSES)
    moved = TaskData(other, given.valid, given.test, CLASSES)
    numbers = [sent(made, one).payload["meta"]["data"] for one in (given, moved)]
    assert numbers[0] != numbers[1]


def test_a_sum_over_too_few_samples_is_not_sent_and_says_why():
    with pytest.raises(ConfigError) as error:
        sent(learner(min_samples=10), data(train=9))
    assert str(error.value) == (
        "strategy.min_samples: got 10, expected at most 9, the training samples of "
        "task 0, if their sum shall be sent: it shows features of so few"
    )
    assert sent(learner(min_samples=10), data(train=10)).payload


def test_a_task_without_samples_sends_nothing():
    state, update = learner(min_samples=10).train(Turn({}, {}, stage(), data(train=0)))
    assert (state, update.payload, update.num_examples) == ({}, {}, 0)


def test_logits_are_those_of_the_head_that_came():
    made, x = learner(), examples(11).x
    rng = np.random.default_rng(0)
    head = {
        "weight": rng.standard_normal((CLASSES, WIDTH)).astype(np.float32),
        "bias": rng.standard_normal(CLASSES).astype(np.float32),
    }
    logits = made.predict({}, {"head": head}, 0, x)
    expected = made.features(x) @ head["weight"].T + head["bias"]
    np.testing.assert_allclose(logits.numpy(), expected, rtol=1e-6)
    assert logits.dtype == torch.float32


def test_with_a_head_for_each_task_the_tasks_own_answers():
    made, x = learner(single_head=False), examples(5).x
    zeros = {"weight": np.zeros((CLASSES, WIDTH), np.float32)}
    heads = {
        f"head/{task}": {**zeros, "bias": np.eye(CLASSES, dtype=np.float32)[task]}
        for task in range(2)
    }
    for task in range(2):
        assert (made.predict({}, heads, task, x).argmax(1) == task).all()


def test_without_a_head_there_are_logits_all_the_same():
    assert torch.equal(learner().predict({}, {}, 0, examples(2).x), torch.zeros(2, 3))
