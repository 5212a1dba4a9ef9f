"""Does another client's finished task resemble mine? And how much of it to keep.

Two steps around a task's training that let knowledge of the same or a similar task
survive it. Ours, not FedWeIT's: in its equation 1 the foreign knowledge of a matching
task is overwritten while the client fits its own few examples.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fcl_flower.data.examples import Examples
from fcl_flower.training.loop import score

SHARES = (0.0, 0.25, 0.5, 0.75)


def matched_accuracy(logits: Tensor, labels: Tensor) -> tuple[float, Tensor]:
    """Return how well a foreign head separates my classes, whatever their order.

    Each of my labels is given one output of the head, so that the most examples are
    right (Hungarian assignment).

    Args:
        logits: shape (examples, classes), of a model for some other task.
        labels: shape (examples,), integers below the number of classes.

    Returns:
        The share of examples that are right, in [0, 1], and for each of my labels
        the output that stands for it, shape (classes,).
    """
    classes = logits.shape[1]
    votes = np.zeros((classes, classes))
    np.add.at(votes, (labels.numpy(), logits.argmax(1).cpu().numpy()), 1)
    rows, outputs = linear_sum_assignment(votes, maximize=True)
    right = votes[rows, outputs].sum()
    return float(right / max(len(labels), 1)), torch.from_numpy(outputs)


def clearly_above(accuracy: float, known: float, examples: int) -> bool:
    """Return whether one accuracy exceeds another by two standard errors.

    Args:
        accuracy: a fraction.
        known: the fraction to exceed.
        examples: on how many examples ``known`` was measured, at least 1.
    """
    return accuracy > known + 2 * math.sqrt(known * (1 - known) / examples)


def averaged_back(
    start: Mapping[str, Tensor],
    end: Mapping[str, Tensor],
    logits: Callable[[Mapping[str, Tensor], Tensor], Tensor],
    valid: Examples,
) -> dict[str, Tensor]:
    """Return the mixture of start and end of training that validates best.

    Averaging fine-tuned weights with those they started from keeps what the start
    knew and the training examples cannot tell (Wortsman et al., CVPR 2022,
    https://arxiv.org/abs/2109.01903). The share of the start is chosen by validation
    loss among 0, 1/4, 1/2 and 3/4; without validation examples it is 0.

    Args:
        start: all tensors of the task's model when training began.
        end: the same when it ended.
        logits: of a model with such tensors, for a batch of inputs.
        valid: the task's validation examples.
    """
    best: tuple[float, dict[str, Tensor]] | None = None
    for share in SHARES:
        mixed = {
            name: torch.lerp(value, start[name], share)
            if value.is_floating_point()
            else value
            for name, value in end.items()
        }
        found = score(partial(logits, mixed), valid)
        if best is None or found.loss < best[0]:
            best = (found.loss, mixed)
    assert best is not None
    return best[1]
