"""What a Flower user gives and gets: plain NumPy arrays and metrics by name."""

from collections.abc import Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord

from fcl_flower.core.errors import refuse
from fcl_flower.core.types import AnyArray, Arrays, Evaluation, Update

INITIAL = "initial_arrays"


def to_array_record(model: Arrays | None) -> ArrayRecord:
    """Return tensors as Flower stores NumPy arrays; an empty record for None."""
    return ArrayRecord({n: Array(np.asarray(t)) for n, t in (model or {}).items()})


def from_array_record(record: ArrayRecord, model: Arrays) -> Arrays:
    """Return a user's initial tensors, in the order of ``model``.

    Args:
        record: from the user.
        model: what names, shapes and dtypes have to be.

    Raises:
        ConfigError: they are not, or a value is not finite.
    """
    if record.keys() != model.keys():
        raise refuse(INITIAL, sorted(record), f"the tensors {sorted(model)}")
    found: dict[str, AnyArray] = {}
    for name, expected in model.items():
        key, storage = f"{INITIAL} {name}", record[name].stype
        if storage != "numpy.ndarray":
            raise refuse(key, storage, "numpy.ndarray")
        tensor = record[name].numpy()
        if (tensor.shape, tensor.dtype) != (expected.shape, expected.dtype):
            raise refuse(
                key,
                f"{tensor.dtype} {tensor.shape}",
                f"{expected.dtype} {expected.shape}",
            )
        if not np.isfinite(tensor).all():
            raise refuse(key, "NaN or infinity", "finite values")
        found[name] = tensor
    return found


def train_metrics(updates: Mapping[int, Update]) -> MetricRecord:
    """Return the mean loss of some clients' updates and how many there are."""
    scalars = [update.metrics for update in updates.values()]
    losses = [metrics["loss"] for metrics in scalars if "loss" in metrics]
    loss = sum(losses) / len(losses) if losses else float("nan")
    return MetricRecord({"loss": loss, "clients": len(updates)})


def evaluate_metrics(scores: Mapping[int, Evaluation]) -> MetricRecord:
    """Return the mean accuracy of some clients, over all tasks and by task.

    Args:
        scores: by client, not empty, all of the same tasks.
    """
    rows = [found.accuracy for found in scores.values()]
    means = [sum(column) / len(column) for column in zip(*rows, strict=True)]
    by_task = {f"task-{task}": mean for task, mean in enumerate(means)}
    return MetricRecord({"accuracy": sum(means) / len(means), **by_task})
