"""Epsilon against closed forms, and against another accountant of dp-accounting."""

import math
import sys

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.stats import norm

from fcl_flower.core.errors import ConfigError
from fcl_flower.privacy.accounting import (
    client_release,
    gaussian_epsilon,
    sampled_epsilon,
)


def gaussian_delta(mu, epsilon):
    """Return Balle and Wang's theorem 8, in the form of Dong, Roth and Su."""
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(
        -mu / 2 - epsilon / mu
    )


def test_replacing_a_clients_data_moves_a_release_by_twice_the_clip():
    # sensitivity 2 C over deviation z C; a mean of n has the noise of n in its sum
    assert client_release(2.0) == pytest.approx((2 / 2.0) ** 2)
    assert client_release(0.5, 9) == pytest.approx((2 / (0.5 * math.sqrt(9))) ** 2)


@pytest.mark.parametrize("z", [0.5, 4.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-3])
def test_one_round_has_the_epsilon_of_the_closed_form(z, delta):
    epsilon = gaussian_epsilon(client_release(z), delta)
    assert gaussian_delta(2 / z, epsilon) == pytest.approx(delta, rel=1e-6)
    assert gaussian_epsilon(0.0, delta) == 0.0


def test_rounds_of_different_noise_add_up_as_another_accountant_finds():
    multipliers = [0.8, 3.0, 3.0, 1.7]
    privacy_loss, renyi = PLDAccountant(), RdpAccountant()
    for z in multipliers:
        for accountant in (privacy_loss, renyi):
            accountant.compose(dp_event.GaussianDpEvent(z))
    total = sum(1 / z**2 for z in multipliers)

    found = gaussian_epsilon(total, 1e-5)

    assert found == pytest.approx(privacy_loss.get_epsilon(1e-5), rel=2e-3)
    assert found <= renyi.get_epsilon(1e-5)


def test_sampled_steps_cost_what_abadi_and_another_accountant_say():
    # Abadi et al., CCS 2016, section 3.2: q = 0.01, sigma = 4, T = 10,000, epsilon 1.26
    found = sampled_epsilon({(0.01, 4.0): 10_000}, 1e-5)
    privacy_loss = PLDAccountant(value_discretization_interval=1e-3)
    step = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(4.0))
    privacy_loss.compose(dp_event.SelfComposedDpEvent(step, 10_000))
    assert privacy_loss.get_epsilon(1e-5) <= found <= 1.26


def test_steps_of_several_probabilities_cost_more_than_either():
    exact = gaussian_epsilon(5 / 3.0**2, 1e-5)
    assert exact <= sampled_epsilon({(1.0, 3.0): 5}, 1e-5) <= 1.15 * exact
    one, other = {(0.1, 1.0): 20}, {(0.3, 1.0): 5}
    both = sampled_epsilon(one | other, 1e-5)
    assert both > max(sampled_epsilon(one, 1e-5), sampled_epsilon(other, 1e-5))
    assert sampled_epsilon({}, 1e-5) == 0.0


def test_without_the_package_a_sentence_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting.gaussian_mechanism", None)
    with pytest.raises(ConfigError, match=r"pip install 'fcl-flower\[dp\]'"):
        gaussian_epsilon(1.0, 1e-5)
