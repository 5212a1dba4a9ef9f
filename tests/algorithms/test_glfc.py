"""GLFC: both losses, what a client shows of a task, and a run."""

import numpy as np
import pytest
import torch
from fakes import asked_in, rounds_of, run_in_process, summary_of, tiny
from mutants import array_of, with_array
from torch import nn

from clients.glfc import (
    Glfc,
    compensated,
    compensation_weights,
    feature_spread,
    perturbed,
    prototypes,
    relation_distilled,
)
from fcl_flower.algorithms.base import ClientContext, Turn
from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.heads import CLOSED, MultiHeadModel
from fcl_flower.rounds import messages
from fcl_flower.rounds.transport import Reply
from fcl_flower.training.distillation import hidden_features
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import load, snapshot
from strategies.glfc import GlfcParams
from strategies.glfc.trainer import (
    EncodingNetwork,
    sample_gradients,
)

FIRST = TaskStage(round=1, task=0, starts_task=True, ends_task=True)
SECOND = TaskStage(round=2, task=1, starts_task=True, ends_task=False)
THIRD = TaskStage(round=3, task=1, starts_task=False, ends_task=True)


def model():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.Tanh())
    return MultiHeadModel(
        body, features=6, input_shape=(1, 2, 2), tasks=1, classes=4, single_head=True
    )


def learner(training=None, **params):
    chosen = {"epochs": 1, "batch_size": 100, "learning_rate": 0.01} | (training or {})
    context = ClientContext(client=2, seed=5, training=Training(**chosen))
    given = {"memory_samples": 6, "perturbation_steps": 3, **params}
    return Glfc(GlfcParams(**given), model(), context)


def data(task, count=20):
    draw = torch.Generator().manual_seed(task)
    splits = [torch.randn(count, 1, 2, 2, generator=draw) for _ in range(3)]
    parts = (Examples(x, (x[:, 0, 0, 0] > 0).long() + 2 * task) for x in splits)
    return TaskData(*parts, classes=4)


def start(shift=0.0):
    network = model()
    base = snapshot(network, network.shared_names())
    return {"base": {name: values + np.float32(shift) for name, values in base.items()}}


def taught(shift=0.3):
    """Return what is received when the second task starts."""
    old = start(shift)["base"]
    return {**start(), "old": old, "meta/old": {"classes": np.uint8([1, 1, 0, 0])}}


def after_first(made):
    state, _ = made.train(Turn(made.init(), start(), FIRST, data(0)))
    return state


def binary(logits, targets):
    p = torch.sigmoid(logits)
    return -(targets * p.log() + (1 - targets) * (1 - p).log())


def remembered(state, task=0):
    memory = state["memory"]
    of = memory["task"] == task
    return Examples(
        torch.from_numpy(memory["x"][of]), torch.from_numpy(memory["y"][of]).long()
    )


# ---- training


def test_the_first_task_is_learned_by_plain_binary_entropies():
    made, oracle = learner({"epochs": 3}), model()
    _, update = made.train(Turn(made.init(), start(), FIRST, data(0)))
    optimizer = torch.optim.Adam(oracle.parameters(), lr=0.01)
    examples = data(0).train
    for _ in range(3):
        optimizer.zero_grad()
        binary(oracle(examples.x, 0), torch.eye(4)[examples.y]).mean().backward()
        optimizer.step()
    for name, values in update.payload["base"].items():
        np.testing.assert_allclose(values, oracle.state_dict()[name], atol=1e-6)
    assert update.num_examples == 20


def test_a_later_task_is_learned_with_both_losses_and_the_memory():
    made, oracle, old = learner(compensation=0.7, distillation=2.0), model(), model()
    state = after_first(made)
    kept = remembered(state)
    assert sorted(kept.y.tolist()) == [0] * 3 + [1] * 3

    _, update = made.train(Turn(state, taught(), SECOND, data(1)))

    load(old, start(0.3)["base"])
    new = data(1).train
    x, y = torch.cat([new.x, kept.x]), torch.cat([new.y, kept.y])
    logits = oracle(x, 0)
    sizes = 1 - torch.sigmoid(logits.detach())[torch.arange(26), y]
    sizes[:20] /= sizes[:20].mean()
    sizes[20:] /= sizes[20:].mean()
    targets = torch.eye(4)[y]
    with torch.no_grad():
        said = torch.sigmoid(old(x, 0))
    soft = torch.cat([said[:, :2], targets[:, 2:]], 1)
    loss = 0.7 * (sizes[:, None] * binary(logits, targets)).mean()
    loss = loss + 2.0 * binary(logits, soft).mean()
    optimizer = torch.optim.Adam(oracle.parameters(), lr=0.01)
    loss.backward()
    optimizer.step()
    for name, values in update.payload["base"].items():
        np.testing.assert_allclose(values, oracle.state_dict()[name], atol=1e-6)
    assert update.num_examples == 26


def test_the_old_model_stays_the_same_over_a_task():
    made = learner()
    state, _ = made.train(Turn(after_first(made), taught(), SECOND, data(1)))
    again, update = made.train(Turn(state, start(), THIRD, data(1)))
    for name, values in taught()["old"].items():
        np.testing.assert_array_equal(again["memory/teacher"][name], values)
    assert again["progress"]["old"].tolist() == [1, 1, 0, 0]
    assert update.payload.keys() == {"base"}
    # And it teaches in that round too.
    plain = learner(distillation=0.0)
    _, other = plain.train(Turn(state, start(), THIRD, data(1)))
    name = "heads.0.weight"
    assert not np.array_equal(update.payload["base"][name], other.payload["base"][name])


def test_without_an_old_model_only_the_compensated_loss_counts_in_full():
    one, other = learner(), learner(compensation=9.0, distillation=9.0)
    found = [
        made.train(Turn(after_first(made), start(), SECOND, data(1)))[1]
        for made in (one, other)
    ]
    for name, values in found[0].payload["base"].items():
        np.testing.assert_array_equal(values, found[1].payload["base"][name])


def test_without_memory_and_old_model_samples_weigh_the_same():
    made, plain = learner(memory_samples=0), model()
    state = after_first(made)
    assert len(state["memory"]["y"]) == 0
    _, update = made.train(Turn(state, start(), SECOND, data(1)))
    examples = data(1).train
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.01)
    binary(plain(examples.x, 0), torch.eye(4)[examples.y]).mean().backward()
    optimizer.step()
    for name, values in update.payload["base"].items():
        np.testing.assert_allclose(values, plain.state_dict()[name], atol=1e-6)


# ---- memory


def test_exemplars_are_chosen_anew_with_each_rounds_features():
    made = learner({"learning_rate": 0.3, "epochs": 5})
    state, _ = made.train(Turn(after_first(made), taught(), SECOND, data(1)))
    again, _ = made.train(Turn(state, start(-0.4), THIRD, data(1)))
    for after in (state, again):
        assert after["memory"]["task"].tolist().count(1) > 0
        assert len(after["memory"]["y"]) == 6
    assert remembered(state, 1).x.tolist() != remembered(again, 1).x.tolist()


# ---- transitions


def trained(made, state, stage, task, received=None):
    return made.train(Turn(state, received or start(), stage, data(task)))


def test_a_client_that_is_not_told_notices_a_task_by_its_entropy():
    made = learner(transition="entropy", entropy_rise=0.5)
    load(made.model, start()["base"])
    with torch.no_grad():
        p = made.model(data(0).train.x, 0).softmax(1).numpy().astype(np.float64)
    expected = -(p * np.log(p)).sum(1).mean()

    state, update = trained(made, made.init(), THIRD, 0)

    assert float(state["progress"]["entropy"]) == pytest.approx(expected, rel=1e-5)
    assert int(state["progress"]["task"]) == 1, "it rises from 0"
    assert "prototypes" in update.payload
    state, update = trained(made, state, SECOND, 1, taught())
    assert int(state["progress"]["task"]) == 1, "whatever it is told"
    assert "prototypes" not in update.payload
    assert not state["memory/teacher"]


def test_the_rise_is_since_the_last_round():
    made = learner(transition="entropy", entropy_rise=0.5)
    state, _ = trained(made, made.init(), FIRST, 0)
    certain = {"base": {n: 40 * v for n, v in start()["base"].items()}}
    sure, _ = trained(made, state, THIRD, 0, certain)
    assert float(sure["progress"]["entropy"]) < 0.5
    unsure, update = trained(made, sure, THIRD, 1, taught())
    assert int(unsure["progress"]["task"]) == 2
    assert unsure["memory/teacher"].keys() == start()["base"].keys()
    assert unsure["progress"]["old"].tolist() == [1, 1, 0, 0]
    assert update.num_examples == 26


@pytest.mark.parametrize("transition", ["known", "entropy"])
def test_a_client_without_samples_waits(transition):
    made = learner(transition=transition)
    none = Examples(torch.empty(0, 1, 2, 2), torch.empty(0, dtype=torch.int64))
    empty = TaskData(none, none, none, 4)
    state, update = made.train(Turn(made.init(), start(), FIRST, empty))
    assert update.num_examples == 0
    assert update.payload.keys() == {"base"}
    assert np.isfinite(float(state["progress"]["entropy"]))


# ---- prototypes


def test_what_is_shown_are_gradients_of_a_sample_of_each_class():
    made = learner(perturbation_steps=0)
    _, update = made.train(Turn(made.init(), start(), FIRST, data(0)))
    examples = data(0).train
    features = hidden_features(made.model, examples)
    unit = features / features.norm(dim=1, keepdim=True)
    places = []
    for label in (0, 1):
        of = torch.where(examples.y == label)[0]
        distance = ((unit[of] - unit[of].mean(0)) ** 2).sum(1)
        places.append(int(of[distance.argmin()]))
    expected = sample_gradients(
        EncodingNetwork((1, 2, 2), 4, 5), examples.x[places], examples.y[places]
    )
    for name, values in update.payload["prototypes"].items():
        np.testing.assert_allclose(values, expected[name], atol=1e-6)


LOGITS = torch.tensor(
    [[2.0, -1.0, 0.5], [0.0, 1.0, -2.0], [-1.0, 0.3, 0.2], [1.0, 1.0, 3.0]]
)
LABELS = torch.tensor([0, 1, 1, 2])
NEW = torch.tensor([True, True, False, False])


def sigmoid(z):
    return 1 / (1 + np.exp(-np.asarray(z, np.float64)))


def entropies(logits, targets):
    """Return binary cross-entropies by their definition."""
    p = sigmoid(logits)
    return -(targets * np.log(p) + (1 - targets) * np.log(1 - p))


# ---- compensation


def test_a_sample_weighs_by_its_gradient_over_the_mean_of_old_or_new_classes():
    sizes = np.abs(sigmoid([2.0, 1.0, 0.3, 3.0]) - 1)
    new, old = sizes[:2].mean(), sizes[2:].mean()

    found = compensation_weights(LOGITS, LABELS, NEW)

    np.testing.assert_allclose(found, sizes / np.array([new, new, old, old]), rtol=1e-5)


def test_weights_have_no_gradient_and_survive_certainty():
    certain = torch.full((2, 2), 200.0, requires_grad=True)

    found = compensation_weights(
        certain, torch.tensor([0, 1]), torch.tensor([True, False])
    )

    assert found.tolist() == [0, 0]
    assert not found.requires_grad


def test_the_compensated_loss_is_the_weighted_mean_of_binary_entropies():
    weights = torch.tensor([0.5, 1.0, 2.0, 3.0])
    expected = weights.numpy()[:, None] * entropies(LOGITS, np.eye(3)[LABELS])

    found = compensated(LOGITS, LABELS, weights)

    assert float(found) == pytest.approx(expected.mean(), rel=1e-5)


# ---- distillation


def test_old_classes_are_taught_by_the_old_model_and_others_by_the_label():
    taught = torch.tensor([[0.9, 0.2, 0.6]]).repeat(4, 1)
    targets = np.eye(3)[LABELS]
    targets[:, 0], targets[:, 2] = 0.9, 0.6

    found = relation_distilled(
        LOGITS, LABELS, taught, torch.tensor([True, False, True])
    )

    assert float(found) == pytest.approx(entropies(LOGITS, targets).mean(), rel=1e-5)


def test_a_class_that_the_head_has_not_yet_gives_no_gradient():
    logits = LOGITS.clone()
    logits[:, 2] = CLOSED
    logits.requires_grad_()
    labels, weights = torch.tensor([0, 1, 1, 0]), torch.ones(4)

    loss = compensated(logits, labels, weights) + relation_distilled(
        logits, labels, torch.zeros(4, 3), torch.tensor([True, False, False])
    )
    loss.backward()

    assert torch.isfinite(logits.grad).all()
    assert logits.grad[:, 2].tolist() == [0] * 4


# ---- prototypes


def test_the_prototype_is_the_sample_whose_direction_is_nearest_to_the_mean():
    features = torch.tensor(
        [[1.0, 0.0], [0.0, 5.0], [3.0, 2.0], [1.0, 1.0], [-1.0, 0.0], [2.0, 0.1]]
    )
    labels = torch.tensor([3, 3, 3, 0, 0, 0])

    # Directions of class 3: 0, 90 and 34 degrees; of class 0: 45, 180 and 3.
    assert prototypes(features, labels).tolist() == [3, 2]


def test_lengths_of_features_do_not_choose_the_prototype():
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.7, 0.8]])
    labels = torch.zeros(3, dtype=torch.int64)
    scaled = features * torch.tensor([[100.0], [1.0], [0.01]])

    assert prototypes(features, labels).tolist() == [2]
    assert prototypes(scaled, labels).tolist() == [2]


def test_the_spread_is_the_standard_deviation_within_a_class():
    features = torch.tensor([[1.0, 4.0], [3.0, 4.0], [10.0, 0.0]])

    found = feature_spread(features, torch.tensor([1, 1, 0]))

    assert found.tolist() == [[0, 0], [1, 0]]


def network():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh(), nn.Dropout(0.5))
    return MultiHeadModel(
        body, features=5, input_shape=(1, 2, 2), tasks=1, classes=3, single_head=True
    )


def shown(model, noise, steps, seed=3, count=2, spread=0.7):
    x = torch.arange(4.0 * count).reshape(count, 1, 2, 2) / 4
    samples = Examples(x, torch.tensor([0, 2])[:count])
    return x, perturbed(
        model,
        samples,
        torch.full((count, 5), spread),
        noise=noise,
        steps=steps,
        rate=0.5,
        seed=seed,
    )


@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_a_prototype_moves_down_the_loss_of_noised_features(noise):
    model = network()
    _, found = shown(model, noise, steps=2)

    draw = torch.Generator().manual_seed(3)
    drawn = [torch.randn(2, 5, generator=draw) for _ in range(2)]
    for row, label in enumerate((0, 2)):
        x = torch.arange(4.0 * row, 4.0 * row + 4) / 4
        for step in range(2):
            x.requires_grad_()
            hidden = torch.tanh(model.body[1](x[None]))
            logits = model.heads[0](hidden + noise * 0.7 * drawn[step][row])[0]
            p = torch.sigmoid(logits)
            wanted = torch.eye(3)[label]
            loss = -(wanted * p.log() + (1 - wanted) * (1 - p).log()).mean()
            (slope,) = torch.autograd.grad(loss, x)
            x = (x - 0.5 * slope).detach()
        torch.testing.assert_close(found[row].ravel(), x, atol=1e-6, rtol=1e-5)


pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = {"strategy": "glfc", "rounds": 2, "strategy.search_steps": 5}


def learned(folder, **values):
    """Return how much of the first task is left at the end, and the rounds."""
    given = {"scenario": "class-incremental", "scenario.class_fraction": 1.0}
    given |= {"epochs": 3, "learning_rate": 3e-3, "tasks": 3, "seed": 1}
    given |= {"strategy.search_steps": 30, "dataset": "digits", "model": "small"}
    run_in_process(tiny(folder, **{**SMALL, **given, **values}))
    matrices = summary_of(folder)["client_accuracy"]
    return np.mean([matrix[-1][0] for matrix in matrices]), rounds_of(folder)


@pytest.mark.soak
@pytest.mark.run
def test_the_old_model_holds_the_first_task_with_memory_and_without(tmp_path):
    found, rounds = {}, {}
    for samples, weight in ((20, 0.5), (20, 0.0), (0, 2.0), (0, 0.0)):
        values = {"memory_samples": samples, "distillation": weight}
        found[samples, weight], rounds[samples, weight] = learned(
            tmp_path / f"{samples}-{weight}",
            **{f"strategy.{key}": value for key, value in values.items()},
        )

    assert found[20, 0.5] > found[20, 0.0] + 0.1
    assert found[0, 2.0] > found[0, 0.0] + 0.2
    accuracies = [row["diagnostics"]["proxy/accuracy"] for row in rounds[0, 2.0]]
    assert {row["diagnostics"]["proxy/images"] for row in rounds[0, 2.0]} == {4}
    # Within a task the best model never gets worse on its images.
    assert all(accuracies[n] <= accuracies[n + 1] for n in (0, 2, 4))
    assert len(set(accuracies)) > 1


@pytest.mark.run
@pytest.mark.parametrize("value", [1e20, -1e20])
def test_gradients_of_no_image_do_not_end_a_run(tmp_path, value):
    def hostile(who, request, reply):
        if who != 1 or not asked_in(request, 1):
            return reply
        sent = messages.decode_payload(reply.content)["prototypes"]["body.0.bias"]
        bad = array_of(np.full_like(np.asarray(sent), value))
        content = with_array(reply.content, "prototypes", "body.0.bias", bad)
        return Reply(request, content)

    config = tiny(tmp_path, **SMALL, tasks=1, max_update_norm=0)
    run_in_process(config, tamper=hostile)

    assert [row["failed"] for row in rounds_of(tmp_path)] == [[], []]
    assert summary_of(tmp_path)["average_accuracy"] > 0
