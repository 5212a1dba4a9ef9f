"""Whatever the test samples are, a run learns, sends and reports the same."""

from types import new_class

import pytest
import torch
from every_method import smallest
from fakes import exact, rounds_of, run_in_process, tiny

from fcl_flower.algorithms.hooks import AnswersQueries, SelectsModel
from fcl_flower.algorithms.registry import algorithms
from fcl_flower.data import examples
from fcl_flower.data.examples import Examples
from fcl_flower.setup import build

NAMES = sorted(algorithms())
TASKS = {"scenario": "overlapped", "rounds": 2, "clients": 2, "tasks": 2}
MORE = {
    "fedseit with queries": {"strategy.knowledge": "sit:1"},
    "concept-matching with hidden concepts": {
        **{"scenario": "concepts", "classes_per_task": 0, "evaluate_every": 1},
        "strategy.concepts": 2,
    },
    "fedavg with masked logits": {"head": "single", "mask_logits": True},
    "fedavg with a masked loss": {
        **{"head": "single", "mask_logits": True, "mask_loss": True}
    },
}
HOOKS = (AnswersQueries, SelectsModel)


class Recording:
    """Notes all that a learner returns but its predictions, bit by bit."""

    def __init__(self, inner, notes):
        self.inner, self.notes = inner, notes
        self.model, self.context = inner.model, inner.context
        self.update_is_model = inner.update_is_model
        self.temporary, self.for_training = inner.temporary, inner.for_training

    def init(self):
        return self.inner.init()

    def answer_query(self, state, question, stage, data):
        answer = self.inner.answer_query(state, question, stage, data)
        self.notes.append(("answer", exact(answer)))
        return answer

    def select_model(self, state, received, recent):
        chosen = self.inner.select_model(state, received, recent)
        self.notes.append(("chosen", samples(recent), exact(chosen)))
        return chosen

    def train(self, state, received, stage, data):
        state, update = self.inner.train(state, received, stage, data)
        metrics = {name: float(value) for name, value in update.metrics.items()}
        sent = (exact(update.payload), update.num_examples, metrics)
        seen = (samples(data.train), samples(data.valid), exact(received))
        self.notes.append(("trained", stage, seen, exact(state), sent))
        return state, update

    def predict(self, state, received, task, x):
        return self.inner.predict(state, received, task, x)


def samples(found):
    return exact({"samples": {"x": found.x.numpy(), "y": found.y.numpy()}})


def garbage(found):
    nothing = torch.nan if found.x.is_floating_point() else 1  # texts: one word
    return Examples(torch.full_like(found.x, nothing), torch.zeros_like(found.y))


@pytest.fixture
def notes_of(monkeypatch, tmp_path_factory):
    """Return what learners return in a run, with other test samples if asked."""
    learner, read = build.build_learner, examples._examples

    def run(folder, *, spoilt, **given):
        notes = []

        def recorded(*args):
            inner = learner(*args)
            hooks = tuple(hook for hook in HOOKS if isinstance(inner, hook))
            return new_class("Recorded", (Recording, *hooks))(inner, notes)

        def split_of(scenario, plan, split, indices, form):
            found = read(scenario, plan, split, indices, form)
            return garbage(found) if spoilt and split == "test" else found

        monkeypatch.setattr(build, "build_learner", recorded)
        monkeypatch.setattr(examples, "_examples", split_of)
        examples.task_examples.cache_clear()
        run_in_process(tiny(folder, **given))
        assert all(row["failed"] == [] for row in rounds_of(folder))
        return notes

    yield run
    examples.task_examples.cache_clear()


@pytest.mark.parametrize("name", [*NAMES, *MORE])
def test_test_samples_change_nothing_but_test_accuracies(tmp_path, notes_of, name):
    method, _, _ = name.partition(" ")
    given = TASKS | smallest(method, tmp_path) | MORE.get(name, {})
    first = notes_of(tmp_path / "first", spoilt=False, **given)
    other = notes_of(tmp_path / "other", spoilt=True, **given)
    assert sum(kind == "trained" for kind, *_ in first) >= 4
    assert first == other
    # The samples were indeed others.
    folders = (tmp_path / "first", tmp_path / "other")
    tested, spoilt = ((folder / "accuracy.csv").read_text() for folder in folders)
    assert tested != spoilt
