"""A client that trains as others do, and sends something else."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fcl_flower.algorithms.base import ClientLearner
from fcl_flower.config.sections import Attack
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import (
    AnyArray,
    Array,
    Arrays,
    Payload,
    SparseArray,
    TaskStage,
    Update,
    group_kind,
)
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.federation.messages import MAX_EXAMPLES
from fcl_flower.training.tensors import snapshot


def turned(payload: Payload, starts: Payload, factor: float) -> Payload:
    """Turn the change of a model the other way round.

    A tensor v that started from s becomes ``s - factor (v - s)``; what has no start,
    such as a statistic, stays. ``starts`` are dense, by group.
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
    """Add standard normal noise to all floating numbers of groups that have a start.

    Of a sparse tensor all entries are sent: those that an honest client leaves out are
    noise about the start.
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
    """Find what a group of an update started from; None if nothing suits.

    Of the first payload with groups of the same kind and all of these tensors, the one
    of the same name, or else the nearest: which of several models a client trained, an
    update need not say. ``known`` begins with what is to be trusted most.
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
    dense = _dense(start)
    if isinstance(tensor, SparseArray):
        return tensor.values, dense.reshape(-1)[tensor.indices]
    return np.asarray(tensor), dense


def overlaid(kept: Payload, received: Payload) -> Mapping[str, Arrays]:
    """Lay what a client received over what it had kept; dense.

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


_SCALING = 10.0


class HostileTraining:
    """What `ClientLearner.train` does, by a client with other ends.

    - ``sign-flip``: the change of the model the other way round, with the largest
      number of examples that is let through.
    - ``noise``: standard normal noise on the model.
    - ``scaling``: ten times the change, the other way round.
    - ``label-flip``: an honest update, of labels y that became C - 1 - y.
    - ``counts``: an honest update, with that largest number of examples.
    - ``adapters``: standard normal noise on what other clients receive as it is.

    The model is what the client has a start of; statistics stay as they are. What
    is handed on is left alone by all attacks but the last.
    """

    def __init__(
        self, learner: ClientLearner[Any], attack: Attack, shared: tuple[str, ...]
    ) -> None:
        """Take the place of an honest learner; its model is still the initial one.

        ``shared`` are the kinds of groups that other clients receive as they were sent.
        """
        self._learner, self._attack, self._shared = learner, attack, shared
        model = learner.model
        self._initial = snapshot(model, model.shared_names())

    def __call__(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        """Train; return the next private state, which is honest, and the update."""
        if self._attack == "label-flip":
            data = replace(
                data,
                train=_flipped(data.train, data.classes),
                valid=_flipped(data.valid, data.classes),
            )
        after, update = self._learner.train(state, received, stage, data)
        payload = update.payload
        shared = {g for g in payload if group_kind(g) in self._shared}
        starts = self._starts(payload, overlaid(state, received), shared)
        client, seed = self._learner.context.client, self._learner.context.seed
        rng = np.random.default_rng(derive(seed, "attack", client, stage.round))
        match self._attack:
            case "sign-flip":
                payload = turned(payload, starts, 1.0)
            case "scaling":
                payload = turned(payload, starts, _SCALING)
            case "noise":
                payload = noisy(payload, starts, rng)
            case "adapters":
                payload = noisy(payload, {g: _zeros(payload[g]) for g in shared}, rng)
        claims = self._attack in ("sign-flip", "counts")
        examples = MAX_EXAMPLES if claims else update.num_examples
        return after, replace(update, payload=payload, num_examples=examples)

    def _starts(self, payload: Payload, known: Payload, shared: set[str]) -> Payload:
        found = {
            group: start_of(group, arrays, [known, {group_kind(group): self._initial}])
            for group, arrays in payload.items()
            if group not in shared
        }
        return {group: start for group, start in found.items() if start is not None}


def _zeros(arrays: Arrays) -> Arrays:
    return {name: np.zeros(t.shape, t.dtype) for name, t in arrays.items()}


def _flipped(examples: Examples, classes: int) -> Examples:
    return examples._replace(y=classes - 1 - examples.y)
