"""What turns texts into numbers: a table of words, or a tokenizer."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from typing_extensions import override


class Numbering(Protocol):
    """Numbers what a text is made of, in the way that a model expects."""

    def numbered(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return texts as numbers, padded with 0 at the end.

        Args:
            texts: N of them, as read.

        Returns:
            int64, shape (N, numbers of the longest text).
        """

    @override
    def __hash__(self) -> int:
        """Return what tells two of them apart in a cache."""
