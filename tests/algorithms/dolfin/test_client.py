"""DOLFIN, client half: tiny encoders, whose answers plain weights give, too."""

import copy

import numpy as np
import pytest
import torch
from encoders import CLASSES, RANK, WIDTH, inputs, plain
from fakes import exact
from torch import nn
from worded_tasks import stage, task, texts

from clients.dolfin import Dolfin
from clients.lorm import NEVER
from fcl_flower.algorithms.base import ClientContext, ServerContext, Turn
from fcl_flower.algorithms.local_only import LocalOnlyLearner
from fcl_flower.core.errors import ConfigError
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.adapters import LoraParams
from fcl_flower.models.build import create_model
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import snapshot
from strategies.analytic.sums import symmetric
from strategies.dolfin import Dolfin as Server
from strategies.dolfin import DolfinParams, factors_of

# The changed layers of each block, in their order; both of a block have its inputs.
LAYERS = [
    f"encoder.layer.{b}.attention.self.{n}" for b in (1, 2) for n in ("key", "value")
]

pytestmark = pytest.mark.usefixtures("one_thread")


def network(folder, name="lora-transformer", layers="keys-values", blocks=2):
    params = LoraParams(encoder=folder, rank=RANK, layers=layers, num_blocks=blocks)
    return create_model(
        name, tasks=1, classes=CLASSES, single_head=True, seed=3, params=params
    )


def context(client=0, epochs=1, rate=0.01):
    training = Training(epochs, 8, rate, lr_patience=0)
    return ClientContext(client=client, seed=0, training=training)


@pytest.fixture
def learner(backbone):
    def make(**how):
        return Dolfin(DolfinParams(), network(backbone("bert")), context(**how))

    return make


@pytest.fixture
def server(learner):
    return begun(learner())


def begun(found, **params):
    made = Server(DolfinParams(**params), ServerContext(0))
    return made, made.init(snapshot(found.model, found.model.shared_names()))


def asked(found, made, state, now, data, own=None):
    question = made.configure_query(state, now, 0)
    if question is None:
        return state
    answer = found.answer_query(Turn(own or {}, question, now, data))
    made.check_query_reply(state, answer)
    return made.aggregate_query(state, now, {0: answer})


def taught(found, made, state, own=None, rounds=1, data=None, ends=True):
    """Return server and client state after a client has learned a task alone."""
    own = own or {}
    for number in range(1, rounds + 1):
        now = stage(number, ends and number == rounds)
        state = asked(found, made, state, now, data, own)
        received = made.send(state, now, 0)
        own, update = found.train(Turn(own, received, now, data))
        made.check_update(state, update)
        state = made.combine(state, now, {0: update})
    return state, own


# ---------------------------------------------------------------- what is told


def entered(body, x):
    """Return by layer what enters it, of each sample alone and without padding."""
    seen = {name: [] for name in LAYERS}
    hooks = [
        body.encoder.get_submodule(name).register_forward_pre_hook(
            lambda _, given, name=name: seen[name].append(given[0][0].detach())
        )
        for name in LAYERS
    ]
    for one in x:
        body(one[None, one > 0])
    for hook in hooks:
        hook.remove()
    return {name: torch.cat(rows).double().numpy() for name, rows in seen.items()}


def test_grams_are_of_what_both_layers_of_a_block_are_given(learner, server):
    made, state = server
    found, data = learner(), task(1, 3)
    state, own = taught(found, made, state, data=task(0, 1))
    state, own = taught(found, made, state, own, data=data, ends=False)
    question = made.configure_query(state, stage(2, True), 0)

    answer = found.answer_query(Turn(own, question, stage(2, True), data))

    # The model of the question, by plain weights.
    rows = entered(joined(found, state), data.train.x)
    assert int(answer["grams"]["tokens"]) == int((data.train.x > 0).sum())
    for place, name in enumerate(LAYERS):
        half = answer["grams"][f"body.adapters.{place // 2 * 2}"]
        expected = rows[name].T @ rows[name] / len(rows[name])
        np.testing.assert_allclose(symmetric(half), expected, rtol=1e-3, atol=1e-5)
    assert answer["meta/classes"]["classes"].tolist() == [0, 1, 0, 1, 0]


def joined(found, state):
    """Return a plain encoder to whose weights the changes of all tasks are added."""
    body = copy.deepcopy(found.model.body)
    for change in body.changes:
        change.idle = True
    for place, name in enumerate(LAYERS):
        layer = body.encoder.get_submodule(name)
        for down, up in factors_of(state, f"body.adapters.{place}").values():
            change = up.astype(float) @ down
            layer.weight.data += torch.from_numpy(change).float()
    return body


def test_a_client_without_samples_tells_of_none(learner, server):
    made, state = server
    data = task(1, 3)
    nothing = TaskData(
        Examples(data.train.x[:0], data.train.y[:0]), data.valid, data.test, CLASSES
    )
    question = made.configure_query(state, stage(), 0)

    answer = learner().answer_query(Turn({}, question, stage(), nothing))

    made.check_query_reply(state, answer)
    assert int(answer["grams"]["tokens"]) == 0
    assert not answer["meta/classes"]["classes"].any()


# ---------------------------------------------------------------- training


def test_one_step_is_adams_on_second_factors_and_the_tasks_rows(
    learner, server, backbone
):
    made, state = server
    data = task(1, 3, count=4)
    state = asked(learner(), made, state, stage(), data)
    received = made.send(state, stage(), 0)

    _, update = learner().train(Turn({}, received, stage(), data))

    # By torch alone: one batch of all eight texts, and one step.
    model = network(backbone("bert"))
    leaves = dict(model.named_parameters())
    for place in range(len(LAYERS)):
        down = received["directions/now"][f"body.adapters.{place // 2 * 2}.down"]
        leaves[f"body.adapters.{place}.down"].data[:] = torch.from_numpy(down)
    ups = {n: leaves[n] for n in received["adapters/now"]}
    assert not any(up.any() for up in ups.values())
    optimizer = torch.optim.Adam([*ups.values(), *model.heads.parameters()], lr=0.01)
    logits = model(data.train.x, 0)[:, [1, 3]]
    nn.functional.cross_entropy(logits, (data.train.y == 3).long()).backward()
    optimizer.step()
    assert update.payload["adapters/now"].keys() == ups.keys()
    for name, tensor in update.payload["adapters/now"].items():
        np.testing.assert_allclose(tensor, ups[name].detach(), atol=1e-5)
        assert tensor.any()
    for name, rows in update.payload["heads"].items():
        expected = np.zeros(rows.shape)
        expected[[1, 3]] = leaves[name].detach()[[1, 3]]
        np.testing.assert_allclose(rows.to_dense(), expected, atol=1e-5)
    assert update.num_examples == 8
    made.check_update(state, update)


def test_the_loss_is_among_all_classes_of_the_task_that_were_told_of(learner, server):
    made, state = server
    state = asked(learner(), made, state, stage(), task(0, 4))
    received = made.send(state, stage(), 1)

    _, update = learner().train(Turn({}, received, stage(), task(1, 3)))

    assert update.payload["heads"]["heads.0.bias"].indices.tolist() == [0, 1, 3, 4]


def test_classes_of_an_earlier_task_are_not_among_them(learner, server):
    made, state = server
    state, own = taught(learner(), made, state, data=task(0, 4))
    received = made.send(state, stage(2), 0)
    before = {n: np.array(t) for n, t in received["heads"].items()}

    found = learner()
    _, update = found.train(Turn(own, received, stage(2), task(1, 3)))

    assert update.payload["heads"]["heads.0.bias"].indices.tolist() == [1, 3]
    after = found.model.state_dict()
    for name, tensor in before.items():
        np.testing.assert_array_equal(after[name][[0, 2, 4]], tensor[[0, 2, 4]])


def test_first_factors_and_finished_tasks_stay_as_they_are(learner, server):
    made, state = server
    found = learner(epochs=3, rate=0.05)
    state, own = taught(found, made, state, data=task(0, 1))
    first = exact({g: state[g] for g in ("adapters/0", "directions/0")})
    state, own = taught(found, made, state, own, rounds=2, data=task(3, 4), ends=False)

    assert exact({g: own[g] for g in ("adapters/0", "directions/0")}) == first
    for place in range(len(LAYERS)):
        down, _ = factors_of(state, f"body.adapters.{place}")["now"]
        learned = found.model.state_dict()[f"body.adapters.{place}.down"]
        np.testing.assert_array_equal(learned, down)


def test_a_round_that_is_repeated_gives_the_same_update(learner, server):
    made, state = server
    state, own = taught(learner(), made, state, data=task(1, 3), ends=False)
    received = made.send(state, stage(2), 0)
    found = learner()

    _, one = found.train(Turn(own, received, stage(2), task(1, 3)))
    found.predict(own, received, 0, texts(1).x)
    _, two = found.train(Turn(own, received, stage(2), task(1, 3)))

    assert exact(one.payload) == exact(two.payload)


# ---------------------------------------------------------------- what does not change


def test_a_later_task_leaves_answers_to_old_inputs_alone(learner, backbone):
    found = learner(epochs=3, rate=0.05)
    made, state = begun(found, energy=1 - 1e-9)
    one, two = task(0, count=4), task(3, 4)
    state, own = taught(found, made, state, data=one)
    x = one.train.x
    before = joined(found, state)(x)

    later, own = taught(found, made, state, own, data=two)

    moved = [factors_of(later, f"body.adapters.{p}")["1"] for p in range(len(LAYERS))]
    # The first changed block has inputs that no change reaches; with it the others.
    rows = entered(joined(found, state), x)
    for name, (down, up) in zip(LAYERS, moved, strict=True):
        assert np.abs(up).max() > 1e-3 or not down.any()
        assert np.abs(rows[name] @ down.T @ up.T).max() < 1e-4
    torch.testing.assert_close(joined(found, later)(x), before, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["bert", "distilbert", "vit", "dinov2"])
def test_before_anything_is_learned_no_bit_of_the_encoder_changes(backbone, kind):
    image = kind in ("vit", "dinov2")
    name = "lora-vit" if image else "lora-transformer"
    found = Dolfin(DolfinParams(), network(backbone(kind), name), context())
    made, state = begun(found)
    x = inputs(kind)
    data = TaskData(*[Examples(x, torch.tensor([1, 3]))] * 3, CLASSES)
    state = asked(found, made, state, stage(), data)
    known = {**state, "meta/known": {"classes": np.ones(CLASSES, np.uint8)}}
    received = made.send(known, stage(), 0)

    logits = found.predict({}, received, 0, x)

    assert any(down.any() for down in received["directions/now"].values())
    with torch.no_grad():
        assert torch.equal(logits, found.model.heads[0](plain(backbone(kind))(x)))
    nothing = found.predict({}, made.send(state, stage(), 0), 0, x)
    assert (nothing == NEVER).all()


# ---------------------------------------------------------------- predictions


@pytest.mark.parametrize("kind", ["bert", "dinov2"])
def test_merged_weights_predict_as_the_factors_do(backbone, kind):
    name = "lora-vit" if kind == "dinov2" else "lora-transformer"
    found = Dolfin(DolfinParams(), network(backbone(kind), name), context(rate=0.05))
    made, state = begun(found)
    own, x = {}, inputs(kind)
    for labels in ([0, 1], [3, 4]):
        data = TaskData(*[Examples(x, torch.tensor(labels))] * 3, CLASSES)
        state, own = taught(found, made, state, own, rounds=2, data=data)
    received = made.send(state, stage(9), 0)

    logits = found.predict(own, received, 0, x)

    head = state["heads"]
    merged = found.predictor(own, received, 0)
    assert all(change.idle and change.fixed == () for change in merged.body.changes)
    torch.testing.assert_close(merged(x), logits, atol=1e-4, rtol=1e-4)
    weights = merged.body.encoder_state()
    body = plain(backbone(kind))
    own_answers = body(x).detach()
    body.encoder.load_state_dict(weights)
    features = body(x).detach()
    assert not torch.allclose(features, own_answers, atol=1e-2)
    expected = features.numpy() @ head["heads.0.weight"].T + head["heads.0.bias"]
    known = [0, 1, 3, 4]
    np.testing.assert_allclose(logits[:, known], expected[:, known], atol=1e-4)
    assert (logits[:, 2] == NEVER).all()
    assert merged(x)[:, 2].tolist() == [NEVER] * 2
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


def test_local_only_both_sides_are_in_the_client(learner, server):
    found = learner(epochs=5, rate=0.02)
    alone = LocalOnlyLearner(found, Server(DolfinParams(), ServerContext(0)))
    data, state = task(1, 3), alone.init()

    for number in (1, 2):
        now = stage(number, number == 2)
        state, update = alone.train(Turn(state, {}, now, data))
        assert update.payload == {}

    assert state["server:directions/0"]["body.adapters.0.down"].shape == (RANK, WIDTH)
    answers = alone.predict(state, {}, 0, data.test.x).argmax(1)
    assert float((answers == data.test.y).float().mean()) > 0.9


# ---------------------------------------------------------------- refusals


def test_changes_of_other_layers_are_refused(backbone):
    with pytest.raises(
        ConfigError, match=r"model.layers: got .*, expected keys-values"
    ):
        Dolfin(DolfinParams(), network(backbone("bert"), layers="all"), context())
