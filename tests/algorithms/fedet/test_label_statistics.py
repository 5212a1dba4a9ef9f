"""What is told of labels: shares and entropies by hand, and what noise leaves."""

import math

import numpy as np
import pytest

from clients.fedet.label_statistics import (
    class_frequencies,
    information_entropy,
    label_statistics,
)

TRAINED = np.array([0, 0, 0, 2, 2, 3])
NEW = np.array([2, 3, 2])


def told(**changes):
    given = {"distribution": "exact", "entropy": "exact", "noise": 0.3, "seed": 5}
    return label_statistics(TRAINED, NEW, 5, **{**given, **changes})


def test_a_share_is_a_fraction_of_the_samples():
    assert class_frequencies(np.array([1, 1, 3, 1]), 5).tolist() == [
        0,
        0.75,
        0,
        0.25,
        0,
    ]
    assert class_frequencies(np.array([], np.int64), 3).tolist() == [0, 0, 0]


def test_the_entropy_is_in_nats():
    assert information_entropy(np.array([0.5, 0, 0.5])) == pytest.approx(math.log(2))
    assert information_entropy(np.full(8, 1 / 8)) == pytest.approx(math.log(8))
    expected = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))
    assert information_entropy(np.array([0.9, 0.1])) == pytest.approx(expected)
    assert information_entropy(np.array([0.0, 1.0])) == 0


def test_the_shares_are_of_all_that_was_trained_and_the_entropy_of_the_new():
    found = told()

    assert found.keys() == {"classes", "distribution", "entropy"}
    assert found["classes"].tolist() == [2, 3]
    np.testing.assert_allclose(found["distribution"], [1 / 2, 0, 1 / 3, 1 / 6, 0])
    expected = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3))
    assert float(found["entropy"]) == pytest.approx(expected)
    dtypes = {name: values.dtype for name, values in found.items()}
    assert dtypes == {"classes": "i8", "distribution": "f4", "entropy": "f4"}
    assert found["entropy"].shape == ()


@pytest.mark.parametrize("noise", [0.3, 100.0])
def test_noise_leaves_a_distribution_and_an_entropy(noise):
    for seed in range(40):
        found = told(distribution="noised", entropy="noised", noise=noise, seed=seed)
        assert (found["distribution"] >= 0).all()
        assert float(found["distribution"].sum()) == pytest.approx(1, abs=1e-5)
        assert float(found["entropy"]) >= 0
        assert found["classes"].tolist() == [2, 3]


def test_where_noise_takes_all_the_classes_are_told_as_even():
    class Low:
        def normal(self, middle, deviation, *shape):
            return np.full(shape, -9.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np.random, "default_rng", lambda seed: Low())
        found = told(distribution="noised", entropy="noised")

    np.testing.assert_allclose(found["distribution"], [0.2] * 5)
    assert float(found["entropy"]) == 0


def test_noise_depends_on_the_seed_alone_and_on_its_size():
    noised = {"distribution": "noised", "entropy": "noised"}
    one, same, other = (told(**noised, seed=seed) for seed in (1, 1, 2))
    for name in ("distribution", "entropy"):
        np.testing.assert_array_equal(one[name], same[name])
        assert not np.array_equal(one[name], other[name])
    none = told(**noised, noise=0.0)
    np.testing.assert_allclose(none["distribution"], told()["distribution"])
    assert float(none["entropy"]) == float(told()["entropy"])


@pytest.mark.parametrize("name", ["distribution", "entropy"])
def test_what_is_withheld_is_left_out_and_the_rest_is_exact(name):
    found = told(**{name: "withheld"})

    assert found.keys() == told().keys() - {name}
    for kept, values in found.items():
        np.testing.assert_array_equal(values, told()[kept])
