"""Concept Matching, client half: the model with the lowest loss, and nothing said."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import exact, run_in_process, summary_of, tiny
from scipy.stats import norm

from clients.concept_matching import ConceptMatching, add_inputs, misfit
from fcl_flower.algorithms.base import ClientContext
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.build import create_model
from fcl_flower.setup.build import Built
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import snapshot
from strategies.concept_matching import ConceptMatchingParams

NOW = TaskStage(round=1, task=0, starts_task=True, ends_task=True)


def learner(subset=64, client=0, choice="loss", **model):
    network = create_model(
        "small", **{"tasks": 1, "classes": 3, "single_head": True, "seed": 0, **model}
    )
    place = ClientContext(client, 0, Training(1, 5, 1e-3))
    return ConceptMatching(
        ConceptMatchingParams(subset=subset, choice=choice), network, place
    )


def expert(one, label):
    """Return the initial model with a head that always answers ``label``."""
    arrays = snapshot(one.model, one.model.shared_names())
    arrays["heads.0.weight"] = np.zeros_like(arrays["heads.0.weight"])
    arrays["heads.0.bias"] = np.eye(3, dtype=np.float32)[label] * 5
    return arrays


def examples(*labels, seed=0):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(len(labels), 1, 8, 8, generator=draw)
    return Examples(x, torch.tensor(labels))


def task(*labels):
    return TaskData(*(examples(*labels, seed=seed) for seed in range(3)), classes=3)


def match(one, received, labelled, state=None):
    return int(np.argmin(one.losses(state or {}, received, labelled, 0)))


@pytest.fixture
def one():
    return learner()


@pytest.fixture
def received(one):
    return {f"base/{k}": expert(one, label) for k, label in enumerate((2, 0, 1))}


@pytest.mark.parametrize(("label", "model"), [(2, 0), (0, 1), (1, 2)])
def test_the_model_with_the_lowest_loss_is_chosen(one, received, label, model):
    assert match(one, received, examples(label, label, label)) == model


def test_the_mean_over_the_examples_decides(one, received):
    assert match(one, received, examples(0, 1, 1, 1, 2)) == 2


def test_of_equal_models_the_first_is_chosen(one, received):
    same = dict.fromkeys(("base/0", "base/1"), received["base/1"])
    state, _ = one.train({}, same, NOW, task(0, 0))
    assert state["chosen"]["0"] == 0


def test_the_loss_decides_and_not_the_accuracy(one, received):
    """Equation 6. One model is right more often, the other less wrong."""
    bold, timid = dict(received["base/1"]), dict(received["base/1"])
    bold["heads.0.bias"] = np.float32([20, 0, 0])
    timid["heads.0.bias"] = np.float32([0, 0.1, 0])
    both = {"base/0": bold, "base/1": timid}
    mixed = examples(0, 0, 0, 1, 1)
    right = [
        (one.predict({}, {"base": m}, 0, mixed.x).argmax(1) == mixed.y).sum().item()
        for m in (bold, timid)
    ]

    assert right == [3, 2]
    # log(3) or so for each, against 20 for two of five.
    assert one.losses({}, both, mixed, 0) == pytest.approx([8, 1.094], abs=0.01)
    state, _ = one.train({}, both, NOW, TaskData(mixed, mixed, mixed, 3))
    assert state["chosen"]["0"] == 1
    assert one.select_model({}, both, mixed)["base"] is timid


def test_the_chosen_model_is_trained_and_nothing_tells_which_it_was(one, received):
    state, update = one.train({}, received, NOW, task(1, 1, 1, 1, 1, 0))
    assert update.payload.keys() == {"base"}
    assert update.payload["base"].keys() == received["base/0"].keys()
    moved = {
        k: max(
            float(np.abs(np.asarray(new) - received[f"base/{k}"][name]).max())
            for name, new in update.payload["base"].items()
        )
        for k in range(3)
    }
    assert 0 < moved[2] < 0.01  # two steps of at most 1e-3
    assert min(moved[0], moved[1]) > 1
    assert update.metrics.keys() == {"loss", "valid_loss", "valid_accuracy"}
    assert int(state["chosen"]["0"]) == 2


def test_the_model_to_train_is_chosen_on_training_samples_alone(one, received):
    train, valid, test = (examples(*[label] * 3) for label in (1, 0, 2))
    state, _ = one.train({}, received, NOW, TaskData(train, valid, test, 3))

    assert state["chosen"]["0"] == 2  # the expert of label 1


def test_only_a_part_of_the_examples_is_looked_at(one, received):
    many = examples(*[0] * 30, *[1] * 30)
    seen = []
    forward = one.model.forward
    one.model.forward = lambda x, task: seen.append(len(x)) or forward(x, task)
    one.losses({}, received, many, 0)
    assert seen == [60] * 3
    few = learner(subset=7)
    forward = few.model.forward
    few.model.forward = lambda x, task: seen.append(x) or forward(x, task)
    few.losses({}, received, many, 0)
    assert [len(x) for x in seen[3:]] == [7] * 3
    assert all(torch.equal(x, seen[3]) for x in seen[4:])
    # At random, not the first ones, since examples may be sorted by class.
    assert not torch.equal(seen[3], many.x[:7])


def test_data_that_are_met_without_a_task_choose_by_themselves(one, received):
    found = one.select_model({}, received, examples(1, 1))
    assert exact(found) == exact({"base": received["base/2"]})
    logits = one.predict({}, found, 0, examples(0).x)
    assert logits.argmax(1).tolist() == [1]


# ---- without labels


def unlabelled(*labels, seed=0):
    """Return inputs whose labels would name the wrong model: nobody must look."""
    return Examples(examples(*labels, seed=seed).x, torch.full((len(labels),), 2))


def test_by_entropy_the_surest_model_is_chosen_whatever_the_labels(received):
    one = learner(choice="entropy")
    for k, sureness in enumerate((0.5, 4.0, 2.0)):
        bias = received[f"base/{k}"]["heads.0.bias"] * np.float32(sureness / 5)
        received[f"base/{k}"] = {**received[f"base/{k}"], "heads.0.bias": bias}
    x = unlabelled(0, 0, 0)

    found = one.entropies({}, received, x, 0)
    for value, sureness in zip(found, (0.5, 4.0, 2.0), strict=True):
        share = np.exp([sureness, 0, 0]) / np.exp([sureness, 0, 0]).sum()
        assert value == pytest.approx(-(share * np.log(share)).sum(), rel=1e-5)
    assert exact(one.select_model({}, received, x)) == exact(
        {"base": received["base/1"]}
    )


def test_by_inputs_the_model_is_chosen_that_was_trained_on_such(received):
    one = learner(choice="inputs")
    bright, dark = (task(*[label] * 9) for label in (1, 0))
    bright = replace(bright, train=Examples(bright.train.x + 3, bright.train.y))
    state, _ = one.train({}, received, NOW, bright)
    state, _ = one.train(state, received, NOW, dark)
    state, _ = one.train(state, received, NOW, dark)

    assert {group for group in state if group.startswith("inputs/")} == {
        "inputs/1",
        "inputs/2",
    }
    assert state["inputs/1"]["count"] == 18
    seen = unlabelled(0, 0, 0, seed=9)
    chosen = one.select_model(state, received, seen)
    assert exact(chosen) == exact({"base": received["base/1"]})
    brighter = Examples(seen.x + 3, seen.y)
    chosen = one.select_model(state, received, brighter)
    assert exact(chosen) == exact({"base": received["base/2"]})


def test_by_inputs_a_client_that_trained_nothing_takes_the_first_model(received):
    found = learner(choice="inputs").select_model({}, received, unlabelled(1))
    assert exact(found) == exact({"base": received["base/0"]})


@pytest.mark.parametrize("choice", ["loss", "entropy"])
def test_only_the_choice_by_inputs_keeps_statistics_of_them(received, choice):
    state, _ = learner(choice=choice).train({}, received, NOW, task(0, 0, 0))
    assert not any(group.startswith("inputs/") for group in state)


def test_statistics_of_the_numbers_of_words_are_refused(received):
    one = learner(choice="inputs")
    words = Examples(torch.zeros((2, 1, 8, 8), dtype=torch.int64), torch.tensor([0, 0]))
    with pytest.raises(ConfigError, match=r"strategy.choice: got 'inputs', expected"):
        one.train({}, received, NOW, TaskData(words, words, words, 3))


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
    state, _ = one.train({}, received, NOW, data)
    assert state["heads"].keys() == {"heads.0.weight", "heads.0.bias"}
    x, y = examples(0, 1, 1, 0)
    logits = [one.predict(state, {"base": received[f"base/{k}"]}, 0, x) for k in (0, 1)]
    entropy = torch.nn.functional.cross_entropy
    losses = [float(entropy(z.detach(), y)) for z in logits]
    assert one.losses(state, received, Examples(x, y), 0) == pytest.approx(losses)


def test_the_server_guesses_rightly_with_which_model_a_client_started(
    tmp_path, monkeypatch
):
    chosen = {}
    train = ConceptMatching.train

    def noted(self, *given):
        state, update = train(self, *given)
        chosen[self.context.client] = int(state["chosen"]["0"])
        return state, update

    monkeypatch.setattr(ConceptMatching, "train", noted)
    strategy = Built.strategy
    guesses = []

    def watched(*given):
        inner = strategy(*given)
        aggregate_train = inner.aggregate_train

        def compared(state, stage, updates):
            new = aggregate_train(state, stage, updates)
            told = new["meta/round"]
            pairs = zip(told["client"], told["origin"], strict=True)
            guesses.extend((chosen[int(c)], int(k)) for c, k in pairs)
            return new

        inner.aggregate_train = compared
        return inner

    monkeypatch.setattr(Built, "strategy", watched)
    run_in_process(
        tiny(
            tmp_path,
            strategy="concept-matching",
            scenario="concepts",
            classes_per_task=0,
            tasks=3,
            clients=6,
            rounds=5,
        )
    )
    assert len(guesses) == 30
    assert all(true == guess for true, guess in guesses)
    assert len({true for true, _ in guesses}) > 1
    assert summary_of(tmp_path)["concepts"]["models"] > 1
