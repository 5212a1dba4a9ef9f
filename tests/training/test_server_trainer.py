"""Where a server half trains: a toy model by hand, and tiny encoders."""

import numpy as np
import pytest
import torch
from encoders import inputs, model
from fakes import exact
from torch import nn

from fcl_flower.data.examples import PublicExamples
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.loop import Training
from fcl_flower.training.server_trainer import ServerTrainer
from fcl_flower.training.tensors import snapshot

X = torch.tensor([[1.0, 2.0], [0.0, -1.0], [3.0, 0.5]])
TRAINING = Training(epochs=1, batch_size=8, learning_rate=0.05)


class Doubled(nn.Module):
    """Features are twice the inputs, times what is learned; known are the inputs."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.two = nn.Parameter(torch.tensor(2.0), requires_grad=False)

    def embed(self, x):
        return x

    def forward(self, x):
        return x * self.scale * self.two


@pytest.fixture
def trainer():
    torch.manual_seed(0)
    toy = MultiHeadModel(
        Doubled(), features=2, input_shape=(2,), tasks=1, classes=3, single_head=True
    )
    public = PublicExamples(X, torch.tensor([2, -1, 0]), torch.tensor([0, 1, 2]))
    return ServerTrainer(toy, public, TRAINING, seed=0)


def tensors(scale=(1, 1), weight=((1, 0), (0, 1), (1, 1)), bias=(0, 0, 0)):
    return {
        "body.scale": np.array(scale, np.float32),
        "heads.0.weight": np.array(weight, np.float32),
        "heads.0.bias": np.array(bias, np.float32),
    }


def test_labels_and_classes_are_those_of_the_public_samples(trainer):
    assert trainer.labels.tolist() == [2, -1, 0]
    assert trainer.classes.tolist() == [0, 1, 2]
    assert trainer.labels.dtype == trainer.classes.dtype == np.int64


def test_logits_are_those_of_the_given_tensors_on_the_chosen_samples(trainer):
    found = trainer.logits(tensors(scale=(3, 1), bias=(0, 0, 10)), np.array([2, 0, 2]))

    # Samples (3, 0.5) and (1, 2), by (6, 2): (18, 1) and (6, 4).
    assert found.tolist() == [[18, 1, 29], [6, 4, 20], [18, 1, 29]]


def test_logits_are_learned_and_the_start_stays(trainer):
    start, targets = tensors(), np.array([[1.0, 9e9, -1.0], [0.5, 9e9, 2.0]])
    before = exact({"": start})

    found = trainer.distill(start, np.array([0, 1]), targets, np.array([0, 2]), 400)

    assert exact({"": start}) == before
    assert found.keys() == start.keys()
    logits = trainer.logits(found, np.array([0, 1]))
    np.testing.assert_allclose(logits[:, [0, 2]], targets[:, [0, 2]], atol=0.05)
    # The class that does not count has the row that it had.
    assert found["heads.0.weight"][1].tolist() == [0, 1]


def test_labels_are_learned_where_every_chosen_sample_has_one(trainer):
    def found(chosen, weight):
        given = np.zeros((len(chosen), 3)), np.array([0, 2]), 3, weight
        return exact({"": trainer.distill(tensors(), np.array(chosen), *given)})

    assert found([0, 2], 1.0) != found([0, 2], 0.0)
    # Sample 1 is of no class that anybody has.
    assert found([0, 1], 1.0) == found([0, 1], 0.0)
    assert found([0, 1, 2], 1.0) == found([0, 1, 2], 0.0)


def test_the_same_call_gives_the_same_whatever_came_before(trainer):
    given = (tensors(), np.array([0, 2, 2]), np.ones((3, 3)), np.array([0, 1]), 3)
    one = trainer.distill(*given)
    trainer.logits(tensors(scale=(7, 7)), np.array([1]))

    assert exact({"": trainer.distill(*given)}) == exact({"": one})


@pytest.mark.parametrize(
    ("kind", "name"), [("bert", "enhanced-transformer"), ("vit", "enhanced-vit")]
)
def test_features_are_the_encoders_whatever_was_loaded(backbone, kind, name):
    network, x = model(backbone(kind), name), inputs(kind)
    expected = network.body.eval()(x).detach()  # fresh Enhancers change nothing
    public = PublicExamples(x, torch.tensor([0, 1]), torch.tensor([0, 1]))
    made = ServerTrainer(network, public, TRAINING, seed=0)
    rng = np.random.default_rng(0)
    learned = {
        key: rng.normal(size=values.shape).astype(np.float32)
        for key, values in snapshot(network, network.shared_names()).items()
    }

    logits = made.logits(learned, np.array([0, 1]))
    targets, classes = np.zeros_like(logits), np.array([0])
    made.distill(learned, np.array([1]), targets, classes, 1)

    np.testing.assert_allclose(made.features(), expected, atol=1e-5)
    assert not np.allclose(network.body(x).detach(), expected, atol=1e-2)


def test_there_may_be_no_public_data():
    none = torch.empty(0, dtype=torch.int64)
    public = PublicExamples(torch.empty(0, 0), none, none)

    made = ServerTrainer(nn.Identity(), public, TRAINING, seed=0)

    assert len(made.labels) == len(made.classes) == 0
