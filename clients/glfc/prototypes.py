"""What a client shows of a task's classes: the gradients of perturbed prototypes.

Dong et al., CVPR 2022, https://arxiv.org/abs/2203.11473, section 3.3.
"""

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, normalize, one_hot

from fcl_flower.data.examples import Examples
from fcl_flower.models.heads import MultiHeadModel


def prototypes(features: Tensor, labels: Tensor) -> Tensor:
    """Return the place of each class's sample that is nearest to the mean of its class.

    Features are divided by their length, as in the released code.

    Args:
        features: shape (N, d).
        labels: int64, shape (N,).

    Returns:
        int64, ascending by class.
    """
    unit = normalize(features)
    places = []
    for label in torch.unique(labels):
        of_class = (labels == label).nonzero()[:, 0]
        own = unit[of_class]
        places.append(of_class[(own - own.mean(0)).norm(dim=1).argmin()])
    return torch.stack(places)


def feature_spread(features: Tensor, labels: Tensor) -> Tensor:
    """Return the standard deviation of each feature within each class.

    Args:
        features: shape (N, d).
        labels: int64, shape (N,).

    Returns:
        shape (classes that occur, d), ascending by class; 0 for a class of one sample.
    """
    return torch.stack(
        [
            features[labels == label].std(0, correction=0)
            for label in torch.unique(labels)
        ]
    )


def perturbed(
    model: MultiHeadModel,
    samples: Examples,
    spread: Tensor,
    *,
    noise: float,
    steps: int,
    rate: float,
    seed: int,
) -> Tensor:
    """Return images moved by steps down the loss, whose features have noise added.

    x <- x - rate * grad_x L(h(phi(x) + noise * N(0, spread^2)), y) with the body phi,
    the head h, and the binary cross-entropy L. So the paper; the released code leaves
    the noise out.

    Args:
        model: evaluated, with a single head.
        samples: N images and their labels.
        spread: of the features of each sample's class, shape (N, d).
        noise: the paper's gamma.
        steps: how many; 0 returns the images themselves.
        rate: of a step.
        seed: of the noise.
    """
    model.eval()
    draw = torch.Generator().manual_seed(seed)
    head, x = model.heads[0], samples.x
    wanted = one_hot(samples.y, model.classes).to(x.dtype)
    for _ in range(steps):
        x = x.detach().requires_grad_()
        found = model.body(x)
        drawn = torch.randn(found.shape, generator=draw).to(found.device)
        logits = head(found + noise * spread * drawn)
        # Each image has a loss of its own: their number shall not matter.
        loss = binary_cross_entropy_with_logits(logits, wanted) * len(x)
        (slope,) = torch.autograd.grad(loss, x)
        x = x - rate * slope
    return x.detach()
