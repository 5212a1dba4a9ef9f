"""What the learners of a run said in its last evaluation."""

import pytest

from fcl_flower.rounds.client import Client


@pytest.fixture
def last_evaluation(monkeypatch):
    """Return logits by client and task, as the last evaluation computed them."""
    noted, logits_of, examples_of = {}, Client._logits, Client._examples

    def note(self, state, received, task, labels, x):
        found = logits_of(self, state, received, task, labels, x)
        if self.split == "test":
            noted[self.learner.context.client, self.asked] = found
        return found

    def ask(self, task, split):
        self.asked, self.split = task, split  # hidden concepts have no task
        return examples_of(self, task, split)

    def without_notes(self, *given):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Client, "_logits", logits_of)
            return inferred_of(self, *given)

    inferred_of = Client.inferred
    monkeypatch.setattr(Client, "inferred", without_notes)
    monkeypatch.setattr(Client, "_logits", note)
    monkeypatch.setattr(Client, "_examples", ask)
    return noted
