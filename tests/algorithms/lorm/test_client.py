"""LoRM, client half: a tiny BERT, whose answers NumPy and plain weights give too."""

import numpy as np
import pytest
import torch
from encoders import CLASSES, lora_model, plain
from fakes import exact
from torch import nn
from worded_tasks import stage, task, taught, texts

from clients.lorm import NEVER, Lorm
from fcl_flower.algorithms.base import ClientContext, ServerContext, Turn
from fcl_flower.algorithms.local_only import LocalOnlyLearner
from fcl_flower.core.errors import ConfigError, ContractError
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import snapshot
from strategies.analytic.sums import symmetric
from strategies.lorm import Lorm as Server
from strategies.lorm import LormParams

# The changed layers of the last block, in their order.
LAYERS = [
    *(f"attention.self.{name}" for name in ("query", "key", "value")),
    *("attention.output.dense", "intermediate.dense", "output.dense"),
]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def learner(backbone):
    def make(client=0, epochs=1, rate=0.01, **params):
        training = Training(epochs, 8, rate, lr_patience=0)
        model = lora_model(backbone("bert"), blocks=1)
        context = ClientContext(client=client, seed=0, training=training)
        return Lorm(LormParams(**params), model, context)

    return make


@pytest.fixture
def server(learner):
    model = learner().model
    made = Server(LormParams(), ServerContext(0))
    return made, made.init(snapshot(model, model.shared_names()))


# ---------------------------------------------------------------- training


def test_the_factor_whose_turn_it_is_learns_alone(learner, server):
    made, state = server
    found, data = learner(epochs=2), task(1, 3)
    sent = []
    for factor in (".up", ".down", ".up"):
        received = made.send(state, stage(), 0)
        _, update = found.train(Turn({}, received, stage(), data))

        names = {f"body.adapters.{place}{factor}" for place in range(len(LAYERS))}
        assert update.payload["adapters"].keys() == names
        for name, tensor in update.payload["adapters"].items():
            assert (tensor != received["adapters/now"][name]).any()
        other = {".up": ".down", ".down": ".up"}[factor]
        learned = found.model.state_dict()
        for name, tensor in received["adapters/now"].items():
            if name.endswith(other):
                np.testing.assert_array_equal(learned[name], tensor)
        sent.append(update)
        made.check_update(state, update)
        state = made.combine(state, stage(), {0: update})

    assert sent[0].num_examples == 24
    assert {"loss", "valid_loss", "valid_accuracy"} <= sent[0].metrics.keys()


def test_one_step_is_adams_on_the_logits_of_the_tasks_classes(
    learner, server, backbone
):
    made, state = server
    data = task(1, 3, count=4)
    received = made.send(state, stage(), 0)

    _, update = learner().train(Turn({}, received, stage(), data))

    # By torch alone: one batch of all eight texts, and one step.
    model = lora_model(backbone("bert"), blocks=1)
    start = {**received["adapters/now"], **received["heads"]}
    model.load_state_dict({n: torch.from_numpy(t) for n, t in start.items()}, False)
    leaves = dict(model.named_parameters())
    factors = [leaves[n] for n in start if n.endswith(".up")]
    optimizer = torch.optim.Adam([*factors, *model.heads.parameters()], lr=0.01)
    logits = model(data.train.x, 0)[:, [1, 3]]
    nn.functional.cross_entropy(logits, (data.train.y == 3).long()).backward()
    optimizer.step()
    for name, tensor in update.payload["adapters"].items():
        np.testing.assert_allclose(tensor, leaves[name].detach(), atol=1e-5)
    assert update.payload["heads"]["classes"].tolist() == [1, 3]
    for name in ("heads.0.weight", "heads.0.bias"):
        expected = leaves[name].detach()[[1, 3]]
        np.testing.assert_allclose(update.payload["heads"][name], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("contrast", "classes"), [("task", [0, 1, 3, 4]), ("own", [1, 3])]
)
def test_the_loss_is_among_all_classes_that_were_told_of(
    learner, server, contrast, classes
):
    made, state = server
    state, _ = taught(learner(), made, state, data=task(0, 4), ends=False)
    received = made.send(state, stage(2), 1)
    before = received["heads"]["heads.0.weight"]

    found = learner(contrast=contrast)
    _, update = found.train(Turn({}, received, stage(2), task(1, 3)))

    heads = update.payload["heads"]
    assert heads["classes"].tolist() == classes
    assert (heads["heads.0.weight"] != before[classes]).any(1).all()
    untouched = sorted({*range(CLASSES)} - {*classes})
    after = found.model.state_dict()["heads.0.weight"].numpy()
    np.testing.assert_array_equal(after[untouched], before[untouched])


def test_validation_texts_of_other_classes_are_left_out(learner, server):
    made, state = server
    train, _, test = (texts(1, 3, seed=seed) for seed in range(3))
    data = TaskData(train, texts(1, 2, 3, 4), test, CLASSES)

    _, update = learner().train(Turn({}, made.send(state, stage(), 0), stage(), data))

    assert np.isfinite(update.metrics["valid_loss"])
    nothing = TaskData(train, Examples(train.x[:0], train.y[:0]), test, CLASSES)
    received = made.send(state, stage(), 0)
    _, update = learner().train(Turn({}, received, stage(), nothing))
    assert "valid_loss" not in update.metrics


# ---------------------------------------------------------------- grams


def test_grams_are_of_what_the_trained_layers_are_given(learner, server):
    made, state = server
    found, data = learner(), task(1, 3)
    received = made.send(state, stage(), 0)

    _, update = found.train(Turn({}, received, stage(), data))

    # Each text alone and without padding, through the model as it was left.
    grams, body = update.payload["grams"], found.model.body
    entered = {name: [] for name in LAYERS}
    hooks = [
        body.blocks[-1]
        .get_submodule(name)
        .register_forward_pre_hook(
            lambda _, given, name=name: entered[name].append(given[0][0].detach())
        )
        for name in LAYERS
    ]
    features = [body(x[None, x > 0]).detach()[0].double().numpy() for x in data.train.x]
    for hook in hooks:
        hook.remove()
    assert int(grams["tokens"]) == int((data.train.x > 0).sum())
    for place, name in enumerate(LAYERS):
        rows = torch.cat(entered[name]).double().numpy()
        np.testing.assert_allclose(
            grams[f"body.adapters.{place}"], (rows**2).mean(0), rtol=1e-3, atol=1e-6
        )
    gram = np.mean([np.outer(f, f) for f in features], 0)
    off = 1 - np.eye(len(gram))
    np.testing.assert_allclose(
        symmetric(grams["head"]), gram * (1 - 0.5 * off), rtol=1e-3, atol=1e-5
    )


# ---------------------------------------------------------------- predictions


def test_predictions_are_of_the_merged_changes_of_all_tasks(learner, server, backbone):
    made, state = server
    found = learner(epochs=3, rate=0.05)
    state, own = taught(found, made, state, rounds=2, data=task(0, 1))
    state, own = taught(found, made, state, own, rounds=2, data=task(3, 4), ends=False)
    x = texts(0, 1, 3, 4).x
    received = made.send(state, stage(4), 0)
    assert "adapters/0" not in received  # it was received with the second task

    logits = found.predict(own, received, 0, x)

    body = plain(backbone("bert"))
    for place, name in enumerate(LAYERS):
        layer = f"body.adapters.{place}"
        tasks = [(state[f"adapters/{n}"], state[f"grams/{n}"]) for n in ("0", "now")]
        changes = [
            factors[f"{layer}.up"].astype(float) @ factors[f"{layer}.down"]
            for factors, _ in tasks
        ]
        squares = [int(g["tokens"]) * g[layer].astype(float) for _, g in tasks]
        total = sum(d * s for d, s in zip(changes, squares, strict=True))
        module = body.blocks[-1].get_submodule(name)
        module.weight.data += torch.from_numpy(total / sum(squares)).float()
    head = state["heads"]
    features = body(x).detach().numpy()
    expected = features @ head["heads.0.weight"].T + head["heads.0.bias"]
    known = [0, 1, 3, 4]
    np.testing.assert_allclose(logits[:, known], expected[:, known], atol=1e-4)
    assert (logits[:, 2] == NEVER).all()
    assert all(change.fixed == () for change in found.model.body.changes)


def test_a_client_that_never_took_part_predicts_alike(learner, server):
    made, state = server
    found = learner()
    state, own = taught(found, made, state, data=task(0, 1))
    state, own = taught(found, made, state, own, data=task(3, 4))
    x = texts(0, 4).x
    answers = [
        who.predict(memory, made.send(state, stage(3), client), 0, x)
        for who, memory, client in ((found, own, 0), (learner(client=5), {}, 5))
    ]

    assert torch.equal(*answers)
    empty = found.predict(own, made.send(state, stage(3), 0), 0, x[:0])
    assert empty.shape == (0, CLASSES)


def test_new_classes_are_learned_and_old_ones_kept(learner, server):
    made, state = server
    found = learner(epochs=12, rate=0.02)
    one, two = task(0, 1, count=24), task(3, 4, count=24)

    def accuracy(state, own, data):
        received = made.send(state, stage(9), 0)
        answers = found.predict(own, received, 0, data.test.x).argmax(1)
        return float((answers == data.test.y).float().mean())

    state, own = taught(found, made, state, rounds=2, data=one)
    first = accuracy(state, own, one)
    state, own = taught(found, made, state, own, rounds=2, data=two)

    assert first > 0.95
    assert accuracy(state, own, one) > 0.6
    assert accuracy(state, own, two) > 0.6


# ---------------------------------------------------------------- refusals


def test_a_model_without_lora_is_refused(learner):
    context = learner().context
    body = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    model = MultiHeadModel(
        body, features=3, input_shape=(4,), tasks=1, classes=2, single_head=True
    )
    with pytest.raises(ConfigError, match="expected lora-transformer, lora-vit or"):
        Lorm(LormParams(), model, context)
    named = nn.ModuleDict({"a": nn.ParameterDict({"up": nn.Parameter(torch.ones(1))})})
    named["a"]["down"] = nn.Parameter(torch.ones(1))
    model.body = named
    with pytest.raises(ContractError, match="got body ModuleDict, expected LoraTr"):
        Lorm(LormParams(), model, context)


def test_a_round_that_is_repeated_gives_the_same_update(learner, server):
    made, state = server
    state, _ = taught(learner(), made, state, data=task(1, 3), ends=False)
    received = made.send(state, stage(2), 0)
    found = learner()

    _, one = found.train(Turn({}, received, stage(2), task(1, 3)))
    _, two = found.train(Turn({}, received, stage(2), task(1, 3)))

    assert exact(one.payload) == exact(two.payload)


def test_classes_of_an_earlier_task_are_not_among_them(learner, server):
    made, state = server
    state, own = taught(learner(), made, state, data=task(0, 4))
    received = made.send(state, stage(2), 0)

    _, update = learner().train(Turn(own, received, stage(2), task(1, 3)))

    assert update.payload["heads"]["classes"].tolist() == [1, 3]


def test_before_anything_is_learned_the_encoder_is_as_it_was(learner, server, backbone):
    made, state = server
    x = texts(1, 3).x
    known = {**state, "meta/known": {"classes": np.ones(CLASSES, np.uint8)}}

    found = learner().predict({}, made.send(known, stage(), 0), 0, x)

    head = state["heads"]
    features = plain(backbone("bert"))(x).detach().numpy()
    expected = features @ head["heads.0.weight"].T + head["heads.0.bias"]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    nothing = learner().predict({}, made.send(state, stage(), 0), 0, x)
    assert (nothing == NEVER).all()


def test_local_only_both_sides_are_in_the_client(learner, server):
    found = learner(epochs=5, rate=0.02)
    alone = LocalOnlyLearner(found, Server(LormParams(), ServerContext(0)))
    data, state = task(1, 3), alone.init()

    for number in (1, 2):
        now = stage(number, number == 2)
        state, update = alone.train(Turn(state, {}, now, data))
        assert update.payload == {}

    answers = alone.predict(state, {}, 0, data.test.x).argmax(1)
    assert float((answers == data.test.y).float().mean()) > 0.9
