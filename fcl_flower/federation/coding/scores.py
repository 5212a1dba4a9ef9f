"""A client's scores <-> a record of numbers, of which a server believes none."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
from flwr.app import MetricRecord

from fcl_flower.core.errors import WireError
from fcl_flower.core.types import Array, Evaluation

BY_CLASS = ("right", "tested", "answered")
"""Names of the counts of `Evaluation.by_class`, each for all tasks in a row."""

MAX_SAMPLES = 2**31


def encode_evaluation(evaluation: Evaluation) -> MetricRecord:
    """Return the record of a client's scores."""
    by_name = zip(*evaluation.by_class, strict=True)
    counts = dict(zip(BY_CLASS, by_name, strict=False))  # none where nobody asked
    return MetricRecord(
        {
            "accuracy": list(evaluation.accuracy),
            "model-bytes": evaluation.model_bytes,
            **{name: [*chain.from_iterable(found)] for name, found in counts.items()},
        }
    )


def decode_evaluation(row: MetricRecord, tasks: int, classes: int = 0) -> Evaluation:
    """Return a client's scores.

    Args:
        row: from a client.
        tasks: how many accuracies there have to be.
        classes: by how many the samples have to be counted; 0 for not at all.

    Raises:
        WireError: a score is missing, no fraction, or there are too many; or no samples
            have these counts by class.
    """
    accuracy, size = row.get("accuracy"), row.get("model-bytes")
    if not isinstance(accuracy, list) or len(accuracy) != tasks:
        raise WireError(f"accuracy: expected {tasks} fractions, got {_told(accuracy)}")
    if not all(0 <= value <= 1 for value in accuracy):
        raise WireError(f"accuracy: expected values in [0, 1], got {accuracy}")
    if not isinstance(size, int) or size < 0:
        raise WireError(f"model-bytes: expected a number of bytes, got {size!r}")
    if not classes:
        return Evaluation(accuracy, size)
    counts = [_counts(row, name, (tasks, classes)) for name in BY_CLASS]
    _check(accuracy, *counts)
    return Evaluation(accuracy, size, np.stack(counts, 1).tolist())


def _counts(row: MetricRecord, name: str, shape: tuple[int, int]) -> Array:
    """Return counts by task and class.

    Raises:
        WireError: they are none, or not as many.
    """
    found, expected = row.get(name), shape[0] * shape[1]
    if not isinstance(found, list) or len(found) != expected:
        raise WireError(
            f"{name}: expected {expected} counts by class, got {_told(found)}"
        )
    if not all(isinstance(n, int) and 0 <= n <= MAX_SAMPLES for n in found):
        raise WireError(f"{name}: expected integers in [0, {MAX_SAMPLES}], got others")
    return np.array(found, np.int64).reshape(shape)


def _told(found: object) -> str:
    """Return what came instead; of a list its length, as it may have any."""
    return f"{len(found)} of them" if isinstance(found, list) else repr(found)


def _check(
    accuracy: Sequence[float], right: Array, tested: Array, answered: Array
) -> None:
    """Refuse counts, each of shape (tasks, classes), that contradict each other.

    Raises:
        WireError: names the counts.
    """
    if (right > np.minimum(tested, answered)).any():
        raise WireError(
            "right: expected at most as many of a class as were tested, and answered"
        )
    hits, samples = right.sum(1), tested.sum(1)
    if (answered.sum(1) != samples).any():
        raise WireError(
            f"answered: expected one answer to each of {samples.tolist()} samples, "
            f"got {answered.sum(1).tolist()}"
        )
    # An honest client has divided the same integers.
    if (hits / np.maximum(samples, 1) != accuracy).any():
        raise WireError(
            f"right: expected the accuracies {list(accuracy)}, got {hits.tolist()} of "
            f"{samples.tolist()}"
        )
