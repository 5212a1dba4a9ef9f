"""The local similarity classifier of PODNet, and the loss that it is trained by.

Douillard et al., ECCV 2020, https://arxiv.org/abs/2004.13513, equations 7 to 9: a class
is a few proxies, and a feature is compared with the nearest of them most.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from typing_extensions import override

from fcl_flower.models.heads import CLOSED, GrowingHead


class LocalSimilarity(GrowingHead):
    """Logits ``eta * y_c``, where y_c is the similarity of a feature h and class c.

    With the cosines ``a_k = <theta_ck, h>`` of h and the K proxies of a class, ``y_c =
    sum_k softmax(a)_k a_k``. The authors' code has ``2 a - 2``, minus the squared
    distance of unit vectors, in the place of a; a sharper softmax is the difference.

    Attributes:
        proxies: theta, shape (classes, K, features).
        scale: eta, shape (1,); learned.
        resting: which classes have proxies that are not trained, bool, shape
            (classes,); None for none.
    """

    resting: Tensor | None = None

    def __init__(self, features: int, classes: int, proxies: int, scale: float) -> None:
        """Draw the proxies from torch's generator, of length 1 in the mean square.

        Args:
            features: of what is classified.
            classes: at least 1.
            proxies: K of each class, at least 1.
            scale: eta at the start, above 0.
        """
        super().__init__()
        drawn = torch.randn(classes, proxies, features) / features**0.5
        self.proxies = nn.Parameter(drawn)
        self.scale = nn.Parameter(torch.tensor([scale]))

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (batch, classes), of features (batch, features)."""
        theta: Tensor = self.proxies
        if self.resting is not None:
            theta = torch.where(self.resting[:, None, None], theta.detach(), theta)
        cosines = torch.einsum(
            "bd,ckd->bck", normalize(x, dim=1), normalize(theta, dim=2)
        )
        similarity = (cosines.softmax(2) * cosines).sum(2)
        return self.hide(self.scale * similarity)


def margin_loss(logits: Tensor, labels: Tensor, margin: Tensor | float) -> Tensor:
    """Return the mean over samples of equation 9, the NCA loss with a margin and hinge.

    ``max(0, log sum_{c != y} exp(z_c) - (z_y - margin))``: the right class is compared
    with all others and not with itself. In the authors' code the margin is subtracted
    from every class, and so from none, and nothing is cut off at 0; here it is as
    printed.

    Args:
        logits: z, shape (batch, classes); those of closed classes count nothing.
        labels: y, shape (batch,).
        margin: delta in units of the logits.
    """
    own = labels[:, None]
    others = logits.scatter(1, own, CLOSED).logsumexp(1)
    return (others - logits.gather(1, own)[:, 0] + margin).relu().mean()
