"""IDBR's learner against plain autograd, its parts, and a run on a few texts."""

import numpy as np
import pytest
import torch
from encoders import inputs, plain, saved
from fakes import run_in_process, summary_of, tiny
from text_sets import encoded_topics
from torch import nn
from torch.nn.functional import one_hot

from clients.idbr import Idbr, draw_cuts, nearest_to_centres, swap_halves
from fcl_flower.algorithms.base import ClientContext, Turn
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.build import create_model
from fcl_flower.models.encoder import DisentangledTransformer
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.models.registry import DisentangledParams
from fcl_flower.training.loop import Training
from fcl_flower.training.optimizers import OptimizerChoice
from fcl_flower.training.tensors import load, snapshot
from strategies.idbr import IdbrParams

pytestmark = pytest.mark.usefixtures("one_thread")

FIRST = TaskStage(round=1, task=0, starts_task=True, ends_task=True)
SECOND = TaskStage(round=2, task=1, starts_task=True, ends_task=False)
THIRD = TaskStage(round=3, task=1, starts_task=False, ends_task=True)
ONLY = TaskStage(round=2, task=1, starts_task=True, ends_task=True)
RETURN = TaskStage(round=3, task=0, starts_task=False, ends_task=True)
COMES_LATER = TaskStage(round=0, task=2, starts_task=True, ends_task=True)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    return saved(
        folder,
        "bert",
        hidden_size=8,
        num_hidden_layers=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def model(encoder, max_tasks=3):
    return create_model(
        "disentangled-transformer",
        tasks=1,
        classes=4,
        single_head=True,
        seed=1,
        params=DisentangledParams(encoder=encoder, max_tasks=max_tasks),
    )


def learner(encoder, training=None, max_tasks=3, **params):
    # Adam would make a step of what is rounding in a gradient of 0, as of key biases.
    chosen = {"epochs": 1, "batch_size": 100, "learning_rate": 0.1}
    chosen |= {"optimizer": OptimizerChoice("sgd")} | (training or {})
    context = ClientContext(client=1, seed=5, training=Training(**chosen))
    given = params if "budget" in params else {"buffer_fraction": 0.25, **params}
    return Idbr(IdbrParams(**given), model(encoder, max_tasks), context)


def data(task, count=12):
    draw = torch.Generator().manual_seed(task)
    x = torch.randint(5, 40, (count, 7), generator=draw)
    x[:, 0], x[:, -1] = 3, 4
    x[::3, -2], x[::3, -1] = 4, 0  # some are shorter
    parts = Examples(x, torch.arange(count) % 2 + 2 * task)
    return TaskData(parts, parts, parts, classes=4)


def start(encoder, shift=0.0):
    network = model(encoder)
    base = snapshot(network, network.shared_names())
    return {"base": {name: v + np.float32(shift) for name, v in base.items()}}


def after_first(made, encoder):
    return made.train(Turn(made.init(), start(encoder), FIRST, data(0)))[0]


def entropy(logits, labels):
    """Return the cross-entropy by its definition."""
    wanted = one_hot(labels, logits.shape[1])
    return -(wanted * (logits - logits.logsumexp(1, keepdim=True))).sum(1).mean()


CUT = 2


@pytest.fixture
def always_two(monkeypatch):
    """Cut every text behind its second word."""
    cuts = lambda x: torch.full((len(x),), CUT)  # noqa: E731
    monkeypatch.setattr("clients.idbr.draw_cuts", cuts)


def by_hand(network, x, y, tasks, old, weights, params, last):
    """Return the loss over texts in both orders, without the learner's parts."""
    both = torch.cat([x, swap_halves(x, torch.full((len(x),), CUT))])
    hidden, body = network.body(both), network.body
    generic, specific = hidden[:, :4], hidden[:, 4:]
    orders = torch.cat([torch.zeros(len(x)), torch.ones(len(x))]).long()
    loss = entropy(network.heads[0](hidden), torch.cat([y, y]))
    loss = loss + params.order * entropy(body.order(generic), orders)
    if old is None:
        return loss
    told = body.task(specific)[:, : last + 1]
    loss = loss + params.task * entropy(told, torch.cat([tasks, tasks]))
    with torch.no_grad():
        was = old.body(x)
    far = (hidden[: len(x)] - was) ** 2 * weights[:, None]
    return (
        loss + params.generic * far[:, :4].mean() + params.specific * far[:, 4:].mean()
    )


def stepped(network, loss):
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return network.state_dict()


def same(found, expected):
    for name, values in found.items():
        np.testing.assert_allclose(values, expected[name], atol=1e-5, err_msg=name)


@pytest.mark.usefixtures("always_two")
def test_the_first_task_has_labels_and_the_order_of_halves(encoder):
    made, oracle = learner(encoder, order=0.6), model(encoder)
    _, update = made.train(Turn(made.init(), start(encoder), FIRST, data(0)))
    x, y = data(0).train
    loss = by_hand(oracle, x, y, None, None, None, made.params, last=0)
    same(update.payload["base"], stepped(oracle, loss))
    assert update.num_examples == 12


@pytest.mark.usefixtures("always_two")
def test_a_later_task_has_the_task_and_the_distance_too(encoder):
    weights = {"order": 0.6, "task": 0.7, "generic": 3.0, "specific": 5.0}
    made = learner(encoder, new_weight=0.3, replayed_weight=2.0, **weights)
    state = after_first(made, encoder)
    memory = state["memory"]
    assert sorted(memory["task"].tolist()) == [0] * 3
    assert "rank" not in memory
    # The second round of a task, so that the model is no longer the old one.
    now, old = start(encoder, 0.05), start(encoder, -0.03)["base"]
    state, _ = made.train(Turn(state, {"base": old}, SECOND, data(1)))
    _, update = made.train(Turn({**state, "optimizer": {}}, now, THIRD, data(1)))

    oracle, was = model(encoder), model(encoder)
    load(oracle, now["base"])
    load(was, old)
    new = data(1).train
    x = torch.cat([new.x, torch.from_numpy(memory["x"].astype(np.int64))])
    y = torch.cat([new.y, torch.from_numpy(memory["y"].astype(np.int64))])
    tasks = torch.tensor([1] * 12 + [0] * 3)
    of = torch.tensor([0.3] * 12 + [2.0] * 3)
    loss = by_hand(oracle, x, y, tasks, was, of, made.params, last=1)
    same(update.payload["base"], stepped(oracle, loss))
    assert update.num_examples == 15


@pytest.mark.usefixtures("always_two")
def test_a_client_may_meet_later_tasks_first(encoder):
    made, oracle, was = learner(encoder), model(encoder), model(encoder)
    state, _ = made.train(Turn(made.init(), start(encoder), COMES_LATER, data(1)))
    memory, received = state["memory"], start(encoder, 0.1)
    _, update = made.train(Turn(state, received, FIRST, data(0)))

    load(oracle, received["base"])
    load(was, received["base"])
    x = torch.cat([data(0).train.x, torch.from_numpy(memory["x"].astype(np.int64))])
    y = torch.cat([data(0).train.y, torch.from_numpy(memory["y"].astype(np.int64))])
    tasks, weights = torch.tensor([0] * 12 + [2] * 3), torch.ones(15)
    weights[:12] = made.params.new_weight
    weights[12:] = made.params.replayed_weight
    loss = by_hand(oracle, x, y, tasks, was, weights, made.params, last=2)
    same(update.payload["base"], stepped(oracle, loss))


# ---- memory


def test_a_task_is_remembered_once_by_the_encoders_own_features(encoder):
    made, examples = learner(encoder), data(0, count=40)
    state, update = made.train(Turn(made.init(), start(encoder), FIRST, examples))
    kept = state["memory"]
    again, _ = made.train(Turn(state, start(encoder, 0.2), FIRST, examples))
    assert again["memory"] is kept
    trained = model(encoder).eval()
    load(trained, update.payload["base"])
    with torch.no_grad():
        features = trained.body.pooled(examples.train.x).numpy()
    places = nearest_to_centres(features, 10, derive(5, "sample-memory", 1, 0))
    np.testing.assert_array_equal(kept["x"], examples.train.x[places])
    np.testing.assert_array_equal(kept["y"], examples.train.y[places])


def test_a_fixed_memory_makes_room_for_new_tasks(encoder):
    made = learner(encoder, budget="fixed", memory_samples=4)
    state = after_first(made, encoder)
    assert state["memory"]["task"].tolist() == [0] * 4
    state, update = made.train(Turn(state, start(encoder), SECOND, data(1)))
    assert update.num_examples == 16
    assert len(state["memory"]["y"]) == 4
    assert set(state["memory"]["task"].tolist()) == {0, 1}


def test_nothing_is_kept_where_nothing_may_be_or_is_there(encoder):
    made = learner(encoder, budget="fixed", memory_samples=0)
    assert after_first(made, encoder)["memory"] == {}
    made = learner(encoder)
    none = Examples(torch.empty(0, 0, dtype=torch.int64), torch.empty(0).long())
    empty = TaskData(none, none, none, 4)
    state, update = made.train(Turn(made.init(), start(encoder), FIRST, empty))
    assert state["memory"] == {}
    assert update.num_examples == 0


# ---- refused


def test_more_tasks_than_the_model_tells_apart_are_refused(encoder):
    made = learner(encoder, max_tasks=1)
    state = made.init()
    received = {"base": snapshot(made.model, made.model.shared_names())}
    with pytest.raises(ConfigError, match=r"model\.max_tasks: got 1, expected at lea"):
        made.train(Turn(state, received, SECOND, data(1)))


def test_a_model_without_the_two_spaces_is_refused():
    flat = MultiHeadModel(
        nn.Linear(3, 2),
        features=2,
        input_shape=(3,),
        tasks=1,
        classes=2,
        single_head=True,
    )
    context = ClientContext(client=0, seed=0, training=Training(1, 8, 0.1))
    with pytest.raises(ConfigError, match="expected disentangled-transformer"):
        Idbr(IdbrParams(), flat, context)


# ---- halves

TEXTS = torch.tensor(
    [
        [1, 5, 6, 7, 8, 2, 0],
        [1, 5, 6, 2, 0, 0, 0],
        [1, 5, 2, 0, 0, 0, 0],
        [1, 2, 0, 0, 0, 0, 0],
    ]
)


def test_halves_are_swapped_between_the_tokenizers_own_tokens():
    found = swap_halves(TEXTS, torch.tensor([1, 1, 1, 1]))
    assert found.tolist() == [
        [1, 6, 7, 8, 5, 2, 0],
        [1, 6, 5, 2, 0, 0, 0],
        [1, 5, 2, 0, 0, 0, 0],
        [1, 2, 0, 0, 0, 0, 0],
    ]
    assert swap_halves(TEXTS[:1], torch.tensor([3])).tolist() == [[1, 8, 5, 6, 7, 2, 0]]


def test_a_text_is_cut_anywhere_between_its_words():
    torch.manual_seed(0)
    cuts = torch.stack([draw_cuts(TEXTS) for _ in range(200)])
    assert set(cuts[:, 0].tolist()) == {1, 2, 3}
    assert set(cuts[:, 1:].ravel().tolist()) == {1}
    assert abs((cuts[:, 0] == 2).float().mean() - 1 / 3) < 0.1


# ---- exemplars


def test_the_sample_nearest_to_each_clusters_mean_is_kept():
    rng = np.random.default_rng(3)
    centres = np.array([[0, 0, 0], [50, 0, 0], [0, 70, 0], [0, 0, 90.0]])
    which = rng.permutation(np.repeat(np.arange(4), [3, 5, 7, 9]))
    points = centres[which] + rng.normal(size=(24, 3))
    expected = []
    for cluster in range(4):
        members = np.flatnonzero(which == cluster)
        distance = np.linalg.norm(points[members] - points[members].mean(0), axis=1)
        expected.append(int(members[distance.argmin()]))

    found = nearest_to_centres(points, 4, seed=1)

    assert found.tolist() == sorted(expected)
    assert found.dtype == np.int64


@pytest.mark.parametrize("count", [3, 9])
def test_there_are_no_more_than_different_samples(count):
    points = np.array([[0.0], [1.0], [1.0], [5.0]])
    found = nearest_to_centres(points, count, seed=2**40)
    assert points[found].ravel().tolist() == [0, 1, 5]


# ---- spaces


@pytest.fixture(scope="module")
def wide_encoder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("bert"), "bert", hidden_size=10)


def test_features_are_two_spaces_of_the_pooled_encoder(wide_encoder):
    torch.manual_seed(1)
    body = DisentangledTransformer(
        DisentangledParams(encoder=wide_encoder, max_tasks=7)
    )
    body.eval()
    x = inputs("bert")
    pooled = plain(wide_encoder)(x).detach().double().numpy()

    found = body(x).detach()

    torch.testing.assert_close(body.pooled(x), plain(wide_encoder)(x))
    for layer, part in ((body.generic, found[:, :5]), (body.specific, found[:, 5:])):
        weight = layer.weight.detach().double().numpy()
        expected = np.tanh(pooled @ weight.T + layer.bias.detach().double().numpy())
        np.testing.assert_allclose(part, expected, atol=1e-5)
    assert found.shape == (2, body.features) == (2, 10)
    assert body.order.weight.shape == (2, 5)
    assert body.task.weight.shape == (7, 5)
    assert all(parameter.requires_grad for parameter in body.parameters())


def test_an_odd_width_gives_the_rest_to_the_specific_space(tmp_path):
    odd = saved(tmp_path, "bert", hidden_size=9, num_attention_heads=3)
    body = DisentangledTransformer(DisentangledParams(encoder=odd))
    assert (body.width, body.specific.out_features) == (4, 5)
    assert body(inputs("bert")).shape == (2, 9)


def test_an_encoder_of_images_has_no_halves(tmp_path):
    images = saved(tmp_path, "vit")
    with pytest.raises(
        ConfigError, match=r"model\.encoder: got .*, expected an encoder"
    ):
        DisentangledTransformer(DisentangledParams(encoder=images))


# ---- runs


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    found = encoded_topics(tmp_path_factory.mktemp("topics"), per_label=60)
    return {"strategy": "idbr", "scenario": "class-incremental", **found}


def first_task(folder, texts, **params):
    """Return how much of the first task is left at the end."""
    given = {"scenario.class_fraction": 1.0, "rounds": 2, "epochs": 12, "seed": 1}
    given |= {"learning_rate": 5e-3, "batch_size": 16}
    values = {f"strategy.{key}": value for key, value in params.items()}
    run_in_process(tiny(folder, **{**texts, **given, **values}))
    matrices = summary_of(folder)["client_accuracy"]
    assert all(matrix[0][0] == 1 for matrix in matrices), "it was learned"
    return np.mean([matrix[1][0] for matrix in matrices])


@pytest.mark.soak
@pytest.mark.run
def test_the_memory_holds_the_first_task(tmp_path, texts):
    nothing = {"budget": "fixed", "memory_samples": 0}
    blank = first_task(tmp_path / "blank", texts, **nothing)
    whole = first_task(tmp_path / "whole", texts, buffer_fraction=0.5)

    assert blank == 0
    assert whole >= 0.5
