"""Replay memory of a fixed size: old classes make room when new ones come.

A buffer (`clients.replay.buffer`) with one more array, ``rank``: the less, the longer a
sample stays. By the policy ``reservoir`` it is a random number, and of all samples so
far those with the least stay: each has the same probability, as in Vitter's reservoir
sampling (ACM TOMS 1985), whatever comes in which order. By the others it is the place
of a sample in the order of its class, best first; of K samples for C classes each class
keeps its first K/C, as in iCaRL (Rebuffi et al., CVPR 2017, algorithm 5). What does not
divide evenly, or what a class with too few samples leaves, goes to the others, so that
the memory is full; iCaRL rounds K/C. Of more classes than K the seed draws those that
keep a sample, anew with each task.

Nothing here depends on rounds: a task counts once.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from clients.lwf.teacher import outputs
from clients.replay.buffer import contains, joined, rows_at, rows_of, without_task
from clients.replay.policies import (
    drawn_order,
    herding_order,
    leverage_scores,
    ranks_by_class,
)
from fcl_flower.algorithms.base import ClientContext
from fcl_flower.core.errors import ContractError
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Array, Arrays, TaskStage
from fcl_flower.data.examples import Examples
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.tensors import dense, to_numpy
from strategies.replay import MemoryParams

NOTHING: Final[Mapping[str, Array]] = MappingProxyType({})


def remember_task(
    memory: Arrays,
    examples: Examples,
    params: MemoryParams,
    model: MultiHeadModel,
    context: ClientContext,
    stage: TaskStage,
) -> Arrays:
    """Return the memory as a client keeps it after a round: new when the task ends.

    Until then old tasks have all the room. Methods with the same settings keep the same
    samples, unless the policy looks at features.

    Args:
        memory: of earlier tasks; empty at the start.
        examples: N training samples of the task.
        params: budget and policy.
        model: what the client has learned in the round.
        context: of the client.
        stage: of the round.
    """
    if not stage.ends_task or not len(examples.y):
        return memory
    seed = derive(context.seed, "sample-memory", context.client, stage.task)
    looks = params.looks_at_features
    features = to_numpy(outputs(model, examples).hidden) if looks else None
    return remember(memory, examples, params, seed, task=stage.task, features=features)


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
    return rows_at(both, _staying(both, params, seed))


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
        if params.memory_policy == "herding":
            room = params.memory_samples
            return ranks_by_class(y, lambda rows: herding_order(features[rows], room))
        seen = np.asarray(features, np.float64)
        weights = leverage_scores(seen, seen.T @ seen if gram is None else gram)
    return ranks_by_class(y, lambda rows: drawn_order(weights[rows], rng))


def _staying(buffer: Arrays, params: MemoryParams, seed: int) -> Array:
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
    turns = ranks_by_class(labels, lambda rows: np.argsort(ranks[rows], kind="stable"))
    classes, places = np.unique(labels, return_inverse=True)
    if room < len(classes):
        # By a number of each class: a task that is remembered again draws the same.
        keys = [derive(seed, "kept-classes", label) for label in classes.tolist()]
        places = np.argsort(np.argsort(keys))[places]
    return np.sort(np.lexsort((places, turns))[:room])
