"""Where accuracy alone misleads: test sets of unbalanced classes."""

from typing import Any

import numpy as np
import numpy.typing as npt

LEAST = 3
"""Of a class to another, by the numbers of their samples."""


def unbalanced(labels: npt.NDArray[np.integer[Any]]) -> bool:
    """Tell whether the largest class has three times the samples of the smallest.

    Of the classes that occur; ``labels`` are numbers, shape (N,).
    """
    counts = np.unique(labels, return_counts=True)[1]
    return len(counts) > 1 and bool(counts.max() >= LEAST * counts.min())
