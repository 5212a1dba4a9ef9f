"""An algorithm whose network has other heads than linear layers."""

import pytest
import torch
from fakes import run_in_process, summary_of, tiny
from torch import nn

from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.algorithms.registry import Algorithm, registered
from fcl_flower.models.build import create_model
from fcl_flower.models.heads import CLOSED, GrowingHead
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve
from strategies.fedavg import FedAvg


class Prototypes(GrowingHead):
    """Logits are minus the squared distances to a point for each class."""

    def __init__(self, features, classes):
        super().__init__()
        self.points = nn.Parameter(torch.randn(classes, features))

    def forward(self, x):
        return self.hide(-torch.cdist(x, self.points).square())


class Nearest(LocalTraining):
    @classmethod
    def replace_heads(cls, model, params):
        made = [Prototypes(model.features, model.classes) for _ in model.heads]
        model.heads = nn.ModuleList(made)


@pytest.fixture(autouse=True)
def nearest():
    own = Algorithm(
        name="nearest",
        server=FedAvg,
        client=Nearest,
        summary="nearest",
        needs_single_head=True,
    )
    with registered(own):
        yield


def small(folder, **values):
    scenario = {"name": "class-incremental", "split": "iid"}
    return tiny(folder, strategy="nearest", scenario=scenario, **values)


def test_both_sides_start_from_the_same_heads_and_the_usual_body(tmp_path):
    run = resolve(small(tmp_path, seed=3))
    model = Built(run).model()
    usual = create_model("small", tasks=2, classes=4, single_head=True, seed=3)
    for name, tensor in usual.body.state_dict().items():
        assert torch.equal(model.body.state_dict()[name], tensor)
    learner = Built(run).learner(client=1)
    points = learner.model.heads[0].points
    assert torch.equal(points, model.heads[0].points)
    assert "heads.0.points" in model.shared_names()
    other = resolve(small(tmp_path, seed=4))
    assert not torch.equal(Built(other).model().heads[0].points, points)


def test_torchs_own_generator_stays_as_it_was(tmp_path):
    run = resolve(small(tmp_path))
    before = torch.random.get_rng_state()
    Built(run).model()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_they_grow_with_the_classes(tmp_path):
    run = resolve(small(tmp_path))
    model = Built(run).model()
    x = torch.randn(3, 1, 8, 8)
    every = model(x, 0)
    model.restrict_head([1, 3])
    found = model(x, 0)
    assert torch.equal(found[:, [1, 3]], every[:, [1, 3]])
    assert (found == CLOSED).sum() == 3 * (model.classes - 2)


@pytest.mark.run
@pytest.mark.parametrize("local_only", [False, True])
def test_they_are_learned(tmp_path, local_only):
    config = small(tmp_path, tasks=1, rounds=3, epochs=4, local_only=local_only)
    run_in_process(config)
    assert summary_of(tmp_path)["average_accuracy"] > 0.8
