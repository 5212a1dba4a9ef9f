"""What a client's inputs looked like with each concept model, without any label.

A Gaussian with a diagonal covariance over the entries of an input, from sums that grow
with each round; they never leave the client.
"""

import numpy as np
from torch import Tensor

from fcl_flower.core.types import Array, Arrays

FLOOR = 0.01
"""Added to each variance, in units of their mean: some entries never change."""
LEAST = 1e-6
"""Added as well: perhaps none does."""


def add_inputs(known: Arrays, x: Tensor) -> Arrays:
    """Return the sums with further inputs.

    Args:
        known: ``count`` (shape ()), ``sum`` and ``squares`` (shape (D,)), float64; or
            nothing.
        x: shape (N, ...) with D entries each, N at least 1.
    """
    flat = _flat(x)
    found = {
        "count": np.float64(len(flat)),
        "sum": flat.sum(axis=0),
        "squares": (flat**2).sum(axis=0),
    }
    return {name: np.asarray(known.get(name, 0) + new) for name, new in found.items()}


def misfit(known: Arrays, x: Tensor) -> float:
    """Return the mean negative log-likelihood of inputs, up to a factor and a constant.

    Args:
        known: of `add_inputs`; with nothing it is infinite.
        x: shape (N, ...), N at least 1.
    """
    if not known:
        return np.inf
    count, total, squares = (
        np.asarray(known[name]) for name in ("count", "sum", "squares")
    )
    mean = total / count
    variance = np.maximum(squares / count - mean**2, 0)  # rounding goes below 0
    variance += FLOOR * variance.mean() + LEAST
    return float(((_flat(x) - mean) ** 2 / variance + np.log(variance)).mean())


def _flat(x: Tensor) -> Array:
    flat: Array = x.flatten(1).double().cpu().numpy()
    return flat
