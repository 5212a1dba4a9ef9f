"""Replay memory of a fixed size: old classes make room when new ones come.

A buffer (`clients.replay.buffer`) with one more array, ``rank``: the less, the longer a
sample stays. By the policy ``reservoir`` it is a random number, and of all samples so
far those with the least stay: each has the same probability, as in Vitter's reservoir
sampling (ACM TOMS 1985), whatever comes in which order. By the others it is the place
of a sample in the order of its class, best first; of K samples for C classes each class
keeps its first K/C, as in iCaRL (Rebuffi et al., CVPR 2017, algorithm 5). What does not
divide evenly, or what a class with too few samples leaves, goes to the others, so that
the memory is full; iCaRL rounds K/C.

Nothing here depends on rounds: a task counts once.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from clients.replay.buffer import contains, joined, rows_at, rows_of, without_task
from clients.replay.policies import drawn_order, herding_order, leverage_scores
from fcl_flower.core.errors import ContractError
from fcl_flower.core.types import Array, Arrays
from fcl_flower.data.examples import Examples
from fcl_flower.training.tensors import dense, to_numpy
from strategies.replay import MemoryParams

NOTHING: Final[Mapping[str, Array]] = MappingProxyType({})


def remember(
    memory: Arrays,
    examples: Examples,
    params: MemoryParams,
    seed: int,
    *,
    task: int,
    features: Array | None = None,
    gram: Array | None = None,
    extras: Mapping[str, Array] = NOTHING,
) -> Arrays:
    """Return the memory with samples of a task, within its budget.

    To be called when the task ends: until then old tasks have all the room.

    Of a task that is in the memory already the samples are chosen anew where the
    policy looks at features, which have changed since; otherwise the memory itself is
    returned, as it is where there are no examples.

    Args:
        memory: of earlier tasks; empty at the start.
        examples: N training samples of the task.
        params: budget and policy.
        seed: of the draw; the same in all rounds of a task.
        task: its number.
        features: of the examples, shape (N, d), for ``herding`` and ``leverage``.
        gram: sum of the outer products of features for ``leverage``, shape (d, d), of
            whatever samples are to be told apart; that of ``features`` itself if None.
        extras: what else is kept of each example, by name: arrays of length N. The same
            names for all tasks.

    Raises:
        ContractError: the policy needs features and there are none, or the names of
            ``extras`` have changed.
    """
    if not len(examples.y):
        return memory
    if contains(memory, task) and not params.looks_at_features:
        return memory
    everything = np.arange(len(examples.y))
    new = {
        **rows_of(examples, everything, task),
        **extras,
        "rank": _ranks(to_numpy(examples.y), params, seed, features, gram),
    }
    both = joined(without_task(memory, task), new)
    return rows_at(both, _staying(both, params))


def _ranks(
    y: Array,
    params: MemoryParams,
    seed: int,
    features: Array | None,
    gram: Array | None,
) -> Array:
    """Return the rank of each sample of a task, shape (N,)."""
    rng = np.random.default_rng(seed)
    if params.memory_policy == "reservoir":
        return rng.random(len(y))
    weights = np.ones(len(y))
    if params.looks_at_features:
        if features is None:
            raise ContractError(
                f"replay memory: got no features, expected some for "
                f"{params.memory_policy}"
            )
        if params.memory_policy == "leverage":
            seen = np.asarray(features, np.float64)
            weights = leverage_scores(seen, seen.T @ seen if gram is None else gram)
    # Who is not chosen at all comes after all who are.
    ranks = np.full(len(y), len(y))
    for label in np.unique(y):
        of_class = np.flatnonzero(y == label)
        if params.memory_policy == "herding" and features is not None:
            order = herding_order(features[of_class], params.memory_samples)
        else:
            order = drawn_order(weights[of_class], rng)
        ranks[of_class[order]] = np.arange(len(order))
    return ranks


def _staying(buffer: Arrays, params: MemoryParams) -> Array:
    """Return the places of the rows that the budget allows, ascending."""
    ranks, labels = dense(buffer["rank"]), dense(buffer["y"])
    room = min(params.memory_samples, len(ranks))
    if params.memory_bytes:
        a_row = sum(dense(values)[0].nbytes for values in buffer.values())
        room = min(room, params.memory_bytes // a_row)
    if params.memory_policy == "reservoir":
        order = np.argsort(ranks, kind="stable")
        return np.sort(order[:room])
    # One sample of each class after the other, until there are enough.
    turns = np.empty(len(ranks), np.int64)
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label)
        best_first = np.argsort(ranks[of_class], kind="stable")
        turns[of_class[best_first]] = np.arange(len(of_class))
    return np.sort(np.lexsort((labels, turns))[:room])
