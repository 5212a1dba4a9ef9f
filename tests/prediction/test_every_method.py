"""A loaded model against what the learner said in the run's last evaluation."""

import numpy as np
import pytest
import torch
import watched

import fcl_flower as fcl
from fcl_flower.data.images import to_tensor
from fcl_flower.federation.client import Client
from fcl_flower.runtime.in_process import run_in_process
from fcl_flower.setup.build import Built

pytestmark = pytest.mark.usefixtures("one_thread")
CASES = [*watched.NAMES, *watched.VARIANTS]


@pytest.fixture
def last_evaluation(monkeypatch):
    """Return logits by client and task, as the last evaluation computed them."""
    noted, logits_of = {}, Client._logits

    def note(self, state, received, task, labels, x):
        found = logits_of(self, state, received, task, labels, x)
        noted[self.learner.context.client, self.asked] = found
        return found

    examples_of = Client._examples

    def ask(self, task, split):
        self.asked = task  # the learner is told less where concepts are hidden
        return examples_of(self, task, split)

    monkeypatch.setattr(Client, "_logits", note)
    monkeypatch.setattr(Client, "_examples", ask)
    return noted


@pytest.mark.parametrize("name", CASES)
def test_a_loaded_model_predicts_as_the_learner_was_tested(
    name, tmp_path, last_evaluation
):
    settings = watched.settings_of(name, tmp_path / "parts")
    settings |= {"rounds": 1, "keep_clients": True}
    config = fcl.RunConfig.from_settings(**settings)
    (tmp_path / "run").mkdir()
    run_in_process(config, tmp_path / "run")

    assert len(last_evaluation) == 4
    for (client, task), wanted in last_evaluation.items():
        model = fcl.load(tmp_path / "run", client=client)
        plan = model.run.scenario.clients[client][task]
        source = model.run.scenario.sources[plan.dataset]
        raw = [source.test.x[i] for i in plan.test]
        recent = None
        if model.run.spec.hidden_tasks:
            shown = [source.train.x[i] for i in plan.valid]
            labels = [source.class_names[source.train.y[i]] for i in plan.valid]
            recent = np.array(shown), labels
        x = raw if source.modality == "text" else np.array(raw)
        given = None if recent else task
        names = [one.name for one in model.predict(x, given, recent)]

        single = model.run.config.model.head == "single"
        known = model.about.head if single else plan.class_names
        assert names == [known[label] for label in wanted.argmax(1).tolist()]
        if source.modality == "images" and recent is None:
            inputs = to_tensor(x, model.run.spec.input_shape)
            assert torch.equal(model.logits(inputs, task), wanted)


def test_numbers_that_were_rounded_on_their_way_predict_the_same(
    tmp_path, last_evaluation
):
    config = fcl.RunConfig.from_settings(
        **watched.SETTINGS, strategy="fedavg", wire_dtype="int8", keep_clients=True
    )
    run_in_process(config, tmp_path)
    for (client, task), wanted in last_evaluation.items():
        model = fcl.load(tmp_path, client=client)
        found = Built(model.run.spec).inputs
        assert found.input_shape == model.run.spec.input_shape
        plan = model.run.scenario.clients[client][task]
        raw = model.run.scenario.sources[plan.dataset].test.x[plan.test]
        inputs = to_tensor(raw, found.input_shape)
        assert torch.equal(model.logits(inputs, task), wanted)
