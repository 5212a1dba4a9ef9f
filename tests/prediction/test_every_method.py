"""A loaded model against what the learner said in the run's last evaluation."""

import json
import shutil

import numpy as np
import pytest
import torch
import watched
from every_method import archetypes_first

import fcl_flower as fcl
from fcl_flower.data.images import to_tensor
from fcl_flower.models.normalisation import FIXED
from fcl_flower.simulation.in_process import (
    InProcessTransport,
    run_in_process,
    run_simulated,
)

pytestmark = [pytest.mark.run, pytest.mark.usefixtures("one_thread")]
CASES = [*watched.CLASSIFIERS, *watched.VARIANTS]
OF_EACH_KIND = [
    *("fedavg", "fedweit", "stl", "analytic", "fedet", "lorm", "coda-prompt"),
    *(
        "matched-ensemble",
        "scaffold",
        "fedavg-ft",
        "idbr",
        "concept-matching with hidden concepts",
    ),
    "fedavg with masked logits",
]


def predicts(model, client, task, wanted):
    """Check what a model says of a task's test samples, by the learner's logits."""
    plan = model.run.scenario.clients[client][task]
    source = model.run.scenario.sources[plan.dataset]
    raw = [source.test.x[i] for i in plan.test]
    recent = None
    if model.run.spec.hidden_tasks:
        shown = [source.train.x[i] for i in plan.valid]
        labels = [source.class_names[source.train.y[i]] for i in plan.valid]
        recent = np.array(shown), labels
    x = raw if source.modality == "text" else np.array(raw)
    names = [one.name for one in model.predict(x, None if recent else task, recent)]

    single = model.run.config.model.head == "single"
    known = model.about.head if single else plan.class_names
    assert names == [known[label] for label in wanted.argmax(1).tolist()]
    if source.modality == "images" and recent is None:
        run = model.run
        inputs = to_tensor(x, run.spec.input_shape, run.normalisation)
        assert torch.equal(model.logits(inputs, task), wanted)


@pytest.mark.parametrize("name", archetypes_first(CASES))
def test_a_loaded_model_predicts_as_the_learner_was_tested(
    name, tmp_path, last_evaluation
):
    settings = watched.settings_of(name, tmp_path / "parts")
    settings |= {"rounds": 1, "keep_clients": True}
    (tmp_path / "run").mkdir()
    run_in_process(fcl.RunConfig.from_settings(**settings), tmp_path / "run")

    assert len(last_evaluation) == 4
    models = [fcl.load(tmp_path / "run", client=client) for client in range(2)]
    for (client, task), wanted in last_evaluation.items():
        predicts(models[client], client, task, wanted)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    found = summary.get("inferred_task_accuracy")
    by_task = (
        models[0].run.config.model.head != "single" or models[0].learner.needs_task
    )
    if models[0].run.spec.hidden_tasks or not by_task:
        assert found is None
    else:
        wanted = [right_by_confidence(*one) for one in enumerate(models)]
        assert found == pytest.approx(np.mean(wanted))


def right_by_confidence(client, model):
    """Count the right answers of ``auto``; mean over tasks.

    With a head a task, the task must be right, too.
    """
    single = model.run.config.model.head == "single"
    fractions = []
    for task, plan in enumerate(model.run.scenario.clients[client]):
        source = model.run.scenario.sources[plan.dataset]
        raw = [source.test.x[i] for i in plan.test]
        x = raw if source.modality == "text" else np.array(raw)
        names = [source.class_names[source.test.y[i]] for i in plan.test]
        right = [
            one.name == name and (single or one.task == task)
            for one, name in zip(model.predict(x, "auto"), names, strict=True)
        ]
        fractions.append(np.mean(right))
    return np.mean(fractions)


def test_numbers_that_were_rounded_on_their_way_predict_the_same(
    tmp_path, last_evaluation
):
    config = fcl.RunConfig.from_settings(
        **watched.SETTINGS, strategy="fedavg", wire_dtype="int8", keep_clients=True
    )
    run_in_process(config, tmp_path)
    for (client, task), wanted in last_evaluation.items():
        predicts(fcl.load(tmp_path, client=client), client, task, wanted)


def test_a_run_without_its_checkpoint_is_refused(tmp_path):
    config = fcl.RunConfig.from_settings(
        **watched.SETTINGS, strategy="fedavg", keep_clients=True
    )
    run_in_process(config, tmp_path)
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(fcl.ConfigError, match="one with its checkpoint/"):
        fcl.load(tmp_path, client=0)


@pytest.mark.parametrize("normalise", ["0.3/0.5", "data"])
def test_images_are_prepared_as_in_the_run(normalise, tmp_path, last_evaluation):
    config = fcl.RunConfig.from_settings(
        **{**watched.SETTINGS, "strategy": "fedavg", "keep_clients": True},
        **{"normalise": normalise, "augment": "flip,crop"},
    )
    run_in_process(config, tmp_path)
    assert len(last_evaluation) == 4
    for (client, task), wanted in last_evaluation.items():
        model = fcl.load(tmp_path, client=client)
        assert model.run.normalisation != FIXED
        predicts(model, client, task, wanted)


@pytest.mark.parametrize("normalise", ["0.3/0.5", "data"])
def test_a_client_remembers_how_images_are_prepared(
    normalise, tmp_path, last_evaluation, real
):
    config = fcl.RunConfig.from_settings(
        **{**watched.SETTINGS, "strategy": "fedavg", "normalise": normalise},
        output=str(tmp_path / "run"),
    )
    places = [{"state-path": str(tmp_path / f"{n}/memory")} for n in range(2)]
    run_simulated(InProcessTransport(range(100, 102), config, places), config)
    for (client, task), wanted in last_evaluation.items():
        model = fcl.load(tmp_path / str(client))
        assert model.run.normalisation != FIXED
        predicts(model, client, task, wanted)


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_the_versions_of_a_client_predict_as_it_was_tested(
    name, tmp_path, last_evaluation
):
    settings = watched.settings_of(name, tmp_path / "parts")
    settings["rounds"] = 1
    states = [tmp_path / f"state-{client}" for client in range(2)]
    config = fcl.RunConfig.from_settings(**settings, output=str(tmp_path / "run"))
    places = [{"state-path": str(state / "memory")} for state in states]
    run_simulated(InProcessTransport(range(100, 102), config, places), config)

    assert len(last_evaluation) == 4
    for (client, task), wanted in last_evaluation.items():
        model = fcl.load(states[client])
        assert model.about.client == client
        assert 0 <= model.about.accuracy <= 1
        predicts(model, client, task, wanted)


@pytest.fixture
def real(monkeypatch):
    """Let the server take clients of this process for real ones."""
    monkeypatch.setattr(InProcessTransport, "simulated", False)


def test_the_servers_version_of_a_single_head_predicts_as_clients_were_tested(
    tmp_path, last_evaluation, real
):
    settings = watched.SETTINGS | {"strategy": "fedavg", "head": "single"}
    config = fcl.RunConfig.from_settings(**settings, output=str(tmp_path / "run"))
    run_simulated(InProcessTransport(range(100, 102), config), config)

    model = fcl.load(tmp_path / "run")
    assert model.versions == ("task-01", "task-02")
    for (client, task), wanted in last_evaluation.items():
        predicts(model, client, task, wanted)


@pytest.mark.parametrize("name", ["fedavg", "analytic", "fedweit"])
def test_where_no_score_may_leave_clients_get_what_predicts_all_the_same(
    name, tmp_path, last_evaluation, real
):
    settings = watched.settings_of(name, tmp_path / "parts") | {"rounds": 1}
    found = {}
    for scores in (True, False):
        place = tmp_path / str(scores)
        given = {**settings, "scores": scores, "output": str(place / "run")}
        config = fcl.RunConfig.from_settings(**given)
        places = [{"state-path": str(place / f"{n}/memory")} for n in range(2)]
        run_simulated(InProcessTransport(range(100, 102), config, places), config)
        models = [fcl.load(place / str(client)) for client in range(2)]
        x = models[0].run.scenario.sources["digits"].test.x[:9]
        found[scores] = [model.predict(x, task=1) for model in models]
        assert [model.versions for model in models] == [("task-01", "task-02")] * 2
    assert found[True] == found[False]
    summary = json.loads((tmp_path / "False" / "run" / "summary.json").read_text())
    assert summary["average_accuracy"] is None
