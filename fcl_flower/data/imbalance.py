"""The check for unbalanced test sets, on which accuracy alone misleads."""

from typing import Any

import numpy as np
import numpy.typing as npt

LEAST = 3
"""The least ratio of the largest class to the smallest that is called unbalanced."""


def unbalanced(labels: npt.NDArray[np.integer[Any]]) -> bool:
    """Tell whether the largest class has three times the samples of the smallest.

    Only classes that occur in ``labels``, shape (N,), count.
    """
    counts = np.unique(labels, return_counts=True)[1]
    return len(counts) > 1 and bool(counts.max() >= LEAST * counts.min())
