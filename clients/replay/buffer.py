"""Replay buffer: the samples that a client keeps of old tasks.

Arrays of a buffer, all of one length:

- ``x``: the samples; documents are padded with 0 to the width of the widest.
- ``y``: their labels.
- ``task``: the number of each sample's task.
- whatever else a method keeps of each sample.

Integers are kept in the smallest type that holds them. `add_to_buffer` keeps a fraction
of each task, `clients.replay.memory` a number of samples or bytes in all.
"""

from collections.abc import Mapping

import numpy as np
import torch

from fcl_flower.core.errors import ContractError
from fcl_flower.core.types import Array, Arrays
from fcl_flower.data.examples import Examples
from fcl_flower.training.tensors import dense, to_numpy


def add_to_buffer(
    buffer: Arrays, examples: Examples, fraction: float, seed: int, *, task: int
) -> Arrays:
    """Return the buffer with a task's share of samples; the rest stays as it is.

    FedET's Sample Memory Module S (Liu et al., IJCAI 2023, sections 2 and 4.1): a
    fraction gamma of the training samples, the same number for every class.

    The share is ``fraction`` of the examples to the nearest integer, but at least
    one of each of their classes. Within it, two classes differ by at most one sample,
    unless one of them has no more. A task that is in the buffer is not added again:
    then, and where there are no examples, the buffer is returned itself.

    Args:
        buffer: of earlier tasks; empty at the start.
        examples: N training samples of the task.
        fraction: gamma, in (0, 1].
        seed: of the draw.
        task: its number.
    """
    if contains(buffer, task) or not len(examples.y):
        return buffer
    y = to_numpy(examples.y)
    chosen = _balanced(y, dense(buffer["y"]) if buffer else y[:0], fraction, seed)
    return joined(buffer, rows_of(examples, chosen, task))


def rows_of(examples: Examples, chosen: Array, task: int) -> dict[str, Array]:
    """Return some samples of a task in the form of a buffer.

    Args:
        examples: of the task.
        chosen: their places, int64, in the order in which they are kept.
        task: its number.
    """
    places = torch.from_numpy(chosen).to(examples.y.device)
    return {
        "x": to_numpy(examples.x[places]),
        "y": to_numpy(examples.y[places]),
        "task": np.full(len(chosen), task),
    }


def joined(buffer: Arrays, new: Mapping[str, Array]) -> Arrays:
    """Return the rows of a buffer, and then new ones.

    Args:
        buffer: may be empty.
        new: arrays of one length, of the buffer's names.

    Raises:
        ContractError: the names are others.
    """
    if not buffer:
        return {name: _small(values) for name, values in new.items()}
    if buffer.keys() != new.keys():
        raise ContractError(
            f"replay buffer: got arrays {sorted(new)}, expected {sorted(buffer)}"
        )
    old = {name: dense(values) for name, values in buffer.items()}
    widest = max(old["x"].shape[-1], new["x"].shape[-1])
    both = {name: (old[name], _small(new[name])) for name in new}
    both["x"] = (_padded(both["x"][0], widest), _padded(both["x"][1], widest))
    # Of two types of integers NumPy takes the smallest that holds both.
    return {name: np.concatenate(parts) for name, parts in both.items()}


def rows_at(buffer: Arrays, chosen: Array) -> Arrays:
    """Return some rows of a buffer, by their places or by a mask."""
    return {name: dense(values)[chosen] for name, values in buffer.items()}


def without_task(buffer: Arrays, task: int) -> Arrays:
    """Return the rows of a buffer that are not of ``task``."""
    return rows_at(buffer, dense(buffer["task"]) != task) if buffer else buffer


def contains(buffer: Arrays, task: int) -> bool:
    """Return whether there are samples of ``task`` in the buffer."""
    return bool(buffer) and task in dense(buffer["task"])


def replay_samples(
    buffer: Arrays, device: str, *, without: int | None = None
) -> Examples:
    """Return the samples as a learner takes them: labels and words are int64 again.

    Of an empty buffer ``x`` has shape (0, 0), since the shape of samples is not known;
    `fcl_flower.data.examples.concat` joins it with anything.

    Args:
        buffer: of `add_to_buffer`.
        device: torch device name.
        without: a task whose samples are left out.
    """
    if not buffer:
        return Examples(torch.empty(0, 0), torch.empty(0, dtype=torch.int64))
    if without is not None:
        buffer = without_task(buffer, without)
    x, y = dense(buffer["x"]), dense(buffer["y"])
    if x.dtype.kind in "iu":
        x = x.astype(np.int64)
    return Examples(
        torch.tensor(x, device=device),
        torch.tensor(y.astype(np.int64), device=device),
    )


def _balanced(y: Array, present: Array, fraction: float, seed: int) -> Array:
    """Return positions of the samples to keep, ascending.

    What does not divide evenly goes to the classes of which the buffer has least.
    """
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.unique(y))
    held = np.array([np.count_nonzero(present == label) for label in labels])
    labels = labels[np.argsort(held, kind="stable")]
    places = [rng.permutation(np.flatnonzero(y == label)) for label in labels]
    wanted = max(round(fraction * len(y)), len(labels))
    # One sample of each class after the other, until there are enough.
    ranks = np.concatenate([np.arange(len(place)) for place in places])
    dealt = np.argsort(ranks, kind="stable")[:wanted]
    return np.sort(np.concatenate(places)[dealt])


def _small(values: Array) -> Array:
    """Return integers in the smallest type that holds them; others as they are."""
    if values.dtype.kind not in "iu":
        return values
    ends = (np.min_scalar_type(end) for end in (values.min(), values.max()))
    return values.astype(np.result_type(*ends))


def _padded(x: Array, width: int) -> Array:
    """Return samples with zeros at the end of the last axis, up to ``width``."""
    missing = width - x.shape[-1]
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)]) if missing else x
