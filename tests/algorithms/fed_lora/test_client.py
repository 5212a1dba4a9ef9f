"""Federated LoRA, client half: a tiny BERT, whose answers plain weights give, too."""

import numpy as np
import pytest
import torch
from encoders import CLASSES, lora_model, plain
from fakes import exact
from torch import nn
from worded_tasks import stage, task, texts

from clients.fed_lora import FedLora
from fcl_flower.algorithms.base import ClientContext, ServerContext, Turn
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.core.errors import ConfigError
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.loop import Training
from fcl_flower.training.optimizers import OptimizerChoice
from fcl_flower.training.tensors import snapshot
from strategies.fed_lora import FedLora as Server
from strategies.fed_lora import FedLoraParams

# The changed layers of the last block, in their order.
LAYERS = [
    *(f"attention.self.{name}" for name in ("query", "key", "value")),
    *("attention.output.dense", "intermediate.dense", "output.dense"),
]
HEAD = ("heads.0.weight", "heads.0.bias")
DATA = {0: task(0, 1, count=4), 1: task(3, 4, count=8), 2: task(1, 2, count=2)}
"""What each of three clients learns."""
EXACT = ["frozen", "alternating", "residual"]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def learner(backbone):
    def make(kind=FedLora, client=0, epochs=1, rate=0.01, optimizer="adam"):
        choice = OptimizerChoice(optimizer)
        training = Training(epochs, 64, rate, lr_patience=0, optimizer=choice)
        context = ClientContext(client=client, seed=0, training=training)
        return kind(FedLoraParams(), lora_model(backbone("bert"), blocks=1), context)

    return make


def begun(rule, learner):
    model = learner().model
    made = Server(FedLoraParams(aggregation=rule), ServerContext(0))
    return made, made.init(snapshot(model, model.shared_names()))


def factors(place, *known):
    """Return B and A of a layer in float64, of those tensors that come last."""
    tensors = {name: tensor for arrays in known for name, tensor in arrays.items()}
    layer = f"body.adapters.{place}"
    up, down = (tensors[f"{layer}.{one}"].astype(float) for one in ("up", "down"))
    return up, down


def learned(rule, learner, backbone, rounds=3):
    """Return the server after some rounds, and the weights that clients then have.

    These are means of the clients' weights, which are found from what they send alone.
    """
    made, state = begun(rule, learner)
    first = snapshot(learner().model, learner().model.shared_names())
    block = plain(backbone("bert")).blocks[-1]
    weights = [block.get_submodule(n).weight.detach().double().numpy() for n in LAYERS]
    memory = {client: {} for client in DATA}
    for number in range(1, rounds + 1):
        updates = {}
        received = made.send(state, stage(number), 0)
        for client, data in DATA.items():
            found = learner(client=client, epochs=2, rate=0.05)
            memory[client], updates[client] = found.train(
                Turn(memory[client], received, stage(number), data)
            )
            made.check_update(state, updates[client])
        total = sum(update.num_examples for update in updates.values())
        common = first, received.get("adapters/fixed", {}), received["base"]
        for place in range(len(LAYERS)):
            up, down = factors(place, *common)
            weights[place] = weights[place] - up @ down
            for update in updates.values():
                up, down = factors(place, *common, update.payload["base"])
                share = update.num_examples / total
                weights[place] = weights[place] + share * up @ down
        state = made.combine(state, stage(number), updates)
    return made, state, weights


# ---------------------------------------------------------------- training


@pytest.mark.parametrize(
    ("rule", "turns"),
    [
        ("mean", ["up down"] * 2),
        ("frozen", ["up"] * 2),
        ("alternating", ["up", "down"]),
    ],
)
def test_what_is_received_as_base_is_trained_and_sent_alone(rule, turns, learner):
    made, state = begun(rule, learner)
    for number, turn in enumerate(turns, 1):
        received = made.send(state, stage(number), 0)
        found = learner(rate=0.05)
        before = snapshot(found.model, found.model.shared_names())
        before |= received.get("adapters/fixed", {})

        _, update = found.train(Turn({}, received, stage(number), DATA[0]))

        sent = update.payload["base"]
        expected = {*HEAD} | {n for n in before if n.endswith((*turn.split(),))}
        assert sent.keys() == expected
        after = snapshot(found.model, before)
        for name, tensor in before.items():
            if name in expected:
                np.testing.assert_array_equal(after[name], sent[name])
            else:
                np.testing.assert_array_equal(after[name], tensor)
        # A has no gradient as long as B is 0.
        moved = [name for name in sent if (sent[name] != received["base"][name]).any()]
        assert any(name.endswith(turn.split()[0]) for name in moved) == (
            turn != "down" or number > 1
        )
        state = made.combine(state, stage(number), {0: update})


def test_the_mean_is_fedavg(learner):
    made, state = begun("mean", learner)
    received = made.send(state, stage(), 0)

    ours, theirs = (
        learner(kind, epochs=2).train(Turn({}, received, stage(), DATA[1]))
        for kind in (FedLora, LocalTraining)
    )

    assert exact(ours[0]) == exact(theirs[0])
    assert exact(ours[1].payload) == exact(theirs[1].payload)


def test_a_step_beside_a_residual_is_one_of_changed_weights(learner, backbone):
    made, state, weights = learned("residual", learner, backbone, rounds=2)
    received = made.send(state, stage(3), 0)
    data = DATA[0]

    found = learner(optimizer="sgd", rate=0.1)
    _, update = found.train(Turn({}, received, stage(3), data))

    # By torch alone, from weights of which the factors' part is taken out.
    model = lora_model(backbone("bert"), blocks=1)
    leaves = {n: p for n, p in model.named_parameters() if n in received["base"]}
    for name, leaf in leaves.items():
        leaf.data[:] = torch.from_numpy(received["base"][name])
    for place, name in enumerate(LAYERS):
        up, down = factors(place, received["base"])
        rest = torch.from_numpy(weights[place] - up @ down)
        model.body.blocks[-1].get_submodule(name).weight.data[:] = rest
    logits = model(data.train.x, 0)
    nn.functional.cross_entropy(logits, data.train.y).backward()
    for name, leaf in leaves.items():
        expected = leaf.detach() - 0.1 * leaf.grad
        np.testing.assert_allclose(update.payload["base"][name], expected, atol=1e-5)
    rest = received["adapters/residual"]
    assert {name.rpartition(".")[2] for name in rest} == {
        "0",
        "1",
        "2",
        "3",
        *("up", "down"),
    }


# ---------------------------------------------------------------- predictions


@pytest.mark.parametrize("rule", EXACT)
def test_predictions_are_of_the_mean_of_the_clients_weights(rule, learner, backbone):
    made, state, weights = learned(rule, learner, backbone)
    received = made.send_to_predict(state, stage(3, True), 1)
    x = texts(0, 1, 3, 4).x

    found = learner(client=1)  # which remembers nothing
    logits = found.predict({}, received, 0, x)

    body = plain(backbone("bert"))
    before = body(x).detach()
    for place, name in enumerate(LAYERS):
        layer = body.blocks[-1].get_submodule(name)
        layer.weight.data[:] = torch.from_numpy(weights[place])
    features = body(x).detach()
    assert not torch.allclose(features, before, atol=0.1)
    weight, bias = (torch.from_numpy(state["base"][name]) for name in HEAD)
    expected = features @ weight.T + bias
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)

    merged = found.predictor({}, received, 0)
    torch.testing.assert_close(merged(x), expected, atol=1e-4, rtol=1e-4)
    assert all(change.idle for change in merged.body.changes)
    body.encoder.load_state_dict(merged.body.encoder_state())
    torch.testing.assert_close(body(x).detach(), features, atol=1e-4, rtol=1e-4)
    assert all(change.fixed == () for change in found.model.body.changes)


# ---------------------------------------------------------------- refusals


def test_a_model_without_lora_is_refused(learner):
    body = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    model = MultiHeadModel(
        body, features=3, input_shape=(4,), tasks=1, classes=CLASSES, single_head=True
    )
    with pytest.raises(
        ConfigError, match="expected lora-transformer, lora-vit or causal-lm"
    ):
        FedLora(FedLoraParams(), model, learner().context)
