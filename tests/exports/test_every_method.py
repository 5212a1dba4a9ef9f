"""The exported graph of each method against what its clients predict."""

import numpy as np
import pytest
import torch
import watched
from every_method import archetypes_first

import fcl_flower as fcl
from fcl_flower.exports.networks import exported
from fcl_flower.simulation.in_process import run_in_process

pytestmark = pytest.mark.usefixtures("one_thread")
VARIANTS = {
    "two members": ("stl", {"strategy.members": 2}),
    "lifted": ("analytic", {"strategy.lift": "relu", "strategy.width": 50}),
    "one exact head": ("analytic", {"head": "single"}),
    "head of iCaRL": ("icarl", {"strategy.classifier": "head"}),
    "ensemble alone": ("matched-ensemble", {"local_only": True}),
    "masked": ("fedavg", {"head": "single", "mask_logits": True}),
    "rounded": ("fedavg", {"wire_dtype": "int8"}),
}


def samples(model, client, task):
    """Return raw test samples of a task as people have them, at the model's size."""
    plan = model.run.scenario.clients[client][task]
    source = model.run.scenario.sources[plan.dataset]
    raw = [source.test.x[i] for i in plan.test]
    return raw if source.modality == "text" else np.array(raw)


def as_the_graph_takes_them(model, raw):
    if model.run.spec.modality == "text":
        tokenizer = model.run.tokenizer or model.words
        return torch.from_numpy(tokenizer.token_ids(raw))
    return torch.from_numpy(raw[..., None])


@pytest.mark.run
@pytest.mark.parametrize(
    "name", [*archetypes_first([*watched.CLASSIFIERS, *watched.VARIANTS]), *VARIANTS]
)
def test_a_graph_without_the_method_predicts_the_same(name, tmp_path):
    method, more = VARIANTS.get(name, (name, {}))
    settings = watched.settings_of(method, tmp_path / "parts") | {"rounds": 1} | more
    (tmp_path / "run").mkdir()
    run_in_process(fcl.RunConfig.from_settings(**settings), tmp_path / "run")
    model = fcl.load(tmp_path / "run", client=1)

    found = exported(model, 1)
    graph = torch.export.export(
        found.whole, (found.raw[:2],), dynamic_shapes=found.sizes
    ).module()

    raw, recent = samples(model, 1, 1), None
    if model.run.spec.hidden_tasks:
        plan = model.run.scenario.clients[1][1]
        source = model.run.scenario.sources[plan.dataset]
        labels = [source.class_names[source.train.y[i]] for i in plan.valid]
        recent = np.array([source.train.x[i] for i in plan.valid]), labels
    live = model.predict(raw, None if recent else 1, recent)
    assert len(live) > 1
    chances = graph(as_the_graph_takes_them(model, raw)).double().softmax(1)
    for answer, row in zip(live, chances.tolist(), strict=True):
        given = dict(zip(found.names, row, strict=True))
        assert given == pytest.approx(answer.probabilities, abs=1e-4)
    (one,) = graph(as_the_graph_takes_them(model, raw[:1])).double().softmax(1)
    torch.testing.assert_close(one, chances[0], rtol=1e-4, atol=1e-4)
    assert found.accuracy is not None
    assert found.tested == len(live)
