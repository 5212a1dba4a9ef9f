"""What turns texts into numbers: a table of words, or a tokenizer.

Texts as the token numbers of a pre-trained encoder.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from fcl_flower.core.errors import ConfigError
from fcl_flower.models.transformer.pretrained import load_tokenizer


class Tokenizer(Protocol):
    """Numbers what a text is made of, in the way that a model expects."""

    def token_ids(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return texts as numbers, padded with 0 at the end.

        Args:
            texts: N of them, as read.

        Returns:
            int64, shape (N, numbers of the longest text).
        """

    @override
    def __hash__(self) -> int:
        """Return what tells two of them apart in a cache."""


class EncoderTokenizer:
    """Numbers texts for the encoder of one name.

    A number is one more than the encoder's own, so that 0 is padding whatever the
    encoder pads with.
    """

    def __init__(self, tokenizer: Any, longest: int) -> None:  # noqa: ANN401 - theirs
        """Keep a tokenizer, and how many tokens a text may have at most."""
        self._tokenizer = tokenizer
        self._longest = longest

    def token_ids(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return token numbers, shape (N, longest), padded with 0 at the end.

        The encoder's special tokens are in front and behind; a text that is too long
        is cut.
        """
        if not texts:
            return np.zeros((0, 0), np.int64)
        found = self._tokenizer(list(texts), truncation=True, max_length=self._longest)[
            "input_ids"
        ]
        padded = np.zeros((len(found), max(map(len, found))), np.int64)
        for row, numbers in zip(padded, found, strict=True):
            row[: len(numbers)] = np.asarray(numbers) + 1
        return padded


@lru_cache(maxsize=4)
def tokens(backbone: str, longest: int) -> EncoderTokenizer:
    """Return what numbers texts for an encoder; later calls return the same.

    Args:
        backbone: see `load_tokenizer`.
        longest: tokens of a text, special ones included, at least 3.

    Raises:
        ConfigError: there is no such encoder, or it reads fewer tokens.
    """
    tokenizer = load_tokenizer(backbone)
    if longest > tokenizer.model_max_length:
        raise ConfigError(
            f"max-tokens: {longest} is refused: expected at most the "
            f"{tokenizer.model_max_length} that {backbone!r} reads"
        )
    return EncoderTokenizer(tokenizer, longest)
