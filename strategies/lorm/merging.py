"""Weights whose answers come nearest to those of several others, in closed form.

RegMean (Jin et al., ICLR 2023, equation 2), and LoRM's for the factors of ``dW = B A``
(Salami et al., ICLR 2025, section 3): of all ``W``, the merged one minimises

    sum_k | W X_k - W_k X_k |^2

where the columns of X_k, shape (inputs, tokens), are what has entered the layer. Of
them it takes ``Gamma_k = X_k X_k^T``: a matrix, shape (inputs, inputs), or a vector,
its diagonal, where all else counts as 0. All is computed in float64.

Some directions hardly any input has: there the equations as printed would leave weights
to rounding errors, and make them huge (three of MiniLM's features are such). Of all W
that are equally near, as far as float32 can tell, it is the one nearest to the mean.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fcl_flower.core.types import Array


class LowRank(NamedTuple):
    """A change of a layer's weights, ``dW = up down``.

    Attributes:
        down: A, shape (rank, inputs).
        up: B, shape (outputs, rank).
    """

    down: Array
    up: Array


def regmean(weights: Sequence[Array], grams: Sequence[Array]) -> Array:
    """Return ``(sum_k W_k Gamma_k) (sum_k Gamma_k)^+``.

    With M the mean of all W_k it is computed as
    ``M + (sum_k (W_k - M) Gamma_k) (sum_k Gamma_k)^+``, which is the same wherever the
    inverse exists, and M where there are no inputs.

    So are merged rows of a head, and the factors A where all clients have the same B:
    ``B A X`` is nearest to all ``B A_k X_k`` if ``A X`` is to all ``A_k X_k``.

    Args:
        weights: W_k, each of shape (outputs, inputs).
        grams: Gamma_k, all matrices or all diagonals.

    Returns:
        float64, shape (outputs, inputs).
    """
    mean = np.mean([np.asarray(weight, np.float64) for weight in weights], 0)
    away = np.sum(
        [
            _times(np.asarray(weight, np.float64) - mean, np.asarray(gram, np.float64))
            for weight, gram in zip(weights, grams, strict=True)
        ],
        0,
    )
    return np.asarray(mean + _times(away, _inverse(_sum(grams))))


def merged_up(ups: Sequence[Array], down: Array, grams: Sequence[Array]) -> Array:
    """Return ``(sum_k B_k A Gamma_k) A^T (A (sum_k Gamma_k) A^T)^+``.

    Args:
        ups: B_k, each of shape (outputs, rank).
        down: A, shape (rank, inputs), the same for all.
        grams: Gamma_k, all matrices or all diagonals.

    Returns:
        float64, shape (outputs, rank).
    """
    shared = np.asarray(down, np.float64)
    seen = [_times(shared, np.asarray(gram, np.float64)) @ shared.T for gram in grams]
    return regmean(ups, seen)


def merged_change(changes: Sequence[LowRank], grams: Sequence[Array]) -> LowRank:
    """Return ``(sum_t dW_t Gamma_t) (sum_t Gamma_t)^+`` of the changes of some tasks.

    Its rank is at most the sum of theirs, since it is
    ``sum_t B_t (A_t Gamma_t (sum_t Gamma_t)^+)``: the factors are B_t and what is in
    parentheses, side by side. So no matrix of the layer's own size is ever made.

    Args:
        changes: dW_t.
        grams: Gamma_t, all matrices or all diagonals.

    Returns:
        float64.
    """
    inverse = _inverse(_sum(grams))
    downs = [
        _times(_times(np.asarray(change.down, np.float64), gram), inverse)
        for change, gram in zip(changes, grams, strict=True)
    ]
    ups = [np.asarray(change.up, np.float64) for change in changes]
    return LowRank(np.concatenate(downs), np.concatenate(ups, axis=1))


def damped(gram: Array, alpha: float) -> Array:
    """Return a matrix with all that is off its diagonal multiplied by ``alpha``.

    With alpha below 1 it is regular if no input is always 0.
    """
    return np.asarray(alpha * gram + (1 - alpha) * np.diag(np.diag(gram)))


def upper_half(gram: Array) -> Array:
    """Return the n (n + 1) / 2 numbers of a symmetric matrix, row by row."""
    return np.asarray(gram[np.triu_indices(len(gram))])


def symmetric(numbers: Array) -> Array:
    """Return the matrix of which these are the `upper_half`."""
    size = (int(np.sqrt(8 * len(numbers) + 1)) - 1) // 2
    upper = np.zeros((size, size), numbers.dtype)
    upper[np.triu_indices(size)] = numbers
    return np.asarray(upper + np.triu(upper, 1).T)


def _sum(grams: Sequence[Array]) -> Array:
    return np.asarray(np.sum([np.asarray(gram, np.float64) for gram in grams], 0))


def _times(left: Array, gram: Array) -> Array:
    return np.asarray(left * gram if gram.ndim == 1 else left @ gram)


def _inverse(gram: Array) -> Array:
    """Return the pseudo-inverse of a positive semidefinite matrix, or of a diagonal."""
    if gram.ndim == 1:
        return np.asarray(np.where(gram > 0, 1 / np.where(gram > 0, gram, 1.0), 0.0))
    least = len(gram) * float(np.finfo(np.float32).eps)
    return np.asarray(np.linalg.pinv(gram, rcond=least, hermitian=True))
