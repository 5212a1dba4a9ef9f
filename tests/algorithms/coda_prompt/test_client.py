"""CODA-Prompt, client half: a tiny BERT whose prompts PyTorch alone trains too."""

import numpy as np
import pytest
import torch
from encoders import CLASSES
from fakes import exact
from torch import nn
from torch.nn.functional import cross_entropy
from worded_tasks import stage, task, taught, texts

from clients.coda_prompt import CodaPrompt
from fcl_flower.algorithms.base import ClientContext, ServerContext, Turn
from fcl_flower.algorithms.local_only import LocalOnlyLearner
from fcl_flower.core.errors import ConfigError
from fcl_flower.data.examples import TaskData
from fcl_flower.models.build import create_model
from fcl_flower.models.heads import CLOSED, MultiHeadModel
from fcl_flower.models.registry import PromptParams
from fcl_flower.training.loop import Training
from fcl_flower.training.optimizers import OptimizerChoice
from fcl_flower.training.tensors import snapshot
from strategies.coda_prompt import BIAS, WEIGHT, CodaPromptParams
from strategies.coda_prompt import CodaPrompt as Server

COUNT = 3

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def network(backbone):
    def make():
        return create_model(
            "prompted-transformer",
            tasks=1,
            classes=CLASSES,
            single_head=True,
            seed=3,
            params=PromptParams(
                encoder=backbone("bert"),
                components=COUNT,
                prompt_length=2,
                num_blocks=2,
            ),
        )

    return make


@pytest.fixture
def learner(network):
    def make(client=0, epochs=1, rate=0.01, optimizer=None, **params):
        training = Training(
            epochs, 8, rate, lr_patience=0, optimizer=optimizer or OptimizerChoice()
        )
        context = ClientContext(client=client, seed=0, training=training)
        return CodaPrompt(CodaPromptParams(**params), network(), context)

    return make


@pytest.fixture
def server(network):
    model = network()
    made = Server(CodaPromptParams(), ServerContext(0))
    return made, made.init(snapshot(model, model.shared_names()))


def whole(network, state, groups, rows):
    """Return a network with the pools of all these groups, and a head's rows."""
    model = network()
    for place, pool in enumerate(model.body.prompt_pools):
        pool.keys, pool.attention, pool.prompts = (
            nn.Parameter(
                torch.cat(
                    [
                        torch.tensor(state[g][f"body.pools.{place}.{kind}"])
                        for g in groups
                    ]
                )
            )
            for kind in ("keys", "attention", "prompts")
        )
    for name in (WEIGHT, BIAS):
        own = dict(model.named_parameters())[name]
        own.data[rows] = torch.tensor(state["heads"][name])[rows]
    return model


# ---- training


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_one_step_is_adams_with_old_components_detached(
    learner, server, network, weight
):
    made, state = server
    state, own = taught(learner(), made, state, data=task(0, 4))
    received, data = made.send(state, stage(2), 0), task(1, 3, count=4)

    _, update = learner(ortho_weight=weight).train(Turn(own, received, stage(2), data))

    # By torch alone: the whole pool and head, one batch of all eight texts, one step.
    groups = ["prompts/0", "prompts/now"]
    model = whole(network, state, groups, list(range(CLASSES)))
    logits = model(data.train.x, 0)
    logits[:, [0, 2, 4]] = -torch.inf
    loss = cross_entropy(logits, data.train.y)
    for pool in model.body.prompt_pools if weight else ():
        for rows in (pool.keys, pool.attention, pool.prompts.flatten(1)):
            loss = loss + weight * ((rows @ rows.T - torch.eye(len(rows))) ** 2).mean()
    loss.backward()
    for place, pool in enumerate(model.body.prompt_pools):
        for kind, leaf in pool.named_parameters():
            leaf.grad[:COUNT] = 0
            torch.optim.Adam([leaf], lr=0.01).step()
            sent = update.payload["prompts"][f"body.pools.{place}.{kind}"]
            old, new = leaf.detach().split(COUNT)
            np.testing.assert_allclose(sent, new, atol=1e-4)
            np.testing.assert_array_equal(
                old, state["prompts/0"][f"body.pools.{place}.{kind}"]
            )
    torch.optim.Adam(model.heads.parameters(), lr=0.01).step()
    for name in (WEIGHT, BIAS):
        rows = update.payload["heads"][name]
        expected = dict(model.named_parameters())[name].detach()
        np.testing.assert_allclose(rows.to_dense()[[1, 3]], expected[[1, 3]], atol=1e-5)
    assert update.payload["heads"][BIAS].indices.tolist() == [1, 3]
    assert update.num_examples == 8


def test_the_loss_is_among_the_classes_of_the_task_that_were_told_of(learner, server):
    made, state = server
    state, own = taught(learner(), made, state, data=task(2))
    state, own = taught(learner(), made, state, own, data=task(0, 4), ends=False)
    received = made.send(state, stage(2), 1)

    found = learner(client=1)
    _, update = found.train(Turn({}, received, stage(2), task(1, 3)))

    # Rows of the client's own classes are sent; those that others have told of were
    # trained against, and those of an earlier task were not.
    assert update.payload["heads"][BIAS].indices.tolist() == [1, 3]
    after, before = found.model.state_dict()[WEIGHT].numpy(), state["heads"][WEIGHT]
    assert (after[[0, 1, 3, 4]] != before[[0, 1, 3, 4]]).any(1).all()
    np.testing.assert_array_equal(after[2], before[2])


def test_weight_decay_moves_no_component_and_no_row_of_an_old_task(learner, server):
    made, state = server
    found = learner(optimizer=OptimizerChoice(weight_decay=0.5))
    state, own = taught(found, made, state, data=task(0, 1))
    before = exact({"p": state["prompts/0"]})
    rows = {n: np.array(t)[:2] for n, t in state["heads"].items()}

    state, own = taught(found, made, state, own, rounds=2, data=task(3, 4))

    assert exact({"p": state["prompts/0"]}) == before
    assert exact({"p": own["prompts/0"]}) == before
    for name, old in rows.items():
        np.testing.assert_array_equal(state["heads"][name][:2], old)


def test_validation_texts_of_other_classes_are_left_out(learner, server):
    made, state = server
    train, _, test = (texts(1, 3, seed=seed) for seed in range(3))
    received = made.send(state, stage(), 0)

    for valid, known in ((texts(1, 2, 3, 4), True), (texts(2), False)):
        data = TaskData(train, valid, test, CLASSES)
        _, update = learner().train(Turn({}, received, stage(), data))
        assert ("valid_loss" in update.metrics) == known


def test_a_round_that_is_repeated_gives_the_same_update(learner, server):
    made, state = server
    state, _ = taught(learner(), made, state, data=task(1, 3), ends=False)
    received = made.send(state, stage(2), 0)
    found = learner()

    updates = [
        found.train(Turn({}, received, stage(2), task(1, 3)))[1] for _ in range(2)
    ]

    for group in ("prompts", "heads"):
        for name, tensor in updates[0].payload[group].items():
            other = updates[1].payload[group][name]
            np.testing.assert_array_equal(
                *(getattr(t, "values", t) for t in (tensor, other))
            )


# ---- predictions


def test_predictions_are_of_the_components_of_all_tasks(learner, server, network):
    made, state = server
    found = learner(epochs=2)
    state, own = taught(found, made, state, rounds=2, data=task(0, 1))
    x = texts(0, 1, 3).x
    for groups, rows, data in (
        # Those of a task that nobody has trained yet take no part.
        (["prompts/0"], [0, 1], task(3)),
        (["prompts/0", "prompts/now"], [0, 1, 3], None),
    ):
        received = made.send_to_predict(state, stage(3), 0)
        logits = found.predict(own, received, 0, x)

        with torch.no_grad():
            expected = whole(network, state, groups, rows)(x, 0)
        torch.testing.assert_close(
            logits[:, rows], expected[:, rows], atol=1e-4, rtol=0
        )
        others = sorted({*range(CLASSES)} - {*rows})
        assert (logits[:, others] == CLOSED).all()
        assert all(pool.older is None for pool in found.model.body.prompt_pools)
        module = found.predictor(own, received, 0)
        torch.testing.assert_close(module(x), logits, atol=1e-4, rtol=0)
        if data:
            state, own = taught(found, made, state, own, data=data, ends=False)


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


def test_before_anything_is_learned_no_class_is_known(learner, server):
    made, state = server
    x, found = texts(1, 3).x, learner()
    received = made.send(state, stage(), 0)

    assert (found.predict({}, received, 0, x) == CLOSED).all()
    assert (found.predictor({}, received, 0)(x) == CLOSED).all()


def test_new_classes_are_learned_and_old_ones_still_told_apart(learner, server):
    made, state = server
    found = learner(epochs=12, rate=0.02)
    one, two = task(0, 1, count=24), task(3, 4, count=24)

    def accuracy(state, own, data):
        received = made.send(state, stage(9), 0)
        answers = found.predict(own, received, 0, data.test.x)
        among = torch.unique(data.test.y)
        right = among[answers[:, among].argmax(1)] == data.test.y
        return float(right.float().mean())

    state, own = taught(found, made, state, rounds=2, data=one)
    first = accuracy(state, own, one)
    state, own = taught(found, made, state, own, rounds=2, data=two)

    assert first > 0.95
    assert accuracy(state, own, one) > 0.8
    assert accuracy(state, own, two) > 0.95


def test_local_only_both_sides_are_in_the_client(learner):
    found = learner(epochs=5, rate=0.02)
    alone = LocalOnlyLearner(found, Server(CodaPromptParams(), ServerContext(0)))
    data, state = task(1, 3), alone.init()

    for number in (1, 2):
        state, update = alone.train(Turn(state, {}, stage(number, number == 2), data))
        assert update.payload == {}

    answers = alone.predict(state, {}, 0, data.test.x).argmax(1)
    assert float((answers == data.test.y).float().mean()) > 0.9


def test_a_model_without_prompts_is_refused(learner):
    body = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    model = MultiHeadModel(
        body, features=3, input_shape=(4,), tasks=1, classes=2, single_head=True
    )
    with pytest.raises(ConfigError, match="got 'Sequential', expected prompted-transf"):
        CodaPrompt(CodaPromptParams(), model, learner().context)
