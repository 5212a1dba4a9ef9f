"""GLFC's losses and prototypes against NumPy and plain autograd."""

import numpy as np
import pytest
import torch
from torch import nn

from clients.glfc import (
    compensated,
    compensation_weights,
    feature_spread,
    perturbed,
    prototypes,
    relation_distilled,
)
from fcl_flower.data.examples import Examples
from fcl_flower.models.heads import CLOSED, MultiHeadModel

LOGITS = torch.tensor(
    [[2.0, -1.0, 0.5], [0.0, 1.0, -2.0], [-1.0, 0.3, 0.2], [1.0, 1.0, 3.0]]
)
LABELS = torch.tensor([0, 1, 1, 2])
NEW = torch.tensor([True, True, False, False])


def sigmoid(z):
    return 1 / (1 + np.exp(-np.asarray(z, np.float64)))


def entropies(logits, targets):
    """Return binary cross-entropies by their definition."""
    p = sigmoid(logits)
    return -(targets * np.log(p) + (1 - targets) * np.log(1 - p))


# ---- compensation


def test_a_sample_weighs_by_its_gradient_over_the_mean_of_old_or_new_classes():
    sizes = np.abs(sigmoid([2.0, 1.0, 0.3, 3.0]) - 1)
    new, old = sizes[:2].mean(), sizes[2:].mean()

    found = compensation_weights(LOGITS, LABELS, NEW)

    np.testing.assert_allclose(found, sizes / np.array([new, new, old, old]), rtol=1e-5)


def test_old_and_new_classes_weigh_as_much_a_sample():
    found = compensation_weights(
        LOGITS, LABELS, torch.tensor([True, False, False, False])
    )

    assert float(found[0]) == pytest.approx(1)
    assert float(found[1:].mean()) == pytest.approx(1)


def test_weights_have_no_gradient_and_survive_certainty():
    certain = torch.full((2, 2), 200.0, requires_grad=True)

    found = compensation_weights(
        certain, torch.tensor([0, 1]), torch.tensor([True, False])
    )

    assert found.tolist() == [0, 0]
    assert not found.requires_grad


def test_the_compensated_loss_is_the_weighted_mean_of_binary_entropies():
    weights = torch.tensor([0.5, 1.0, 2.0, 3.0])
    expected = weights.numpy()[:, None] * entropies(LOGITS, np.eye(3)[LABELS])

    found = compensated(LOGITS, LABELS, weights)

    assert float(found) == pytest.approx(expected.mean(), rel=1e-5)


# ---- distillation


def test_old_classes_are_taught_by_the_old_model_and_others_by_the_label():
    taught = torch.tensor([[0.9, 0.2, 0.6]]).repeat(4, 1)
    targets = np.eye(3)[LABELS]
    targets[:, 0], targets[:, 2] = 0.9, 0.6

    found = relation_distilled(
        LOGITS, LABELS, taught, torch.tensor([True, False, True])
    )

    assert float(found) == pytest.approx(entropies(LOGITS, targets).mean(), rel=1e-5)


def test_its_gradient_is_that_of_the_divergence_from_the_old_model():
    logits = LOGITS.double().requires_grad_()
    taught = torch.full((4, 3), 0.3, dtype=torch.float64)

    relation_distilled(logits, LABELS, taught, torch.ones(3).bool()).backward()

    expected = (sigmoid(LOGITS) - 0.3) / 12
    np.testing.assert_allclose(logits.grad, expected, rtol=1e-9)


def test_a_class_that_the_head_has_not_yet_gives_no_gradient():
    logits = LOGITS.clone()
    logits[:, 2] = CLOSED
    logits.requires_grad_()
    labels, weights = torch.tensor([0, 1, 1, 0]), torch.ones(4)

    loss = compensated(logits, labels, weights) + relation_distilled(
        logits, labels, torch.zeros(4, 3), torch.tensor([True, False, False])
    )
    loss.backward()

    assert torch.isfinite(logits.grad).all()
    assert logits.grad[:, 2].tolist() == [0] * 4


# ---- prototypes


def test_the_prototype_is_the_sample_whose_direction_is_nearest_to_the_mean():
    features = torch.tensor(
        [[1.0, 0.0], [0.0, 5.0], [3.0, 2.0], [1.0, 1.0], [-1.0, 0.0], [2.0, 0.1]]
    )
    labels = torch.tensor([3, 3, 3, 0, 0, 0])

    # Directions of class 3: 0, 90 and 34 degrees; of class 0: 45, 180 and 3.
    assert prototypes(features, labels).tolist() == [3, 2]


def test_lengths_of_features_do_not_choose_the_prototype():
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.7, 0.8]])
    labels = torch.zeros(3, dtype=torch.int64)
    scaled = features * torch.tensor([[100.0], [1.0], [0.01]])

    assert prototypes(features, labels).tolist() == [2]
    assert prototypes(scaled, labels).tolist() == [2]


def test_the_spread_is_the_standard_deviation_within_a_class():
    features = torch.tensor([[1.0, 4.0], [3.0, 4.0], [10.0, 0.0]])

    found = feature_spread(features, torch.tensor([1, 1, 0]))

    assert found.tolist() == [[0, 0], [1, 0]]


def network():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh(), nn.Dropout(0.5))
    return MultiHeadModel(
        body, features=5, input_shape=(1, 2, 2), tasks=1, classes=3, single_head=True
    )


def shown(model, noise, steps, seed=3, count=2, spread=0.7):
    x = torch.arange(4.0 * count).reshape(count, 1, 2, 2) / 4
    samples = Examples(x, torch.tensor([0, 2])[:count])
    return x, perturbed(
        model,
        samples,
        torch.full((count, 5), spread),
        noise=noise,
        steps=steps,
        rate=0.5,
        seed=seed,
    )


def test_without_steps_a_prototype_is_the_sample():
    x, found = shown(network(), noise=0.1, steps=0)
    assert torch.equal(found, x)


@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_a_prototype_moves_down_the_loss_of_noised_features(noise):
    model = network()
    _, found = shown(model, noise, steps=2)

    draw = torch.Generator().manual_seed(3)
    drawn = [torch.randn(2, 5, generator=draw) for _ in range(2)]
    for row, label in enumerate((0, 2)):
        x = torch.arange(4.0 * row, 4.0 * row + 4) / 4
        for step in range(2):
            x.requires_grad_()
            hidden = torch.tanh(model.body[1](x[None]))
            logits = model.heads[0](hidden + noise * 0.7 * drawn[step][row])[0]
            p = torch.sigmoid(logits)
            wanted = torch.eye(3)[label]
            loss = -(wanted * p.log() + (1 - wanted) * (1 - p).log()).mean()
            (slope,) = torch.autograd.grad(loss, x)
            x = (x - 0.5 * slope).detach()
        torch.testing.assert_close(found[row].ravel(), x, atol=1e-6, rtol=1e-5)


def test_the_noise_follows_from_the_seed():
    model = network()
    one, again, other = (shown(model, 0.5, 3, seed)[1] for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
