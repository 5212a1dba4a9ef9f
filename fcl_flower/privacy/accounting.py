"""How much differential privacy is lost: mu of releases, and epsilon of all of them.

A Gaussian mechanism whose noise is 1 / mu times its sensitivity is mu-GDP, and a
sequence of them, each of which may depend on what the ones before returned, is exactly
sqrt(sum mu^2)-GDP (Dong, Roth and Su, J. R. Stat. Soc. B 2022,
https://arxiv.org/abs/1905.02383, corollary 3.3). So squares of mu add up. With Poisson
sampling there is no such form; its accountant is that of Renyi divergences.
"""

import math
from collections.abc import Mapping
from functools import cache

import numpy as np

from fcl_flower.core.errors import require_extra

Steps = Mapping[tuple[float, float], int]
"""Number of steps by sampling probability, in (0, 1], and noise multiplier, above 0."""

SPENT = "privacy"
"""The group of a client's state that says what its data have cost.

It stays where a round is asked for again, and is no part of a model."""

_NEED = "differential privacy"


def client_release(noise_multiplier: float, answered: int = 1) -> float:
    """Compute mu^2 of one update, or of a mean of updates, for one client in it.

    Neighbours differ in all data of one client, which are replaced by any other: two
    differences of norm C are up to 2 C apart. The noise of each client has the
    deviation z C, z above 0, and that of so many who ``answered`` is in the mean.
    """
    return 4.0 / (noise_multiplier**2 * answered)


def gaussian_epsilon(mu_squared: float, delta: float) -> float:
    """Compute the smallest epsilon, at least 0, of a sqrt(mu_squared)-GDP mechanism.

    Balle and Wang, ICML 2018, https://arxiv.org/abs/1805.06530, theorem 8; exact.
    ``mu_squared`` is summed over the releases; ``delta`` lies in (0, 1).
    """
    with require_extra("dp", _NEED):
        from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
    if not mu_squared:
        return 0.0
    # Where noise is so large that delta is 0 in floating point, it takes log(0).
    with np.errstate(divide="ignore"):
        return float(get_epsilon_gaussian(1.0 / math.sqrt(mu_squared), delta))


def sampled_epsilon(steps: Steps, delta: float) -> float:
    """Bound epsilon, at least 0, of steps with Poisson-sampled examples.

    Neighbours differ in the presence of one example. An upper bound, by Renyi
    differential privacy (Mironov, Talwar and Zhang, 2019,
    https://arxiv.org/abs/1908.10530); ``delta`` lies in (0, 1).
    """
    return _renyi_epsilon(tuple(sorted(steps.items())), delta)


@cache
def _renyi_epsilon(
    steps: tuple[tuple[tuple[float, float], int], ...], delta: float
) -> float:
    with require_extra("dp", _NEED):
        from dp_accounting import dp_event
        from dp_accounting.rdp import RdpAccountant
    accountant = RdpAccountant()
    for (probability, noise_multiplier), count in steps:
        noise = dp_event.GaussianDpEvent(noise_multiplier)
        step = dp_event.PoissonSampledDpEvent(probability, noise)
        accountant.compose(step, count)
    return float(accountant.get_epsilon(delta)) if steps else 0.0
