"""What a network answers to test samples, counted by class."""

from collections.abc import Callable

import torch
from torch import Tensor


class Answers:
    """A prediction that remembers its answers, for one set of samples."""

    def __init__(self, predict: Callable[[Tensor], Tensor]) -> None:
        """Answer as ``predict`` does: inputs to logits, shape (batch, classes)."""
        self._predict = predict
        self._given: list[Tensor] = []

    def __call__(self, x: Tensor) -> Tensor:
        """Return the logits of a batch, and keep the labels that they stand for."""
        logits = self._predict(x)
        self._given.append(logits.argmax(1))
        return logits

    def by_class(self, labels: Tensor, classes: int) -> list[list[int]]:
        """Return how many samples of each class were right, there, and answered.

        Args:
            labels: of all samples in the order in which they were shown, shape (N,).
            classes: logits of the network.

        Returns:
            shape (3, classes); the sums of the last two are N.
        """
        answers = torch.cat([labels[:0], *self._given])
        right = labels[answers == labels]
        return [
            torch.bincount(found, minlength=classes).tolist()
            for found in (right, labels, answers)
        ]
