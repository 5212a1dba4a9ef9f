"""What is told of labels: shares and entropies by hand, and what noise leaves."""

import math
from itertools import product

import numpy as np
import pytest

from clients.fedet.maths import (
    class_frequencies,
    information_entropy,
    label_loss,
    label_statistics,
)
from fcl_flower.core.schedule import derive
from fcl_flower.privacy.mechanism import secret_generator, simulated
from strategies.fedet import FedEtParams

TRAINED = np.array([0, 0, 0, 2, 2, 3])
NEW = np.array([2, 3, 2])


def told(**changes):
    seed = changes.pop("seed", 5)
    rng = changes.pop("rng", None) or np.random.default_rng(seed)
    noise = {"noise": 0.3} if "noised" in changes.values() else {}
    params = FedEtParams(**{**noise, **changes})
    return label_statistics(TRAINED, NEW, 5, params, rng)


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

    found = told(distribution="noised", entropy="noised", rng=Low())

    np.testing.assert_allclose(found["distribution"], [0.2] * 5)
    assert float(found["entropy"]) == 0


@pytest.mark.parametrize("name", ["distribution", "entropy"])
def test_what_is_withheld_is_left_out_and_the_rest_is_exact(name):
    found = told(**{name: "withheld"})

    assert found.keys() == told().keys() - {name}
    for kept, values in found.items():
        np.testing.assert_array_equal(values, told()[kept])


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("size", [1, 2, 5, 30])
def test_one_label_moves_the_statistics_by_what_the_loss_assumes(size, classes):
    """Every neighbour of every histogram, by brute force."""
    most_shares = most_entropy = 0.0
    for counts in product(range(size + 1), repeat=classes):
        if sum(counts) != size:
            continue
        for lost, won in product(range(classes), repeat=2):
            other = np.array(counts)
            other[lost] -= 1
            other[won] += 1
            if other.min() < 0:
                continue
            one, two = np.array(counts) / size, other / size
            most_shares = max(most_shares, float(np.linalg.norm(one - two)))
            difference = information_entropy(one) - information_entropy(two)
            most_entropy = max(most_entropy, abs(difference))

    # Twice, as the sample may be in the buffer too, and count twice.
    shares = FedEtParams(noise=1.0, distribution="noised")
    allowed = label_loss(size, size, shares)
    assert (2 * most_shares) ** 2 == pytest.approx(allowed)
    entropy = FedEtParams(noise=1.0, entropy="noised")
    assert most_entropy**2 <= label_loss(size, size, entropy)


def test_the_loss_falls_with_noise_and_is_none_of_what_is_exact():
    both = FedEtParams(distribution="noised", entropy="noised", noise=0.1)
    assert label_loss(40, 10, both) == pytest.approx(
        (2 * math.sqrt(2) / 40 / 0.1) ** 2 + (2 * math.log(10) / 10 / 0.1) ** 2
    )
    assert label_loss(9, 9, FedEtParams(entropy="withheld")) == 0


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


def test_noise_depends_on_the_seed_alone_and_on_its_size():
    noised = {"distribution": "noised", "entropy": "noised"}
    one, same, other = (told(**noised, seed=seed) for seed in (1, 1, 2))
    for name in ("distribution", "entropy"):
        np.testing.assert_array_equal(one[name], same[name])
        assert not np.array_equal(one[name], other[name])
    less = told(**noised, noise=1e-9)
    np.testing.assert_allclose(less["distribution"], told()["distribution"], atol=1e-6)
    assert float(less["entropy"]) == pytest.approx(float(told()["entropy"]), abs=1e-6)


def denoised(statistics, rng, noise):
    """Return shares and entropy as a server finds them that can repeat the noise.

    Shares that are cut at 0 are taken as 0: those of classes that the client has not.
    """
    told, drawn = np.float64(statistics["distribution"]), rng.normal(0, noise, 5)
    kept = told > 0
    total = 1 + drawn[kept].sum()  # by which the noised shares were divided
    shares = np.where(kept, told * total - drawn, 0)
    return shares, float(statistics["entropy"]) - rng.normal(0, noise)


def recovered(rng_of_client):
    """Return whether the server finds all statistics of a client, round by round."""
    found = []
    for number in range(20):
        seed = derive(derive(7, "fedet", 3, number), "disclosed", 1)
        noised = {"distribution": "noised", "entropy": "noised", "noise": 0.02}
        sent = told(**noised, rng=rng_of_client(derive(7, "fedet", 3, number)))
        shares, entropy = denoised(sent, np.random.default_rng(seed), 0.02)
        exact = np.float64(told()["distribution"])
        counts = np.rint(shares * len(TRAINED)) / len(TRAINED)
        found.append(
            np.allclose(counts, exact, atol=1e-6)
            and np.allclose(shares, exact, atol=1e-5)
            and math.isclose(entropy, float(told()["entropy"]), abs_tol=1e-5)
        )
    return found


def test_noise_from_the_runs_seed_is_taken_off_exactly_by_whoever_knows_the_seed():
    def of_the_seed(seed):
        return np.random.default_rng(derive(seed, "disclosed", 1))

    assert all(recovered(of_the_seed))


def test_noise_of_a_federation_is_not():
    def of_the_client(seed):
        return secret_generator(seed, "disclosed", 1)

    assert not any(recovered(of_the_client))
    with simulated():
        assert all(recovered(of_the_client))
