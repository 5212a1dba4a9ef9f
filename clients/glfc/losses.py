"""The two losses of GLFC, on logits alone.

Dong et al., CVPR 2022, https://arxiv.org/abs/2203.11473, equations 2 to 5. The paper
writes them with softmax probabilities and the divergence of the old model's from the
new one's; the released code, whose form this is, has a sigmoid for each class and
binary cross-entropies. Then the target of the second loss need not sum to 1, and its
gradient is that of the divergence of each class.
"""

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot

_LEAST = 1e-12


def compensation_weights(logits: Tensor, labels: Tensor, new: Tensor) -> Tensor:
    """Return the weight of each sample of a batch (equations 2 to 4).

    That is |G| / mean |G|, with the mean over the new or the old classes, whichever the
    sample is of, so that both together weigh by their numbers; G is the gradient by the
    logit of the label, its probability less 1.

    Args:
        logits: shape (batch, classes).
        labels: int64, shape (batch,).
        new: bool, shape (batch,): the sample is of a class of the present task.

    Returns:
        shape (batch,), without a gradient.
    """
    own = logits.detach().gather(1, labels[:, None])[:, 0]
    sizes = 1 - own.sigmoid()
    means = torch.zeros_like(sizes)
    for group in (new, ~new):
        if group.any():
            means[group] = sizes[group].mean()
    return sizes / means.clamp(min=_LEAST)


def compensated(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return the mean weighted binary cross-entropy over samples and classes.

    Args:
        logits: shape (batch, classes).
        labels: int64, shape (batch,).
        weights: shape (batch,).
    """
    wanted = one_hot(labels, logits.shape[1]).to(logits.dtype)
    entries = binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    return (weights[:, None] * entries).mean()


def relation_distilled(
    logits: Tensor, labels: Tensor, taught: Tensor, old: Tensor
) -> Tensor:
    """Return the binary cross-entropy of what an old model says (equation 5).

    Args:
        logits: shape (batch, classes).
        labels: int64, shape (batch,).
        taught: probabilities of the old model, shape (batch, classes).
        old: bool, shape (classes,): that model knows the class. Of the others the
            target is the label.
    """
    wanted = one_hot(labels, logits.shape[1]).to(logits.dtype)
    wanted = torch.where(old, taught, wanted)
    return binary_cross_entropy_with_logits(logits, wanted)
