"""The samples that a client keeps of old tasks: FedET's Sample Memory Module S.

Liu et al., IJCAI 2023, sections 2 and 4.1: a fraction gamma of what a client has seen,
the same number for every class. Arrays of a memory, all of one length:

- ``x``: the samples; documents are padded with 0 to the width of the widest.
- ``y``: their labels.
- ``task``: the number of the task in which each of them was met.

Whole numbers are kept in the smallest type that holds them.
"""

import numpy as np
import torch

from fcl_flower.core.types import Array, Arrays
from fcl_flower.data.examples import Examples
from fcl_flower.training.tensors import dense, to_numpy


def add_to_buffer(
    memory: Arrays, examples: Examples, fraction: float, seed: int, *, task: int
) -> Arrays:
    """Return the memory with a task's share of samples; the rest stays as it is.

    The share is ``fraction`` of the examples to the nearest whole number, but at least
    one of each of their classes. Within it, two classes differ by at most one sample,
    unless one of them has no more. A task that is in the memory is not added again:
    then, and where there are no examples, the memory is returned itself.

    Args:
        memory: what was returned before; empty at the start.
        examples: N training samples of the task.
        fraction: gamma, in (0, 1].
        seed: of the draw.
        task: its number.
    """
    if contains(memory, task) or not len(examples.y):
        return memory
    y = to_numpy(examples.y)
    chosen = _balanced(y, dense(memory["y"]) if memory else y[:0], fraction, seed)
    x = to_numpy(examples.x[torch.from_numpy(chosen)])
    new = {"x": x, "y": y[chosen], "task": np.full(len(chosen), task)}
    if not memory:
        return {name: _small(values) for name, values in new.items()}
    old = {name: dense(memory[name]) for name in new}
    widest = max(old["x"].shape[-1], x.shape[-1])
    old["x"], new["x"] = _padded(old["x"], widest), _padded(x, widest)
    # Of two types of whole numbers NumPy takes the smallest that holds both.
    return {name: np.concatenate([old[name], _small(new[name])]) for name in new}


def contains(memory: Arrays, task: int) -> bool:
    """Return whether there are samples of ``task`` in the memory."""
    return bool(memory) and task in dense(memory["task"])


def replay_samples(
    memory: Arrays, device: str, *, without: int | None = None
) -> Examples:
    """Return the samples as a learner takes them: labels and words are int64 again.

    Where nothing is remembered, ``x`` has shape (0, 0), since nothing says what samples
    look like; `fcl_flower.data.examples.concat` joins it with anything.

    Args:
        memory: of `add_to_buffer`.
        device: torch device name.
        without: a task whose samples are left out.
    """
    if not memory:
        return Examples(torch.empty(0, 0), torch.empty(0, dtype=torch.int64))
    x, y, tasks = (dense(memory[name]) for name in ("x", "y", "task"))
    if without is not None:
        x, y = x[tasks != without], y[tasks != without]
    if x.dtype.kind in "iu":
        x = x.astype(np.int64)
    return Examples(
        torch.tensor(x, device=device),
        torch.tensor(y.astype(np.int64), device=device),
    )


def _balanced(y: Array, known: Array, fraction: float, seed: int) -> Array:
    """Return positions of the samples to keep, ascending.

    What does not divide evenly goes to the classes of which the memory knows least.
    """
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.unique(y))
    held = np.array([np.count_nonzero(known == label) for label in labels])
    labels = labels[np.argsort(held, kind="stable")]
    places = [rng.permutation(np.flatnonzero(y == label)) for label in labels]
    wanted = max(round(fraction * len(y)), len(labels))
    # One sample of each class after the other, until there are enough.
    ranks = np.concatenate([np.arange(len(place)) for place in places])
    dealt = np.argsort(ranks, kind="stable")[:wanted]
    return np.sort(np.concatenate(places)[dealt])


def _small(values: Array) -> Array:
    """Return whole numbers in the smallest type that holds them; others as they are."""
    if values.dtype.kind not in "iu":
        return values
    ends = (np.min_scalar_type(end) for end in (values.min(), values.max()))
    return values.astype(np.result_type(*ends))


def _padded(x: Array, width: int) -> Array:
    """Return samples with zeros at the end of the last axis, up to ``width``."""
    missing = width - x.shape[-1]
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)]) if missing else x
