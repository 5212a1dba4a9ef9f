"""The representation loss: classes learned now draw together, away from all others.

Shenaj et al., CVPR workshops 2023, https://arxiv.org/abs/2304.03626, as the authors'
code computes it: the supervised contrastive loss (Khosla et al., NeurIPS 2020,
https://arxiv.org/abs/2004.11362, equation 2) over a batch and what is drawn around
prototypes.
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize


def representation_loss(
    hidden: Tensor, labels: Tensor, anchored: Tensor, temperature: float
) -> Tensor:
    """Return the loss, shape (); 0 where no class of an anchor has two samples.

    With s_ij the cosine of features i and j over the temperature, and N_c the number of
    samples of class c, it is ``1/N sum_i 1/(N_c - 1) sum_j (log(1 + sum_{a != i}
    exp(s_ia)) - s_ij)`` over the anchors i, their classes c and the other samples j of
    these. The 1 is what the code leaves of a sample itself, which Khosla's sum is
    without.

    Args:
        hidden: features, shape (N, D).
        labels: int64, shape (N,).
        anchored: classes whose samples are anchors, int64.
        temperature: above 0.
    """
    directions = normalize(hidden, dim=1)
    similarity = directions @ directions.T / temperature
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    similarity = similarity.masked_fill(itself, 0.0)
    alike = (labels[:, None] == labels) & ~itself
    others = alike.sum(1)
    anchors = torch.isin(labels, anchored) & (others > 0)
    apart = torch.logsumexp(similarity, 1)[:, None] - similarity
    of_anchor = (apart * alike).sum(1) / others.clamp(min=1)
    return of_anchor[anchors].sum() / len(labels)
