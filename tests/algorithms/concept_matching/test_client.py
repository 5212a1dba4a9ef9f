"""Concept Matching, client half: the model with the lowest loss, and nothing said."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import run_in_process, summary_of, tiny
from scipy.stats import norm

from clients.concept_matching import ConceptMatching, add_inputs, misfit
from fcl_flower.algorithms.base import ClientContext, Turn
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.build import create_model
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import snapshot
from strategies.concept_matching import ConceptMatchingParams
from strategies.concept_matching.server import ConceptMatching as Server

NOW = TaskStage(round=1, task=0, starts_task=True, ends_task=True)


def learner(subset=64, choice="loss", **model):
    network = create_model(
        "small", **{"tasks": 1, "classes": 3, "single_head": True, "seed": 0, **model}
    )
    params = ConceptMatchingParams(subset=subset, choice=choice)
    return ConceptMatching(params, network, ClientContext(0, 0, Training(1, 5, 1e-3)))


def answering(one, *bias):
    """Make the initial model with a head that looks at nothing."""
    arrays = snapshot(one.model, one.model.shared_names())
    arrays["heads.0.weight"] = np.zeros_like(arrays["heads.0.weight"])
    return {**arrays, "heads.0.bias": np.float32(bias)}


def examples(*labels, seed=0):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(len(labels), 1, 8, 8, generator=draw)
    return Examples(x, torch.tensor(labels))


def task(*labels):
    return TaskData(*(examples(*labels, seed=seed) for seed in range(3)), classes=3)


def trained(one, received, data, state=None):
    state, _ = one.train(Turn(state or {}, received, NOW, data))
    return int(state["chosen"]["0"])


def selected(one, received, samples, state=None):
    found = one.select_model(state or {}, received, samples)["base"]
    return next(k for k in range(3) if received[f"base/{k}"] is found)


@pytest.fixture
def one():
    return learner()


@pytest.fixture
def received(one):
    """Experts of the labels 2, 0 and 1."""
    return {
        f"base/{k}": answering(one, *5 * np.eye(3)[n]) for k, n in enumerate((2, 0, 1))
    }


@pytest.mark.parametrize(
    ("labels", "model"), [((2, 2), 0), ((0, 0), 1), ((0, 1, 1, 1, 2), 2)]
)
def test_the_model_with_the_lowest_mean_loss_is_chosen(one, received, labels, model):
    assert selected(one, received, examples(*labels)) == model
    data = task(0, 0, 0)
    assert trained(one, received, replace(data, train=examples(*labels))) == model


def test_the_loss_decides_and_not_the_accuracy_and_of_equals_the_first(one, received):
    """Equation 6. One model is right more often, the other less wrong."""
    bold, timid = answering(one, 20, 0, 0), answering(one, 0, 0.1, 0)
    mixed = examples(0, 0, 0, 1, 1)
    both = {"base/0": bold, "base/1": timid}
    # log(3) or so for each, against 20 for two of five.
    assert one.losses({}, both, mixed, 0) == pytest.approx([8, 1.094], abs=0.01)
    assert selected(one, both, mixed) == 1
    same = dict.fromkeys(("base/0", "base/1"), received["base/1"])
    assert trained(one, same, task(0, 0)) == 0


def test_the_chosen_model_is_trained_and_nothing_tells_which_it_was(one, received):
    _, update = one.train(Turn({}, received, NOW, task(1, 1, 1, 1, 1, 0)))
    assert update.payload.keys() == {"base"}
    assert update.payload["base"].keys() == received["base/0"].keys()
    moved = [
        max(
            float(np.abs(np.asarray(new) - received[f"base/{k}"][name]).max())
            for name, new in update.payload["base"].items()
        )
        for k in range(3)
    ]
    assert 0 < moved[2] < 0.01  # two steps of at most 1e-3
    assert min(moved[:2]) > 1
    assert update.metrics.keys() == {"loss", "valid_loss", "valid_accuracy"}


def test_only_a_part_of_the_examples_is_looked_at_and_not_the_first(received):
    many, seen, few = examples(*[0] * 30, *[1] * 30), [], learner(subset=7)
    forward = few.model.forward
    few.model.forward = lambda x, task: seen.append(x) or forward(x, task)
    few.losses({}, received, many, 0)
    assert [len(x) for x in seen] == [7] * 3
    assert all(torch.equal(x, seen[0]) for x in seen)
    assert not torch.equal(seen[0], many.x[:7])


# ---- without labels


def unlabelled(*labels, seed=0):
    """Draw inputs whose labels would name the wrong model: nobody must look."""
    return Examples(examples(*labels, seed=seed).x, torch.full((len(labels),), 2))


def test_by_entropy_the_surest_model_is_chosen_whatever_the_labels():
    one, sureness = learner(choice="entropy"), (0.5, 4.0, 2.0)
    received = {f"base/{k}": answering(one, s, 0, 0) for k, s in enumerate(sureness)}
    x = unlabelled(0, 0, 0)
    shares = [np.exp([s, 0, 0]) / np.exp([s, 0, 0]).sum() for s in sureness]
    expected = [-(share * np.log(share)).sum() for share in shares]
    assert one.entropies({}, received, x, 0) == pytest.approx(expected, rel=1e-5)
    assert selected(one, received, x) == 1


def test_by_inputs_the_model_is_chosen_that_was_trained_on_such(received):
    one = learner(choice="inputs")
    bright, dark = (task(*[label] * 9) for label in (1, 0))
    bright = replace(bright, train=Examples(bright.train.x + 3, bright.train.y))
    state = {}
    for data in (bright, dark, dark):
        state, _ = one.train(Turn(state, received, NOW, data))
    sums = {group for group in state if group.startswith("inputs/")}
    assert sums == {"inputs/1", "inputs/2"}
    assert state["inputs/1"]["count"] == 18
    seen = unlabelled(0, 0, 0, seed=9)
    assert selected(one, received, seen, state) == 1
    assert selected(one, received, Examples(seen.x + 3, seen.y), state) == 2
    assert selected(one, received, unlabelled(1)) == 0, "trained none: the first"
    plain, _ = learner().train(Turn({}, received, NOW, dark))
    assert not any(group.startswith("inputs/") for group in plain)


def test_statistics_of_the_numbers_of_words_are_refused(received):
    words = Examples(torch.zeros((2, 1, 8, 8), dtype=torch.int64), torch.tensor([0, 0]))
    data = TaskData(words, words, words, 3)
    with pytest.raises(ConfigError, match=r"strategy.choice: got 'inputs', expected"):
        learner(choice="inputs").train(Turn({}, received, NOW, data))


def test_the_misfit_is_the_negative_log_likelihood_of_a_gaussian():
    x = torch.randn(50, 1, 2, 3, generator=torch.Generator().manual_seed(1))
    x[:, 0, 0, 0] = 0.5  # an entry that never changes
    known = add_inputs(add_inputs({}, x[:20]), x[20:])
    rows = x.flatten(1).double().numpy()
    variance = rows.var(axis=0) + 0.01 * rows.var(axis=0).mean() + 1e-6
    fresh = rows[:7] + 0.1
    expected = -2 * norm.logpdf(fresh, rows.mean(axis=0), np.sqrt(variance)).mean()
    found = misfit(known, torch.from_numpy(fresh))
    assert found == pytest.approx(expected - np.log(2 * np.pi))
    assert misfit({}, x) == np.inf


def test_inputs_that_never_change_have_a_misfit_in_spite_of_rounding():
    draw = torch.Generator().manual_seed(0)
    x = 1e4 * torch.rand(1, 1, 8, 8, generator=draw, dtype=torch.float64)
    known = add_inputs({}, x.expand(7, 1, 8, 8))
    raw = known["squares"] / 7 - (known["sum"] / 7) ** 2
    assert raw.min() < -1e-8 < 0 < raw.max(), "rounding in either way"
    assert np.isfinite(misfit(known, x))
    assert misfit(known, x) < misfit(known, x + 1)


# ---- tasks


def test_a_task_that_the_client_knows_of_keeps_its_model(one, received):
    state = {"chosen": {"0": np.asarray(1), "3": np.asarray(0)}}
    x = examples(0).x
    assert one.predict(state, received, 0, x).argmax(1).tolist() == [0]
    assert one.predict(state, received, 3, x).argmax(1).tolist() == [2]


def test_private_heads_take_part_in_the_choice():
    one = learner(single_head=False, tasks=2, classes=2)
    body = snapshot(one.model, one.model.shared_names())
    flipped = {name: -np.asarray(values) for name, values in body.items()}
    data = TaskData(examples(0, 1), examples(0, seed=1), examples(0, seed=2), 2)
    received = {"base/0": body, "base/1": flipped}
    state, _ = one.train(Turn({}, received, NOW, data))
    assert state["heads"].keys() == {"heads.0.weight", "heads.0.bias"}
    x, y = examples(0, 1, 1, 0)
    logits = [one.predict(state, {"base": received[f"base/{k}"]}, 0, x) for k in (0, 1)]
    entropy = torch.nn.functional.cross_entropy
    losses = [float(entropy(z.detach(), y)) for z in logits]
    assert one.losses(state, received, Examples(x, y), 0) == pytest.approx(losses)


@pytest.mark.run
def test_the_server_guesses_rightly_with_which_model_a_client_started(
    tmp_path, monkeypatch
):
    chosen, guesses = {}, []
    train, combine = ConceptMatching.train, Server.combine

    def noted(self, *given):
        state, update = train(self, *given)
        chosen[self.context.client] = int(state["chosen"]["0"])
        return state, update

    def compared(self, *given):
        state = combine(self, *given)
        told = state["meta/round"]
        pairs = zip(told["client"], told["origin"], strict=True)
        guesses.extend((chosen[int(c)], int(k)) for c, k in pairs)
        return state

    monkeypatch.setattr(ConceptMatching, "train", noted)
    monkeypatch.setattr(Server, "combine", compared)
    shape = {"classes_per_task": 0, "tasks": 3, "clients": 6, "rounds": 3}
    config = tiny(tmp_path, strategy="concept-matching", scenario="concepts", **shape)
    run_in_process(config)
    assert len(guesses) == 18
    assert all(true == guess for true, guess in guesses)
    assert len({true for true, _ in guesses}) > 1
    assert summary_of(tmp_path)["concepts"]["models"] > 1
