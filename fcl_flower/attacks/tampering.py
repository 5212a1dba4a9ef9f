"""Hostile tensors, made of honest ones."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fcl_flower.core.sparse import SparseArray
from fcl_flower.core.types import AnyArray, Array, Arrays, Payload, group_kind


def turned(payload: Payload, starts: Payload, factor: float) -> Payload:
    """Return a payload whose change of the model goes the other way round.

    A tensor v that started from s becomes ``s - factor (v - s)``; what has no start,
    such as a statistic, stays.

    Args:
        payload: what an honest client would send.
        starts: by group what it started from, dense.
        factor: above 0.
    """
    return {
        group: {
            name: _changed(
                tensor, starts[group][name], lambda v, s: s - factor * (v - s)
            )
            for name, tensor in arrays.items()
        }
        if group in starts
        else arrays
        for group, arrays in payload.items()
    }


def noisy(payload: Payload, starts: Payload, rng: np.random.Generator) -> Payload:
    """Return a payload with standard normal noise on all floating numbers.

    Of a sparse tensor all entries are sent: those that an honest client leaves out are
    noise about the start.

    Args:
        payload: what an honest client would send.
        starts: by group what it started from; other groups stay.
        rng: draws the noise.
    """
    return {
        group: {
            name: _with_noise(tensor, starts[group][name], rng)
            for name, tensor in arrays.items()
        }
        if group in starts
        else arrays
        for group, arrays in payload.items()
    }


def start_of(group: str, arrays: Arrays, known: Sequence[Payload]) -> Arrays | None:
    """Return what a group of an update started from; None if nothing suits.

    Of the first payload with groups of the same kind and all of these tensors, the one
    of the same name, or else the nearest: which of several models a client trained, an
    update need not say.

    Args:
        group: its name.
        arrays: of the update.
        known: payloads of dense tensors, that to be trusted most first.
    """
    for payload in known:
        fitting = {
            name: other
            for name, other in payload.items()
            if group_kind(name) == group_kind(group) and _fits(arrays, other)
        }
        if fitting:
            nearest = min(fitting, key=lambda name: _distance(arrays, fitting[name]))
            return fitting.get(group, fitting[nearest])
    return None


def _fits(arrays: Arrays, other: Arrays) -> bool:
    return all(
        name in other and tuple(other[name].shape) == tuple(tensor.shape)
        for name, tensor in arrays.items()
    )


def _distance(arrays: Arrays, other: Arrays) -> float:
    total = 0.0
    for name, tensor in arrays.items():
        values, start = _pair(tensor, other[name])
        total += float(np.square(values.astype(np.float64) - start).sum())
    return total


def _changed(
    tensor: AnyArray, start: AnyArray, change: Callable[[Array, Array], Array]
) -> AnyArray:
    """Return a tensor whose floating numbers are made of the old ones and the start."""
    if tensor.dtype.kind != "f":
        return tensor
    values = change(*_pair(tensor, start)).astype(tensor.dtype)
    if isinstance(tensor, SparseArray):
        return SparseArray(tensor.shape, tensor.indices, values)
    return values


def _with_noise(
    tensor: AnyArray, start: AnyArray, rng: np.random.Generator
) -> AnyArray:
    if isinstance(tensor, SparseArray):
        whole = tensor.overwrite(_dense(start))
        everywhere = SparseArray.of_mask(whole, np.ones(whole.shape, bool))
        return _changed(everywhere, start, lambda v, _: v + rng.standard_normal(len(v)))
    return _changed(tensor, start, lambda v, _: v + rng.standard_normal(v.shape))


def _dense(tensor: AnyArray) -> Array:
    return tensor.to_dense() if isinstance(tensor, SparseArray) else np.asarray(tensor)


def _pair(tensor: AnyArray, start: AnyArray) -> tuple[Array, Array]:
    """Return the numbers of a tensor that were sent, and those of a start there."""
    dense = _dense(start)
    if isinstance(tensor, SparseArray):
        return tensor.values, dense.reshape(-1)[tensor.indices]
    return np.asarray(tensor), dense


def overlaid(kept: Payload, received: Payload) -> Mapping[str, Arrays]:
    """Return what a client knows: what it received, over what it had kept; dense.

    Of a tensor that arrives in part, the rest is what the client had.
    """
    found: dict[str, Arrays] = dict(kept)
    for group, arrays in received.items():
        own = kept.get(group, {})
        found[group] = {
            **own,
            **{
                name: tensor.overwrite(np.asarray(own[name]))
                if isinstance(tensor, SparseArray) and name in own
                else tensor
                for name, tensor in arrays.items()
            },
        }
    return found
