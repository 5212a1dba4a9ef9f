"""The exported network of each method against what its clients predict."""

import pytest
import torch
from every_method import smallest
from text_sets import write_topics

import fcl_flower as fcl
from fcl_flower.algorithms.registry import algorithms
from fcl_flower.exports.networks import trained

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = {
    "dataset": "digits",
    "clients": 2,
    "tasks": 2,
    "rounds": 1,
    "max_train_per_class": 12,
    "progress": False,
}
VARIANTS = {
    "two members": ("stl", {"strategy.members": 2}),
    "lifted": ("analytic", {"strategy.lift": "relu", "strategy.width": 50}),
    "one exact head": ("analytic", {"head": "single"}),
    "head of iCaRL": ("icarl", {"strategy.classifier": "head"}),
    "alone": ("matched-ensemble", {"local_only": True}),
    "words": ("fedweit", {}),
}


@pytest.mark.parametrize("name", [*sorted(algorithms()), *VARIANTS])
def test_a_graph_without_the_method_predicts_the_same(name, tmp_path):
    method, more = VARIANTS.get(name, (name, {}))
    settings = SMALL | smallest(method, tmp_path) | more
    if method == "concept-matching":
        settings["scenario"] = "overlapped"
    if method == "fedseit" or name == "words":
        settings |= write_topics(tmp_path) | {"model": "kim-cnn"}
    del settings["strategy.name"]
    fcl.simulate(method, output=tmp_path / "run", **settings)

    found = trained(tmp_path / "run", client=1, task=1)

    x, logits = found.test.x, found.logits
    assert len(x) > 1
    assert logits.std(0).max() > 1e-3, "it looks at its inputs"
    graph = torch.export.export(found.network, (x[:2],), dynamic_shapes=found.sizes)
    for part in (slice(None), slice(1, 2), slice(0, 3)):
        torch.testing.assert_close(
            graph.module()(x[part]), logits[part], rtol=1e-4, atol=1e-4
        )
