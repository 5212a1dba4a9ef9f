"""FOT, client half: what enters layers, sketches of it, and when they are sent."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

from clients.fot import Fot, Sketch, columns, shared_layers
from fcl_flower.algorithms.base import ClientContext, Params, Turn
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.models.words import KimCnn
from fcl_flower.privacy.mechanism import simulated
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import load, snapshot
from strategies.fot import FotParams

FIRST = TaskStage(round=1, task=0, starts_task=True, ends_task=False)
LAST = TaskStage(round=2, task=0, starts_task=False, ends_task=True)
ONLY = TaskStage(round=3, task=1, starts_task=True, ends_task=True)


def network(body=None, *, single=False, shape=(3,), features=4):
    torch.manual_seed(0)
    body = body or nn.Sequential(
        nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4, bias=False), nn.Dropout(0.5)
    )
    return MultiHeadModel(
        body,
        features=features,
        input_shape=shape,
        tasks=2,
        classes=2,
        single_head=single,
    )


def learner(client=0, *, single=False, **params):
    chosen = {"epochs": 1, "batch_size": 100, "learning_rate": 0.01}
    where = ClientContext(client=client, seed=0, training=Training(**chosen))
    return Fot(FotParams(**params), network(single=single), where)


def data(count=150):
    draw = torch.Generator().manual_seed(0)
    splits = [torch.randn(count, 3, generator=draw) for _ in range(3)]
    parts = (Examples(x, (x[:, 0] > 0).long()) for x in splits)
    return TaskData(*parts, classes=2)


def shared(single=False):
    model = network(single=single)
    return {"base": snapshot(model, model.shared_names())}


def train(made, received, stage, state=None):
    with simulated():
        return made.train(Turn(state or {}, received, stage, data()))


# ---- what enters a layer


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(3, 4), (5, 3)),
        (nn.Linear(3, 4), (2, 5, 3)),
        (nn.Linear(3, 4, bias=False), (5, 3)),
        (nn.Conv2d(2, 4, 3), (2, 2, 5, 6)),
        (nn.Conv2d(2, 4, (2, 3), stride=2, padding=1, bias=False), (2, 2, 5, 6)),
        (nn.Conv2d(2, 4, 2, dilation=2, padding="same"), (2, 2, 5, 6)),
        (nn.Conv1d(2, 4, 3, stride=2, padding=1), (2, 2, 7)),
    ],
)
def test_a_layer_is_its_matrix_times_the_columns(layer, shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))

    found = columns(layer, x)

    matrix = layer.weight.flatten(1)
    if layer.bias is not None:
        matrix = torch.cat([matrix, layer.bias[:, None]], 1)
    answers = layer(x)
    outputs = answers.movedim(1 if x.dim() > 2 and answers.shape[1] == 4 else -1, 0)
    assert found.shape == (matrix.shape[1], outputs.flatten(1).shape[1])
    torch.testing.assert_close(matrix @ found, outputs.flatten(1))


def test_each_group_of_channels_has_patches_of_its_own():
    layer = nn.Conv2d(4, 6, 3, groups=2)
    x = torch.randn(1, 4, 4, 3, generator=torch.Generator().manual_seed(0))

    found = columns(layer, x)

    assert found.shape == (19, 4)  # two groups at two positions
    matrix = torch.cat([layer.weight.flatten(1), layer.bias[:, None]], 1)
    answers = layer(x)[0].flatten(1)
    torch.testing.assert_close(matrix[:3] @ found[:, :2], answers[:3])
    torch.testing.assert_close(matrix[3:] @ found[:, 2:], answers[3:])


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (network(nn.Sequential(nn.Embedding(9, 4), nn.Flatten()), shape=(-1,)), "0"),
        (
            network(KimCnn(np.zeros((9, 2), np.float32)), shape=(-1,), features=384),
            "convs.0",
        ),
    ],
)
def test_a_weight_of_which_nobody_knows_what_it_meets_is_refused(model, name):
    with pytest.raises(ConfigError, match=rf"the shared weight body\.{name}\.weight,"):
        shared_layers(model)


def test_a_single_head_is_a_layer_and_heads_of_tasks_are_not():
    bodies = ["body.0", "body.2"]
    assert list(shared_layers(network())) == bodies
    assert list(shared_layers(network(single=True))) == [*bodies, "heads.0"]


# ---- the sketch


def test_a_sketch_made_bit_by_bit_is_that_of_all_at_once():
    rng = np.random.default_rng(1)
    basis = np.linalg.qr(rng.normal(size=(6, 2)))[0]
    inputs = rng.normal(size=(6, 40)) + 1
    sketch, draws = Sketch(basis, 3), np.random.default_rng(7)

    for part in (inputs[:, :15], inputs[:, 15:]):
        sketch.add(part, draws)

    rest = (np.eye(6) - basis @ basis.T) @ inputs
    random = np.random.default_rng(7).standard_normal((40, 3))
    np.testing.assert_allclose(sketch.values, rest @ random / 120**0.5, rtol=1e-5)
    expected = np.trace(rest @ rest.T) / np.trace(inputs @ inputs.T)
    assert 0.1 < expected < 0.9
    assert float(sketch.outside) == pytest.approx(expected, rel=1e-6)
    assert sketch.values.dtype == sketch.outside.dtype == np.float32


def test_a_sketch_of_many_samples_is_as_large_as_one_of_few():
    inputs = np.random.default_rng(1).normal(size=(6, 400))
    sizes = []
    for count in (40, 400):
        sketch = Sketch(np.zeros((6, 0)), 200)
        sketch.add(inputs[:, :count], np.random.default_rng(7))
        sizes.append(np.square(sketch.values).sum())
    assert sizes == pytest.approx([6, 6], rel=0.2)  # the mean square of a sample


def test_a_sketch_of_nothing_is_0():
    for inputs in (np.zeros((4, 0)), np.zeros((4, 5))):
        sketch = Sketch(np.zeros((4, 0)), 2)
        sketch.add(inputs, np.random.default_rng(0))
        np.testing.assert_array_equal(sketch.values, np.zeros((4, 2)))
        assert float(sketch.outside) == 0


# ---- what is trained and sent


def test_training_is_that_of_fedavg():
    for stage in (FIRST, LAST):
        plain = LocalTraining(Params(), network(), learner().context)
        _, found = train(learner(), shared(), stage)
        _, expected = plain.train(Turn({}, shared(), stage, data()))
        for name, values in expected.payload["base"].items():
            np.testing.assert_array_equal(found.payload["base"][name], values)
        assert found.num_examples == 150
        assert found.metrics == expected.metrics


def test_sketches_are_sent_in_the_last_round_of_a_task_alone():
    state, during = train(learner(), shared(), FIRST)
    _, end = train(learner(), shared(), LAST, state)
    assert during.payload.keys() == {"base"}
    assert end.payload.keys() == {"base", "sketches", "sketches/outside"}
    shapes = {n: t.shape for n, t in end.payload["sketches"].items()}
    assert shapes == {"body.0": (4, 4), "body.2": (4, 4)}
    wide = learner(sketch_width=2.6, single=True)
    _, end = train(wide, shared(single=True), LAST)
    shapes = {n: t.shape for n, t in end.payload["sketches"].items()}
    assert shapes == {"body.0": (4, 11), "body.2": (4, 11), "heads.0": (5, 13)}


def test_sketches_are_of_what_enters_the_layers_of_the_trained_network():
    # So wide that the sketch times its transpose is nearly the matrix of products.
    made = learner(single=True, sketch_width=10)
    many = {}
    for client in range(60):
        made = learner(client, single=True, sketch_width=10)
        _, update = train(made, shared(single=True), LAST)
        for name, values in update.payload["sketches"].items():
            many.setdefault(name, []).append(values @ values.T)

    model = network(single=True)
    load(model, update.payload["base"])
    weights = {n: t.double().numpy() for n, t in model.state_dict().items()}
    x = np.c_[data().train.x.double().numpy(), np.ones(150)]
    first = np.c_[weights["body.0.weight"], weights["body.0.bias"]]
    hidden = np.tanh(x @ first.T)
    features = hidden @ weights["body.2.weight"].T
    expected = {"body.0": x, "body.2": hidden, "heads.0": np.c_[features, np.ones(150)]}
    assert many.keys() == expected.keys()
    for name, rows in expected.items():
        np.testing.assert_allclose(
            np.mean(many[name], 0), rows.T @ rows / 150, atol=0.06
        )


def test_what_is_in_the_subspace_is_not_sketched():
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 2)))[0]
    basis = basis.astype(np.float32)
    received = {**shared(), "subspace": {"body.0": basis}}

    state, _ = train(learner(), shared(), FIRST)
    _, update = train(learner(), received, LAST, state)

    found = update.payload["sketches"]
    np.testing.assert_allclose(basis.T @ found["body.0"], 0, atol=1e-5)
    assert np.abs(basis.T @ found["body.2"]).max() > 0.1
    x = np.c_[data().train.x.double().numpy(), np.ones(150)]
    expected = 1 - np.square(x @ basis).sum() / np.square(x).sum()
    share = update.payload["sketches/outside"]
    assert float(share["body.0"]) == pytest.approx(expected, rel=1e-5)
    assert float(share["body.2"]) == 1


def test_a_subspace_that_has_grown_since_is_not_sketched_again():
    whole = {"body.0": np.eye(4, dtype=np.float32)}
    state, first = train(learner(), shared(), ONLY)
    _, again = train(learner(), {**shared(), "subspace": whole}, LAST, state)
    assert float(first.payload["sketches/outside"]["body.0"]) == 1
    assert float(again.payload["sketches/outside"]["body.0"]) == pytest.approx(0)


def test_nobody_else_can_repeat_the_random_numbers():
    def sketch(made, stage=LAST):
        _, update = made.train(Turn({}, shared(), stage, data()))
        return update.payload["sketches"]["body.0"].tobytes()

    with simulated():
        found = Counter(sketch(learner(client)) for client in (0, 0, 1))
        found[sketch(learner(), ONLY)] += 1
    assert sorted(found.values()) == [1, 1, 2]  # by client and round
    assert sketch(learner()) != sketch(learner())


def test_a_client_without_examples_sends_zeros():
    nothing = Examples(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    empty = TaskData(nothing, nothing, nothing, classes=2)
    with simulated():
        _, update = learner().train(Turn({}, shared(), LAST, empty))
    assert update.num_examples == 0
    for group in ("sketches", "sketches/outside"):
        assert not any(np.any(t) for t in update.payload[group].values())
