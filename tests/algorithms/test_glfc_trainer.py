"""Images from gradients: the encoding network, and the search for what it has seen."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from fcl_flower.core.errors import WireError
from fcl_flower.data.examples import PublicExamples
from fcl_flower.models.build import create_model
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import arrays_of, snapshot
from strategies.glfc.trainer import EncodingNetwork, ProxyTrainer, sample_gradients

SEED = 4
DIGITS = load_digits()
X = torch.tensor(DIGITS.images[:3] / 16, dtype=torch.float32)[:, None]
Y = torch.tensor(DIGITS.target[:3])


@pytest.fixture(scope="module")
def trainer():
    model = create_model("small", tasks=1, classes=10, single_head=True, seed=1)
    none = torch.empty(0, dtype=torch.int64)
    public = PublicExamples(torch.empty(0, 0), none, none)
    return ProxyTrainer(model, public, Training(1, 8, 0.01), SEED)


def gradients(x=X, y=Y):
    return arrays_of(sample_gradients(EncodingNetwork((1, 8, 8), 10, SEED), x, y))


def test_the_network_has_the_same_weights_wherever_its_seed_is_the_same():
    one, same, other = (
        EncodingNetwork((3, 32, 32), 5, seed).state_dict() for seed in (7, 7, 8)
    )
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["fc.weight"], other["fc.weight"])
    assert one["fc.weight"].shape == (5, 12 * 8 * 8)
    assert all(tensor.abs().max() <= 0.5 for tensor in one.values())
    assert one["fc.weight"].abs().max() > 0.45


def test_gradients_are_those_of_each_sample_alone():
    network = EncodingNetwork((1, 8, 8), 10, SEED)
    found = sample_gradients(network, X, Y)
    network.requires_grad_()
    for row in range(len(Y)):
        network.zero_grad()
        nn.functional.cross_entropy(
            network(X[row : row + 1]), Y[row : row + 1]
        ).backward()
        for name, parameter in network.named_parameters():
            torch.testing.assert_close(found[name][row], parameter.grad)


def test_the_server_finds_the_very_images_and_labels(trainer):
    sent = gradients()

    labels = trainer.labels_of(sent)
    found = trainer.reconstruct(sent, labels, steps=100, seed=0)

    assert labels.tolist() == Y.tolist()
    assert labels.dtype == np.int64
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, X, atol=0.03)


def test_few_steps_find_little_and_the_start_follows_from_the_seed(trainer):
    sent = gradients()
    one, again, other = (
        trainer.reconstruct(sent, Y.numpy(), steps=1, seed=seed) for seed in (1, 1, 2)
    )
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert np.abs(one - X.numpy()).mean() > 0.3


@pytest.mark.parametrize("value", [1e30, -3e38])
def test_gradients_of_no_image_do_no_harm(trainer, value):
    sent = {name: np.full_like(array, value) for name, array in gradients().items()}
    found = trainer.reconstruct(sent, Y.numpy(), steps=5, seed=0)
    assert found.shape == (3, 1, 8, 8)


@pytest.mark.parametrize(
    "bias",
    [[0.5] * 10, [-1.0] * 10, [-1, 2, -1, *[0] * 7], [-0.5, 0.1, *[0] * 8]],
)
def test_what_is_no_gradient_of_a_label_is_refused(trainer, bias):
    sent = gradients(X[:1], Y[:1])
    sent["fc.bias"] = np.float32([bias])
    with pytest.raises(WireError, match=r"fc\.bias: expected probabilities"):
        trainer.labels_of(sent)


def test_gradients_in_half_precision_tell_their_labels_as_well(trainer):
    sent = {name: array.astype(np.float16) for name, array in gradients().items()}
    assert trainer.labels_of(sent).tolist() == Y.tolist()


def test_accuracy_is_the_share_of_right_answers_among_the_classes_that_compete():
    class Seen(nn.Flatten):
        pass

    model = MultiHeadModel(
        Seen(), features=3, input_shape=(1, 1, 3), tasks=1, classes=3, single_head=True
    )
    none = torch.empty(0, dtype=torch.int64)
    public = PublicExamples(torch.empty(0, 0), none, none)
    proxy = ProxyTrainer(model, public, Training(1, 8, 0.01), SEED)
    tensors = snapshot(model, model.shared_names())
    tensors["heads.0.weight"] = np.eye(3, dtype=np.float32)
    tensors["heads.0.bias"] = np.zeros(3, np.float32)
    x = np.float32([[1, 0, 9], [0, 1, 2], [3, 2, 1]])[:, None, None]

    found = [
        proxy.accuracy(tensors, x, np.array([0, 1, 1]), np.array(classes))
        for classes in ([0, 1], [0, 1, 2])
    ]

    assert found == [pytest.approx(2 / 3), 0]
