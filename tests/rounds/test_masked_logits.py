"""A single head that is told which labels a test may have predicts no others."""

import numpy as np
import pytest
import torch
from fakes import rounds_of, run_in_process, summary_of, tiny

from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.core.errors import ConfigError
from fcl_flower.data.examples import ScenarioData
from fcl_flower.models.heads import CLOSED, GrowingHead, Head, mask_logits
from fcl_flower.rounds import client as client_module
from fcl_flower.setup.resolve import resolve
from fcl_flower.training.loop import score

SINGLE = {"scenario": "overlapped", "head": "single", "clients": 2, "tasks": 2}
CONCEPTS = {"scenario": "concepts", "classes_per_task": 0, "clients": 2, "tasks": 2}


@pytest.fixture
def tested(monkeypatch):
    """Return, for each test of a run, which labels were predicted, and are right."""
    found = []

    def watch(predict, examples):
        with torch.no_grad():
            predicted = predict(examples.x).argmax(1)
        found.append(({*predicted.tolist()}, {*examples.y.tolist()}))
        return score(predict, examples)

    monkeypatch.setattr(client_module, "score", watch)
    return found


def test_all_other_logits_are_closed():
    logits = torch.tensor([[3.0, 2.0, 1.0], [0.0, -1.0, -2.0]])
    found = mask_logits(logits, torch.tensor([2, 1, 2]))
    assert found.argmax(1).tolist() == [1, 1]
    assert torch.equal(found[:, 1:], logits[:, 1:])
    assert torch.softmax(found, 1)[:, 0].tolist() == [0.0, 0.0]
    assert logits[0, 0] == 3.0


@pytest.mark.run
@pytest.mark.parametrize("strategy", ["fedavg", "fedweit", "analytic"])
@pytest.mark.parametrize("given", [SINGLE, CONCEPTS], ids=["tasks", "concepts"])
def test_only_labels_of_the_task_or_concept_are_predicted(
    tmp_path, tested, strategy, given
):
    suits = {"dataset": "digits", "model": "small"}
    run_in_process(
        tiny(tmp_path, strategy=strategy, **{**suits, **given}, mask_logits=True)
    )
    assert tested
    for predicted, present in tested:
        assert predicted <= present


@pytest.mark.run
def test_only_predictions_are_masked(tmp_path):
    given = {"strategy": "fedavg", **SINGLE}
    run_in_process(tiny(tmp_path / "masked", **given, mask_logits=True))
    run_in_process(tiny(tmp_path / "plain", **given))
    masked, plain = (summary_of(tmp_path / name) for name in ("masked", "plain"))
    better = np.array(masked["client_accuracy"], float) - np.array(
        plain["client_accuracy"], float
    )
    assert np.nanmin(better) >= 0
    assert masked["average_accuracy"] > plain["average_accuracy"]
    masked, plain = (
        [line["loss"] for line in rounds]
        for rounds in (rounds_of(tmp_path / "masked"), rounds_of(tmp_path / "plain"))
    )
    assert masked == plain


@pytest.mark.run
@pytest.mark.parametrize(
    ("fewer", "valid_fraction"), [("valid", 0.02), ("train", 0.995)]
)
def test_a_hidden_concept_has_the_labels_of_all_samples_of_it(
    tmp_path, monkeypatch, fewer, valid_fraction
):
    """Those of one part alone lack some, and tests of these would be lost."""
    labels, masks, tests = {}, [], []
    examples = ScenarioData.examples

    def note_split(self, task, split):
        found = examples(self, task, split)
        labels.setdefault((task, split), set()).update(found.y.tolist())
        if split == "test":
            tests.append(task)
        return found

    def note_mask(logits, known):
        masks.append({*known.tolist()})
        return mask_logits(logits, known)

    monkeypatch.setattr(ScenarioData, "examples", note_split)
    monkeypatch.setattr(client_module, "mask_logits", note_mask)
    given = {**CONCEPTS, "strategy": "fedavg", "mask_logits": True, "clients": 1}
    given |= {"dataset": "digits", "valid_fraction": valid_fraction}
    run_in_process(tiny(tmp_path, **given))
    assert len(masks) == len(tests) > 0
    for task, known in zip(tests, masks, strict=True):
        assert known == labels[task, "train"] | labels[task, "valid"]
        assert known == labels[task, "test"]
    assert any(labels[task, fewer] < labels[task, "test"] for task in tests)


# ---- losses


@pytest.fixture
def moved(monkeypatch):
    """Return, for each round of a client, which rows it has moved and its labels."""
    found, train = [], LocalTraining.train

    def watch(self, turn):
        state, update = train(self, turn)
        old, new = (
            np.asarray(base["heads.0.weight"])
            for base in (turn.received["base"], update.payload["base"])
        )
        rows = np.flatnonzero((old != new).any(1))
        found.append(({*rows.tolist()}, {*turn.data.train.y.tolist()}))
        return state, update

    monkeypatch.setattr(LocalTraining, "train", watch)
    return found


@pytest.mark.run
def test_rows_of_labels_that_a_client_does_not_have_stay_as_they_came(tmp_path, moved):
    given = {"strategy": "fedavg", **SINGLE, "mask_logits": True}
    run_in_process(tiny(tmp_path / "loss", **given, mask_loss=True))
    assert moved
    assert all(rows == labels for rows, labels in moved)
    moved.clear()
    run_in_process(tiny(tmp_path / "logits", **given))
    assert all(rows > labels for rows, labels in moved)


@pytest.mark.run
@pytest.mark.parametrize(
    ("strategy", "given", "most"),
    [
        ("ewc", SINGLE, 2),
        ("fedweit", SINGLE, 2),
        # Ten digits are shared out to two concepts.
        ("concept-matching", {**CONCEPTS, "dataset": "digits"}, 5),
    ],
)
def test_every_loss_is_that_of_a_head_with_these_labels(
    tmp_path, monkeypatch, strategy, given, most
):
    seen = []

    def watch(self, logits):
        found = GrowingHead.hide(self, logits)
        seen.append((found > CLOSED).any(0).sum().item())
        return found

    monkeypatch.setattr(Head, "hide", watch, raising=False)
    given = {**given, "strategy": strategy, "mask_logits": True, "mask_loss": True}
    run_in_process(tiny(tmp_path, **given))
    assert seen
    assert max(seen) == most


REFUSED = {
    "heads": (
        {"scenario": "overlapped", "head": "multi", "mask_logits": True},
        "model.mask_logits: got true, expected false with a head for each task",
    ),
    "unknown tasks": (
        {"scenario": "class-incremental", "mask_logits": True},
        "model.mask_logits: got true, expected false for scenario class-incremental, "
        "in",
    ),
    "tests that know nothing": (
        {**SINGLE, "strategy": "fedavg", "mask_loss": True},
        "model.mask_loss: got true, expected false unless model.mask_logits is true",
    ),
    "a server that trains": (
        {**SINGLE, "strategy": "fedet", "mask_logits": True, "mask_loss": True},
        "model.mask_loss: got true, expected false for fedet, which trains on the "
        "server",
    ),
    "old tasks": (
        {**SINGLE, "strategy": "replay", "mask_logits": True, "mask_loss": True},
        "model.mask_loss: got true, expected false for replay, whose losses are over "
        "classes of old tasks, too",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_mask_is_refused_where_it_says_nothing(tmp_path, case):
    given, why = REFUSED[case]
    with pytest.raises(ConfigError, match=f"^{why}"):
        resolve(tiny(tmp_path, **given))
