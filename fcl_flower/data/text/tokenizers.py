"""Texts as token ids: the interface, and the tokenizer of a pre-trained encoder.

The other tokenizer is `fcl_flower.data.text.word_vectors.WordVectors`.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from fcl_flower.core.errors import refuse
from fcl_flower.models.transformer.pretrained import load_tokenizer


class Tokenizer(Protocol):
    """Turn texts into token ids, in the way that a model expects."""

    def token_ids(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return token ids, padded with 0 at the end.

        Args:
            texts: N of them, as read.

        Returns:
            int64, shape (N, tokens of the longest text).
        """

    @override
    def __hash__(self) -> int:
        """Return what tells two tokenizers apart in a cache."""


class EncoderTokenizer:
    """The tokenizer of a pre-trained encoder.

    A token id is one more than the encoder's own, so that 0 is padding whatever the
    encoder pads with.
    """

    def __init__(self, tokenizer: Any, max_tokens: int) -> None:  # noqa: ANN401 - theirs
        """Keep the encoder's tokenizer, and how many tokens a text may have."""
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens

    def token_ids(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return token ids, shape (N, tokens of the longest), padded with 0 at the end.

        The encoder's special tokens are in front and behind; a text that is too long
        is cut.
        """
        if not texts:
            return np.zeros((0, 0), np.int64)
        found = self._tokenizer(
            list(texts), truncation=True, max_length=self._max_tokens
        )["input_ids"]
        padded = np.zeros((len(found), max(map(len, found))), np.int64)
        for row, ids in zip(padded, found, strict=True):
            row[: len(ids)] = np.asarray(ids) + 1
        return padded


@lru_cache(maxsize=4)
def encoder_tokenizer(encoder: str, max_tokens: int) -> EncoderTokenizer:
    """Return the tokenizer of an encoder; later calls return the same object.

    Args:
        encoder: see `load_tokenizer`.
        max_tokens: of a text, special ones included, at least 3.

    Raises:
        ConfigError: there is no such encoder, or it reads fewer tokens.
    """
    tokenizer = load_tokenizer(encoder)
    if max_tokens > tokenizer.model_max_length:
        raise refuse(
            "max_tokens",
            max_tokens,
            f"at most the {tokenizer.model_max_length} that {encoder!r} reads",
        )
    return EncoderTokenizer(tokenizer, max_tokens)
