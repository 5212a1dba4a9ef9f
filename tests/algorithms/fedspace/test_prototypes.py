"""Prototypes and radius of FedSpace, beside NumPy's covariances."""

import numpy as np
import torch

from clients.fedspace.prototypes import measured


def test_means_and_radius_are_those_of_the_covariances():
    draw = np.random.default_rng(0)
    labels = np.array([2, 0, 2, 2, 0, 4])
    hidden = draw.normal(size=(6, 3)) * (1 + labels[:, None])
    found = measured(torch.from_numpy(hidden), torch.from_numpy(labels), 6)

    assert found["held"].tolist() == [1, 0, 1, 0, 1, 0]
    for label in (0, 2, 4):
        of_class = hidden[labels == label].mean(0)
        np.testing.assert_allclose(found["means"][label], of_class)
    assert not found["means"][[1, 3, 5]].any()
    # Class 4 has a single example, and no variance.
    traces = [np.trace(np.cov(hidden[labels == label].T)) for label in (0, 2)]
    expected = np.sqrt(np.mean([*np.divide(traces, 3), 0.0]))
    np.testing.assert_allclose(found["radius"], expected)


def test_without_examples_nothing_is_held():
    found = measured(torch.empty(0, 3), torch.empty(0, dtype=torch.int64), 2)
    assert found["means"].tolist() == [[0, 0, 0], [0, 0, 0]]
    assert found["held"].tolist() == [0, 0]
    assert found["radius"] == 0
    assert found["radius"].shape == ()
