"""Unbalanced classes: weights for the loss, or batches with as many of each class.

``training.balance`` chooses between them. Classes are those of the labels that a round
trains on, including the labels of replayed samples.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


def class_weights(labels: Tensor, classes: int) -> Tensor:
    """Compute class weights by inverse frequency; a sample's mean weight is 1.

    ``w_c = N / (C N_c)`` with N labels, C classes that occur and N_c labels of class c
    (King and Zeng, Political Analysis 2001; "balanced" in scikit-learn). In a sum of
    weighted samples each class then counts the same.

    Args:
        labels: int64, shape (N,), below ``classes``.
        classes: number of classes of the head.

    Returns:
        float32, shape (classes,); 1 for a class that does not occur.
    """
    counts = torch.bincount(labels, minlength=classes)
    shares = counts * (counts > 0).sum() / len(labels)
    return torch.where(counts > 0, 1 / shares, 1.0).float()


def mean_cross_entropy(
    logits: Tensor, labels: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Compute the mean cross-entropy of samples, weighted by class.

    The divisor is the number of samples, not the sum of their weights. So a sample
    weighs the same in its batch as in the mean over all samples.

    Args:
        logits: shape (batch, classes).
        labels: int64, shape (batch,).
        weights: class weights, shape (classes,); None for equal weights.
    """
    if weights is None:
        return cross_entropy(logits, labels)
    return cross_entropy(logits, labels, weights, reduction="sum") / len(labels)


def balanced_order(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Draw N rows so that the classes' counts differ by one at most.

    This is class-aware sampling (Shen, Lin and Huang, ECCV 2016,
    https://arxiv.org/abs/1512.05830). In each turn every class gives one sample, in a
    random order of classes. A class gives its samples in a random order, and begins
    again when all have been drawn. So samples of rare classes recur, and some samples
    of large classes are left out.

    Args:
        labels: int64, shape (N,).
        generator: generator of random numbers on the CPU.

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
        permutations = [
            rows[torch.randperm(len(rows), generator=generator)] for _ in range(times)
        ]
        drawn.append(torch.cat(permutations)[:turns])
    if not drawn:
        return labels
    order = torch.rand(turns, len(drawn), generator=generator).argsort(1)
    return torch.stack(drawn, 1).gather(1, order).flatten()[: len(labels)]
