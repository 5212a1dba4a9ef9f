"""A client that trains as others do, and sends something else."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from fcl_flower.algorithms.base import ClientLearner, Turn
from fcl_flower.config.run_config import Attack
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
from fcl_flower.rounds.messages import MAX_EXAMPLES
from fcl_flower.training.tensors import dense, snapshot

_SCALING = 10.0
_Change: TypeAlias = Callable[[Array, Array], Array]
"""A function of a tensor's values, and of its start, that returns what is sent."""


def turned(payload: Payload, starts: Payload, factor: float) -> Payload:
    """Turn the change of a model the other way round.

    A tensor v that started from s becomes ``s - factor (v - s)``; what has no start,
    such as a statistic, stays.
    """
    return _each(
        payload, starts, lambda v, s: _changed(v, s, lambda v, s: s - factor * (v - s))
    )


def noisy(payload: Payload, starts: Payload, rng: np.random.Generator) -> Payload:
    """Add standard normal noise to all floating numbers of groups with a start.

    Of a sparse tensor all entries are sent: those that an honest client leaves out are
    noise about the start.
    """

    def with_noise(tensor: AnyArray, start: AnyArray) -> AnyArray:
        if isinstance(tensor, SparseArray):
            whole = tensor.overwrite(dense(start))
            tensor = SparseArray.of_mask(whole, np.ones(whole.shape, bool))
        return _changed(tensor, start, lambda v, _: v + rng.standard_normal(v.shape))

    return _each(payload, starts, with_noise)


def _each(
    payload: Payload,
    starts: Payload,
    change: Callable[[AnyArray, AnyArray], AnyArray],
) -> Payload:
    return {
        group: {name: change(t, starts[group][name]) for name, t in arrays.items()}
        if group in starts
        else arrays
        for group, arrays in payload.items()
    }


def _changed(tensor: AnyArray, start: AnyArray, change: _Change) -> AnyArray:
    if tensor.dtype.kind != "f":
        return tensor
    values = change(*_pair(tensor, start)).astype(tensor.dtype)
    if isinstance(tensor, SparseArray):
        return SparseArray(tensor.shape, tensor.indices, values)
    return values


def _pair(tensor: AnyArray, start: AnyArray) -> tuple[Array, Array]:
    """Pair the numbers of a tensor that were sent with those of a start there."""
    whole = dense(start)
    if isinstance(tensor, SparseArray):
        return tensor.values, whole.reshape(-1)[tensor.indices]
    return tensor, whole


def start_of(group: str, arrays: Arrays, known: Sequence[Payload]) -> Arrays | None:
    """Find what a group of an update started from; None if nothing suits.

    Of the first payload with groups of the same kind and all of these tensors, the one
    of the same name, or else the nearest: which of several models a client trained, an
    update need not say. ``known`` are payloads of dense tensors, that to be trusted
    most first.
    """

    def distance(other: Arrays) -> float:
        pairs = [_pair(tensor, other[name]) for name, tensor in arrays.items()]
        return sum(float(np.square(v.astype(np.float64) - s).sum()) for v, s in pairs)

    for payload in known:
        fitting = {
            name: other
            for name, other in payload.items()
            if group_kind(name) == group_kind(group)
            and all(n in other and other[n].shape == t.shape for n, t in arrays.items())
        }
        if fitting:
            nearest = min(fitting, key=lambda name: distance(fitting[name]))
            return fitting.get(group, fitting[nearest])
    return None


def overlaid(kept: Payload, received: Payload) -> Payload:
    """Lay what a client received over what it had kept; dense.

    Of a tensor that arrives in part, the rest is what the client had.
    """
    found: dict[str, Arrays] = dict(kept)
    for group, arrays in received.items():
        own = dict(kept.get(group, {}))
        for name, tensor in arrays.items():
            if isinstance(tensor, SparseArray) and name in own:
                tensor = tensor.overwrite(dense(own[name]))
            own[name] = tensor
        found[group] = own
    return found


class HostileTraining:
    """Train as `ClientLearner.train` does, for a client with other ends.

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
        """Prepare to train in the place of an honest client.

        The learner is freshly made, so that its model is the initial one; ``shared``
        are the kinds of groups that other clients receive as they were sent.
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
        after, update = self._learner.train(Turn(state, received, stage, data))
        payload, known = update.payload, overlaid(state, received)
        starts, zeros = dict[str, Arrays](), dict[str, Arrays]()
        for group, arrays in payload.items():
            kind = group_kind(group)
            if kind in self._shared:  # it is added to something, and starts at zero
                zeros[group] = {
                    n: np.zeros(t.shape, t.dtype) for n, t in arrays.items()
                }
            elif start := start_of(group, arrays, [known, {kind: self._initial}]):
                starts[group] = start
        context = self._learner.context
        seed = derive(context.seed, "attack", context.client, stage.round)
        match self._attack:
            case "sign-flip":
                payload = turned(payload, starts, 1.0)
            case "scaling":
                payload = turned(payload, starts, _SCALING)
            case "noise":
                payload = noisy(payload, starts, np.random.default_rng(seed))
            case "adapters":
                payload = noisy(payload, zeros, np.random.default_rng(seed))
        claims = self._attack in ("sign-flip", "counts")
        examples = MAX_EXAMPLES if claims else update.num_examples
        return after, replace(update, payload=payload, num_examples=examples)


def _flipped(examples: Examples, classes: int) -> Examples:
    return examples._replace(y=classes - 1 - examples.y)
