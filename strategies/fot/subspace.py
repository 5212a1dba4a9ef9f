"""The subspace of a layer's inputs, and changes of weights that leave it alone.

Bakman et al., ICLR 2024, https://arxiv.org/abs/2309.01289, as their released code
computes. A layer answers its inputs x, shape (inputs,), with W x, where a convolution
is the matrix of its flattened kernels, shape (outputs, channels * positions), and x a
patch. With columns of U that are an orthonormal basis of old inputs, a change g of W
becomes ``g - g U U^T``: then ``(W + g) x = W x`` for each x that they span.

That code's networks have no biases. Here a bias is the weight of one more input that is
always 1, so that answers stay the same where there is one, too.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from fcl_flower.core.types import Array, Arrays

BASE, SUBSPACE = "base", "subspace"
"""Groups that the server sends: the model, and U by layer."""

SKETCHES, OUTSIDE = "sketches", "sketches/outside"
"""Groups that a client sends beside its model, by layer: a sketch of what of its inputs
A is outside of U, shape (inputs, columns), and ``|A - U U^T A|^2 / |A|^2``."""

WEIGHT, BIAS = ".weight", ".bias"


class HasShape(Protocol):
    """An array, or a torch tensor."""

    @property
    def shape(self) -> Sequence[int]:
        """Return the sizes of its axes."""


def layer_inputs(tensors: Mapping[str, HasShape]) -> dict[str, int]:
    """Return the width of what enters each layer of a model, by the layer's name.

    A layer is what has a weight of at least two axes, its outputs on the first.
    """
    return {
        name.removesuffix(WEIGHT): math.prod(tensor.shape[1:])
        + (name.removesuffix(WEIGHT) + BIAS in tensors)
        for name, tensor in tensors.items()
        if name.endswith(WEIGHT) and len(tensor.shape) > 1
    }


def sketch_columns(inputs: int, width: float) -> int:
    """Return how many columns a sketch has: ``width * inputs``, rounded up."""
    return math.ceil(width * inputs)


def without_subspace(
    changed: Arrays, before: Arrays, subspace: Arrays
) -> dict[str, Array]:
    """Return a model of whose change the part in the subspace is taken out again.

    Args:
        changed: the model after a round.
        before: the model before it.
        subspace: U by layer, shape (inputs, directions); of a layer without any
            direction, and of what is no layer, the change stays as it is.
    """
    found = {name: np.asarray(tensor) for name, tensor in changed.items()}
    for layer, columns in subspace.items():
        basis = np.asarray(columns, np.float64)
        if not basis.shape[1]:
            continue
        old = _matrix(before, layer)
        change = _matrix(changed, layer) - old
        kept = old + change - (change @ basis) @ basis.T
        weight = found[layer + WEIGHT]
        flat = kept[:, : weight[0].size]
        found[layer + WEIGHT] = flat.reshape(weight.shape).astype(weight.dtype)
        if layer + BIAS in found:
            bias = found[layer + BIAS]
            found[layer + BIAS] = kept[:, -1].astype(bias.dtype)
    return found


def extended(basis: Array, sketch: Array, outside: float, energy: float) -> Array:
    """Return a basis that also holds the principal directions of a task's inputs.

    Of inputs A, shape (inputs, samples), the share ``outside`` of the squares lies
    outside of the old basis U: ``|A - U U^T A|^2 / |A|^2``. So that ``energy`` of all
    is inside, as many left singular vectors of ``A - U U^T A`` are added as hold

        (outside - (1 - energy)) / outside

    of its squares, and none if that is not above 0. They are those of a sketch
    ``(A - U U^T A) R`` with random R, nearly (Halko et al., SIAM Review 2011). The
    released code takes that ratio of norms that are not squared, and always adds one.

    Args:
        basis: U, shape (inputs, directions), orthonormal.
        sketch: shape (inputs, columns); what of it is in U is taken out.
        outside: in [0, 1].
        energy: in (0, 1].

    Returns:
        float32, shape (inputs, directions), orthonormal; at most ``inputs`` directions.
    """
    old = np.asarray(basis, np.float64)
    rest = np.asarray(sketch, np.float64)
    rest = rest - old @ (old.T @ rest)
    vectors, values, _ = np.linalg.svd(rest, full_matrices=False)
    held = np.cumsum(values**2)
    if outside <= 1 - energy or not held[-1] > 0:
        return basis
    share = (outside - (1 - energy)) / outside
    count = int(np.searchsorted(held, share * held[-1])) + 1
    both, _ = np.linalg.qr(np.concatenate([old, vectors[:, :count]], axis=1))
    return np.asarray(both, np.float32)


def no_directions(inputs: Mapping[str, int]) -> dict[str, Array]:
    """Return the subspaces before the first task: bases without columns."""
    return {layer: np.zeros((count, 0), np.float32) for layer, count in inputs.items()}


def _matrix(arrays: Arrays, layer: str) -> Array:
    """Return weights and, if there is one, the bias, shape (outputs, inputs)."""
    weight = np.asarray(arrays[layer + WEIGHT], np.float64)
    flat = weight.reshape(len(weight), -1)
    if layer + BIAS not in arrays:
        return flat
    bias = np.asarray(arrays[layer + BIAS], np.float64)
    return np.concatenate([flat, bias[:, None]], axis=1)
