"""How far drawn features are believed, by hand."""

import numpy as np
import pytest
import torch
from flow_cases import credibility_by_hand

from clients.af_fcl.credibility import credibility

DRAW = np.random.default_rng(0)
LATENTS = DRAW.normal(size=(9, 5)).astype(np.float32)
LATENTS[:, 4] = 0.25  # a feature that is never active
LABELS = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2])
DRAWN = DRAW.normal(size=(8, 5)).astype(np.float32)
CLASSES = np.array([2, 0, 1, 0, 1, 0, 2, 0])


def weights(latents=LATENTS, labels=LABELS, drawn=DRAWN, classes=CLASSES):
    given = (torch.tensor(v) for v in (latents, labels, drawn, classes))
    return credibility(*given, torch.tensor(0.3)).numpy()


def test_a_drawn_latent_counts_by_its_mean_density_among_those_of_its_class():
    expected = credibility_by_hand(LATENTS, LABELS, DRAWN, CLASSES, 0.3)
    np.testing.assert_allclose(weights(), expected, rtol=1e-5)
    assert np.ptp(expected) > 0.1


def test_what_lies_far_from_the_clients_own_is_forgotten():
    near, far = LATENTS[LABELS == 0].mean(0), LATENTS[LABELS == 0].mean(0) + 20
    found = weights(drawn=np.stack([near, far]), classes=np.array([0, 0]))
    assert found[0] > 0.5
    assert found[1] < 1e-6


@pytest.mark.parametrize("label", [3, 4])
def test_classes_with_one_sample_or_none_have_the_typical_weight(label):
    labels = np.where(np.arange(9) == 8, 3, LABELS)
    found = weights(labels=labels, classes=np.full(8, label))
    np.testing.assert_array_equal(found, np.float32(0.3))


def test_a_feature_that_never_varies_leaves_weights_finite():
    drawn = LATENTS[:1].copy()
    found = weights(drawn=drawn, classes=np.array([0]))
    expected = credibility_by_hand(LATENTS, LABELS, drawn, np.array([0]), 0.3)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert 400 / 5 < found[0] * (2 * np.pi) ** 0.5 < 2000 / 5
