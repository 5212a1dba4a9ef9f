"""Exemplars: the samples that a client keeps of old tasks, and which of them stay.

A memory is a group of a client's state. Its arrays have one length:

- ``x``: the samples; documents are padded with 0 to the width of the widest.
- ``y``: their labels.
- ``task``: the number of each sample's task.
- ``rank``, in a memory of a fixed size: the lower it is, the longer a sample stays.
- any other array that a method keeps of each sample.

Integers are kept in the smallest type that holds them. `remember_fraction` keeps a
fraction of each task. `remember` keeps a number of samples or bytes in all, or of
samples of each class. Nothing here depends on rounds: a task counts once.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, TypeVar

import numpy as np
import torch
from torch import Tensor

from fcl_flower.algorithms.base import ClientContext, ClientLearner, Turn
from fcl_flower.algorithms.params import MemoryParams
from fcl_flower.core.errors import ContractError
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Array, Arrays
from fcl_flower.data.examples import Examples
from fcl_flower.data.instructions import NO_LABEL
from fcl_flower.training.distillation import hidden_features
from fcl_flower.training.tensors import dense, to_numpy

M = TypeVar("M", bound=MemoryParams)

NOTHING: Final[Mapping[str, Array]] = MappingProxyType({})

# ---- what is kept


def remember_fraction(
    memory: Arrays, examples: Examples, fraction: float, seed: int, *, task: int
) -> Arrays:
    """Add a task's share of samples to a memory; the rest stays as it is.

    This is FedET's Sample Memory Module S (Liu et al., IJCAI 2023, sections 2 and 4.1).
    It keeps a fraction gamma of the training samples, in (0, 1], the same number for
    every class. The number is rounded to the nearest integer, but each class has at
    least one sample. Two classes differ by at most one sample, unless one of them has
    no more. The remainder of the division goes to the classes of which the memory has
    least.

    If the memory has the task already, or there are no examples, the memory itself is
    returned.
    """
    if contains(memory, task) or not len(examples.y):
        return memory
    y = _classes(to_numpy(examples.y))
    present = _classes(dense(memory["y"])) if memory else y[:0]
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.unique(y))
    held = np.array([np.count_nonzero(present == label) for label in labels])
    labels = labels[np.argsort(held, kind="stable")]
    places = [rng.permutation(np.flatnonzero(y == label)) for label in labels]
    wanted = max(round(fraction * len(y)), len(labels))
    # Classes give one sample each in turn, until there are enough.
    ranks = np.concatenate([np.arange(len(place)) for place in places])
    dealt = np.argsort(ranks, kind="stable")[:wanted]
    chosen = np.sort(np.concatenate(places)[dealt])
    return joined(memory, rows_of(examples, chosen, task))


def remember_task(
    learner: ClientLearner[M],
    turn: Turn,
    memory: Arrays,
    extras: Mapping[str, Array] = NOTHING,
) -> Arrays:
    """Add samples of a task to a memory of a fixed size when the task ends.

    Until then old tasks have all the room. Methods with the same settings keep the same
    samples, unless the policy looks at features. Features are those of the learner's
    trained model. For ``extras`` see `remember`.
    """
    params, (_, _, stage, data) = learner.params, turn
    if not stage.ends_task or not len(data.train.y):
        return memory
    features = None
    if params.looks_at_features:
        features = to_numpy(hidden_features(learner.model, data.train))
    seed = memory_seed(learner.context, stage.task)
    return remember(memory, data.train, params, seed, stage.task, features, extras)


def memory_seed(context: ClientContext, task: int) -> int:
    """Derive the seed by which a client draws the samples that it keeps of a task."""
    return context.derive("sample-memory", task)


def remember(
    memory: Arrays,
    examples: Examples,
    params: MemoryParams,
    seed: int,
    task: int,
    features: Array | None = None,
    extras: Mapping[str, Array] = NOTHING,
) -> Arrays:
    """Add samples of a task to a memory, within its budget.

    A sample's rank decides whether it stays:

    - By the policy ``reservoir`` the rank is a random number. The samples with the
      lowest ranks of all tasks stay. Each sample has the same probability, in whatever
      order samples come, as in Vitter's reservoir sampling (ACM TOMS 1985).
    - By the other policies the rank is a sample's place in the order of its class, best
      first. Of K samples for C classes each class keeps its first K/C, as in iCaRL
      (Rebuffi et al., CVPR 2017, algorithm 5). The remainder, and the room that a small
      class leaves, goes to the other classes, so that the memory is full; iCaRL rounds
      K/C. With more classes than K the seed draws the classes that keep a sample, anew
      with each task.
    - With a number of samples for each class, by any policy, a class keeps its first
      ones, as in Hou et al., CVPR 2019 (section 4). It leaves no room to other classes.

    The memory itself is returned if there are no examples. It is also returned if it
    has the task already, unless the policy looks at features. These have changed since,
    so the task's samples are chosen anew.

    Args:
        memory: samples of earlier tasks; empty at the start.
        examples: N training samples of the task.
        params: budget and policy.
        seed: seed of the draw; the same in all rounds of a task.
        task: the task's number.
        features: of the examples, shape (N, d), for ``herding`` and ``leverage``.
        extras: other values to keep of each example, by name: arrays of length N. All
            tasks have the same names.
    """
    if not len(examples.y):
        return memory
    if contains(memory, task) and not params.looks_at_features:
        return memory
    everything = np.arange(len(examples.y))
    ranks = _ranks(_classes(to_numpy(examples.y)), params, seed, features)
    new = {**rows_of(examples, everything, task), **extras, "rank": ranks}
    both = joined(without_task(memory, task), new)
    return rows_at(both, _staying(both, params, seed))


def replay_samples(
    memory: Arrays, device: str, *, without: int | None = None
) -> Examples:
    """Take the samples out of a memory, except those of the task ``without``.

    An empty memory gives no samples, and these have no shape, so that `concat` joins
    them with any others.
    """
    if not memory:
        return Examples(torch.empty(0, 0), torch.empty(0, dtype=torch.int64))
    if without is not None:
        memory = without_task(memory, without)
    x, y = dense(memory["x"]), dense(memory["y"])
    if x.dtype.kind in "iu":
        x = x.astype(np.int64)
    labels = torch.tensor(y.astype(np.int64), device=device)
    return Examples(torch.tensor(x, device=device), labels)


def random_orders(samples: int, seed: int) -> Iterator[Tensor]:
    """Yield the places of samples in random orders, int64, without end."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randperm(samples, generator=generator)


# ---- rows of a memory


def rows_of(examples: Examples, chosen: Array, task: int) -> dict[str, Array]:
    """Give samples of a task the form of a memory, in the order of ``chosen``."""
    places = torch.from_numpy(chosen).to(examples.y.device)
    return {
        "x": to_numpy(examples.x[places]),
        "y": to_numpy(examples.y[places]),
        "task": np.full(len(chosen), task),
    }


def joined(memory: Arrays, new: Mapping[str, Array]) -> Arrays:
    """Append rows of the same arrays to a memory, which may be empty."""
    if not memory:
        return {name: _small(values) for name, values in new.items()}
    if memory.keys() != new.keys():
        raise ContractError(
            f"replay buffer: got arrays {sorted(new)}, expected {sorted(memory)}"
        )
    old = {name: dense(values) for name, values in memory.items()}
    both = {name: (old[name], _small(new[name])) for name in new}
    both["x"] = _padded(*both["x"], 0)
    if both["y"][0].ndim > 1:
        both["y"] = _padded(*both["y"], NO_LABEL)
    # NumPy joins two types of integers to the smallest type that holds both.
    return {name: np.concatenate(parts) for name, parts in both.items()}


def rows_at(memory: Arrays, chosen: Array) -> Arrays:
    """Select rows of a memory, by their places or by a mask."""
    return {name: dense(values)[chosen] for name, values in memory.items()}


def without_task(memory: Arrays, task: int) -> Arrays:
    """Select the rows of a memory that are not of ``task``."""
    return rows_at(memory, dense(memory["task"]) != task) if memory else memory


def contains(memory: Arrays, task: int) -> bool:
    """Tell whether there are samples of ``task`` in a memory."""
    return bool(memory) and task in dense(memory["task"])


def _small(values: Array) -> Array:
    if values.dtype.kind not in "iu":
        return values
    ends = (np.min_scalar_type(end) for end in (values.min(), values.max()))
    return values.astype(np.result_type(*ends))


def _padded(one: Array, other: Array, value: int) -> tuple[Array, Array]:
    """Pad the last axes of two arrays to one width."""
    axes, width = one.ndim - 1, max(one.shape[-1], other.shape[-1])
    first, second = (
        np.pad(
            part.astype(np.int64) if value else part,
            [(0, 0)] * axes + [(0, width - part.shape[-1])],
            constant_values=value,
        )
        for part in (one, other)
    )
    return _small(first), _small(second)


def _classes(y: Array) -> Array:
    """Return the class of each sample; all answers to instructions are of one class."""
    return y if y.ndim == 1 else np.zeros(len(y), np.int64)


# ---- which samples stay


def herding_order(features: Array, count: int) -> Array:
    """Choose ``count`` samples greedily, so that their mean is nearest to that of all.

    Rebuffi et al., CVPR 2017, https://arxiv.org/abs/1611.07725, algorithm 4: the k-th
    is ``argmin_x |mu - (phi(x) + sum_{j<k} phi(p_j)) / k|``. Features (n, d) are
    divided by their length first, as in section 2.1 there. Their mean is not, as in the
    authors' code. The authors' algorithm may draw a sample again, which then moves the
    mean twice; here each sample comes once.

    Returns:
        the places of the samples, int64, best first.
    """
    features = np.asarray(features, np.float64)
    length = np.linalg.norm(features, axis=1, keepdims=True)
    unit: Array = features / np.where(length > 0, length, 1.0)
    mean = unit.mean(0) if len(unit) else unit.sum(0)
    total, left = np.zeros_like(mean), np.ones(len(unit), bool)
    chosen = []
    for k in range(1, min(count, len(unit)) + 1):
        distance = np.linalg.norm(mean - (unit + total) / k, axis=1)
        best = int(np.where(left, distance, np.inf).argmin())
        left[best] = False
        total += unit[best]
        chosen.append(best)
    return np.array(chosen, np.int64)


def leverage_scores(features: Array, gram: Array) -> Array:
    """Compute ``tau_j = x_j^T G^+ x_j`` of features (n, d), at least 0.

    Let G = X^T X be over all samples. A score is then the squared length of a sample's
    row in U of the singular value decomposition X = U S V^T. FedCBDR (2025),
    https://arxiv.org/abs/2507.07712, computes it from U. That G is enough is our
    remark.
    """
    x = np.asarray(features, np.float64)
    inverse = np.linalg.pinv(np.asarray(gram, np.float64), hermitian=True)
    scores: Array = np.einsum("nd,de,ne->n", x, inverse, x)
    return np.maximum(scores, 0.0)


def drawn_order(weights: Array, rng: np.random.Generator) -> Array:
    """Draw samples without replacement; return their places, int64, in that order.

    At each draw a sample's probability is its weight, at least 0, divided by the weight
    of all samples left. This is the order of ``-log(u) / w`` (Efraimidis and Spirakis,
    Information Processing Letters 2006). Samples without weight come last. The function
    draws n numbers from ``rng``.
    """
    waits = -np.log1p(-rng.random(len(weights)))
    keys = np.full(len(weights), np.inf)
    np.divide(waits, weights, out=keys, where=np.asarray(weights) > 0)
    order: Array = np.argsort(keys, kind="stable")
    return order


def ranks_by_class(labels: Array, order: Callable[[Array], Array]) -> Array:
    """Number the samples of each class from 0, in the order that ``order`` chooses.

    ``order`` gets the places of a class's samples, ascending. It returns the chosen
    places, first to last. A sample that is not chosen gets the number N.
    """
    ranks = np.full(len(labels), len(labels))
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        chosen = order(members)
        ranks[members[chosen]] = np.arange(len(chosen))
    return ranks


def turns_by_class(memory: Arrays) -> Array:
    """Number the rows of each class of a memory by their ranks, shape (N,)."""
    labels, ranks = _classes(dense(memory["y"])), dense(memory["rank"])
    return ranks_by_class(labels, lambda rows: np.argsort(ranks[rows], kind="stable"))


def _ranks(y: Array, params: MemoryParams, seed: int, features: Array | None) -> Array:
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
            room = params.room(1)
            return ranks_by_class(y, lambda rows: herding_order(features[rows], room))
        seen = np.asarray(features, np.float64)
        weights = leverage_scores(seen, seen.T @ seen)
    return ranks_by_class(y, lambda rows: drawn_order(weights[rows], rng))


def _staying(memory: Arrays, params: MemoryParams, seed: int) -> Array:
    labels = _classes(dense(memory["y"]))
    limit = params.memory_per_class or len(labels)
    room = min(params.room(len(np.unique(labels))), len(labels))
    if params.memory_bytes:
        a_row = sum(dense(values)[0].nbytes for values in memory.values())
        room = min(room, params.memory_bytes // a_row)
    if params.memory_policy == "reservoir" and not params.memory_per_class:
        order = np.argsort(dense(memory["rank"]), kind="stable")
        return np.sort(order[:room])
    # Classes give one sample each in turn, until there are enough.
    turns = turns_by_class(memory)
    classes, places = np.unique(labels, return_inverse=True)
    if room < len(classes):
        # Each class has its own random number, so a repeated task draws the same.
        keys = [derive(seed, "kept-classes", label) for label in classes.tolist()]
        places = np.argsort(np.argsort(keys))[places]
    order = np.lexsort((places, turns))
    return np.sort(order[turns[order] < limit][:room])
