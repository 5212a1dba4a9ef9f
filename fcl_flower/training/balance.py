"""Unbalanced classes: weights for the loss, or batches with as many of each class.

Which of the two, says ``training.balance``. Classes are those of the labels that a
round trains on; where a method replays old samples with them, these count too.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


def class_weights(labels: Tensor, classes: int) -> Tensor:
    """Compute inverse class frequencies, by which a sample weighs 1 on average.

    ``w_c = N / (C N_c)`` with N labels, C classes that occur and N_c labels of class c
    (King and Zeng, Political Analysis 2001; "balanced" in scikit-learn). A sum over
    samples that are weighted so has as much of each class.

    Args:
        labels: int64, shape (N,), below ``classes``.
        classes: of the head.

    Returns:
        float32, shape (classes,); 1 for a class that does not occur.
    """
    counts = torch.bincount(labels, minlength=classes)
    shares = counts * (counts > 0).sum() / len(labels)
    return torch.where(counts > 0, 1 / shares, 1.0).float()


def mean_cross_entropy(
    logits: Tensor, labels: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Average the weighted cross-entropies of single samples; None weighs all alike.

    It is divided by the number of samples, not by the sum of their weights: those of a
    batch weigh as they do in the mean over all samples.

    Args:
        logits: shape (batch, classes).
        labels: int64, shape (batch,).
        weights: of the classes, shape (classes,).
    """
    if weights is None:
        return cross_entropy(logits, labels)
    return cross_entropy(logits, labels, weights, reduction="sum") / len(labels)


def balanced_order(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Draw as many rows as there are, with as many of each class, but for one turn.

    Class-aware sampling (Shen, Lin and Huang, ECCV 2016,
    https://arxiv.org/abs/1512.05830): classes take turns, each once in a random order,
    then again. A class gives its samples in a random order, and begins again when all
    have been drawn; so rare ones come several times, and of a large class some do not.

    Args:
        labels: int64, shape (N,).
        generator: of the CPU.

    Returns:
        int64, shape (N,), on the CPU.
    """
    labels = labels.cpu()
    counts = torch.unique(labels, return_counts=True)[1].tolist()
    turns = -(-len(labels) // max(1, len(counts)))
    by_class = torch.split(torch.argsort(labels, stable=True), counts)
    drawn = []
    for rows in by_class:
        times = -(-turns // len(rows))
        found = [
            rows[torch.randperm(len(rows), generator=generator)] for _ in range(times)
        ]
        drawn.append(torch.cat(found)[:turns])
    if not drawn:
        return labels
    order = torch.rand(turns, len(drawn), generator=generator).argsort(1)
    return torch.stack(drawn, 1).gather(1, order).flatten()[: len(labels)]
