"""Texts whose halves are swapped, to be told from those in order.

Huang et al., NAACL 2021, https://arxiv.org/abs/2104.05489, section 3.2: next sentence
prediction within a text that is cut anywhere. There a separator marks the cut in both
orders; here neither has one, so that texts stay as long as they are.
"""

import torch
from torch import Tensor


def drawn_cuts(x: Tensor) -> Tensor:
    """Return after how many words each text is cut: any number with words behind it.

    Drawn from torch's own generator, which training has seeded. A text of one word is
    cut behind it.

    Args:
        x: token numbers, shape (batch, tokens); see `swapped_halves`.

    Returns:
        int64, shape (batch,), at least 1.
    """
    words = (x > 0).sum(1) - 2
    places = torch.rand(len(x)).to(x.device) * (words - 1).clamp(min=1)
    return 1 + places.long()


def swapped_halves(x: Tensor, cuts: Tensor) -> Tensor:
    """Return texts that begin with the words behind the cut.

    The first and the last token, which are the tokenizer's own, stay where they are.

    Args:
        x: token numbers, shape (batch, tokens), 0 behind the end of a text.
        cuts: int64, shape (batch,), at least 1.
    """
    lengths = (x > 0).sum(1)[:, None]
    places = torch.arange(x.shape[1], device=x.device)[None]
    words = (lengths - 2).clamp(min=1)
    moved = 1 + (places - 1 + cuts[:, None]) % words
    inside = (places >= 1) & (places < lengths - 1)
    return x.gather(1, torch.where(inside, moved, places))
