"""Raw samples, as arrays, texts or files, brought to the inputs of a network."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fcl_flower.core.errors import config_error
from fcl_flower.data.arrays import array_samples
from fcl_flower.data.datasets import Dataset
from fcl_flower.data.images import to_tensor
from fcl_flower.data.local.formats import ENDINGS, RawSamples, read_raw
from fcl_flower.data.tables import checked_text
from fcl_flower.data.texts import Tokenizer, words
from fcl_flower.data.word_vectors import WordVectors
from fcl_flower.models.normalisation import Normalisation

MODALITIES: dict[str, type[Dataset]] = {one.modality: one for one in ENDINGS}


@dataclass(frozen=True, slots=True)
class InputReader:
    """Reads what people have, and says what is wrong with it.

    Attributes:
        modality: of the run's data.
        input_shape: of the network.
        scaled: images of files are brought to its size as clients' own files are.
        normalisation: of the pixels of images, that of the run.
    """

    modality: str
    input_shape: tuple[int, ...]
    scaled: bool
    normalisation: Normalisation

    @property
    def dataset_type(self) -> type[Dataset]:
        """Look up the kind of data."""
        return MODALITIES[self.modality]

    def read(self, path: Path, columns: Sequence[str], form: str = "") -> RawSamples:
        """Read a file, or a folder of images, without labels.

        ``form`` is the ending that the file stands for, where it has none.

        Raises:
            ConfigError: one sentence names the file, the line and what was expected.
        """
        shape = self.input_shape
        if self.modality == "images" and not self.scaled:
            shape = (*shape[:1], 0, 0)
        return read_raw(path, self.dataset_type, shape, columns, form)

    def samples(self, x: object) -> Any:  # noqa: ANN401 - an array, or texts
        """Take samples that are in memory: an array, or a sequence of texts.

        Raises:
            ConfigError: they are of another kind or shape than the network takes.
        """
        if self.modality == "text":
            texts = [x] if isinstance(x, str) else x
            if not isinstance(texts, Sequence) or not all(
                isinstance(text, str) for text in texts
            ):
                raise config_error("x", type(x).__name__, "a text, or a list of texts")
            return tuple(checked_text(text, "x: a text") for text in texts)
        array = np.asarray(x)
        if array.dtype == object:
            raise config_error("x", type(x).__name__, "an array of numbers")
        found = array_samples(self.dataset_type, array, "x")
        if self.modality != "images" and found.shape[1:] != self.input_shape:
            one = ", ".join(map(str, self.input_shape))
            raise config_error("x", f"shape {found.shape}", f"(N, {one})")
        return found

    def to_inputs(self, samples: Any, tokenizer: Tokenizer | None) -> torch.Tensor:  # noqa: ANN401
        """Convert raw samples to a tensor of shape ``(N, *input_shape)``.

        Images of several sizes come as a list of arrays.
        """
        if self.modality == "text":
            assert tokenizer is not None  # a run of texts has one
            return torch.from_numpy(tokenizer.token_ids(samples))
        if self.modality != "images":
            return torch.from_numpy(np.array(samples))
        how = self.input_shape, self.normalisation
        if isinstance(samples, list):
            return torch.cat([to_tensor(x[None], *how) for x in samples])
        return to_tensor(samples, *how)


def unknown_words(texts: Sequence[str], known: WordVectors) -> Iterator[str]:
    """Yield the words that have no vector yet, sorted."""
    yield from sorted({w for text in texts for w in words(text)} - known.numbers.keys())
