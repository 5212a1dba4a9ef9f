"""Accounting of differential privacy: mu of each release, and epsilon of all releases.

A Gaussian mechanism whose noise is 1 / mu times its sensitivity is mu-GDP. A sequence
of such mechanisms is exactly sqrt(sum mu^2)-GDP, even if each depends on the results of
earlier ones (Dong, Roth and Su, J. R. Stat. Soc. B 2022,
https://arxiv.org/abs/1905.02383, corollary 3.3). So squares of mu add up. Poisson
sampling has no such form; its accountant uses Renyi divergences.
"""

import math
from collections.abc import Mapping
from functools import cache

import numpy as np

from fcl_flower.core.errors import require_extra

Steps = Mapping[tuple[float, float], int]
"""The numbers of steps by sampling probability, in (0, 1], and noise multiplier."""

SPENT = "privacy"
"""The group of a client's state that holds the privacy spent on its data.

The group is no part of a model. It stays when a round is repeated.
"""

_NEED = "differential privacy"


def client_release(noise_multiplier: float, answered: int = 1) -> float:
    """Compute mu^2 of a client's update, or of a mean of updates, for one client in it.

    Neighbours differ in all data of one client, which any other data replace. Two
    differences of norm C are up to 2 C apart. The noise of each client has the standard
    deviation z C, where z is ``noise_multiplier``, above 0. The mean contains the noise
    of ``answered`` clients.
    """
    return 4.0 / (noise_multiplier**2 * answered)


def gaussian_epsilon(mu_squared: float, delta: float) -> float:
    """Compute the smallest epsilon, at least 0, of a sqrt(mu_squared)-GDP mechanism.

    The result is exact (Balle and Wang, ICML 2018, https://arxiv.org/abs/1805.06530,
    theorem 8). ``mu_squared`` is the sum over the releases; ``delta`` lies in (0, 1).
    """
    with require_extra("dp", _NEED):
        from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
    if not mu_squared:
        return 0.0
    # The function takes log(0) if large noise makes delta 0 in floating point.
    with np.errstate(divide="ignore"):
        return float(get_epsilon_gaussian(1.0 / math.sqrt(mu_squared), delta))


def sampled_epsilon(steps: Steps, delta: float) -> float:
    """Compute an upper bound of epsilon, at least 0, of Poisson-sampled steps.

    Neighbours differ in the presence of one example. The bound follows from Renyi
    differential privacy (Mironov, Talwar and Zhang, 2019,
    https://arxiv.org/abs/1908.10530). ``delta`` lies in (0, 1).
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
