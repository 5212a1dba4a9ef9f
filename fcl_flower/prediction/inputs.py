"""Conversion of raw samples, as arrays, texts or files, to the inputs of a network."""

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

MODALITIES: dict[str, type[Dataset]] = {
    dataset.modality: dataset for dataset in ENDINGS
}


@dataclass(frozen=True, slots=True)
class InputReader:
    """A reader of a user's raw samples; it says what is wrong with them.

    Attributes:
        modality: modality of the run's data.
        input_shape: shape of the network's inputs.
        scaled: images from files are scaled to the network's size, as clients' own
            files are.
        normalisation: the run's normalisation of pixels.
    """

    modality: str
    input_shape: tuple[int, ...]
    scaled: bool
    normalisation: Normalisation

    @property
    def dataset_type(self) -> type[Dataset]:
        """The class of the run's data."""
        return MODALITIES[self.modality]

    def read(self, path: Path, columns: Sequence[str], form: str = "") -> RawSamples:
        """Read a file, or a folder of images, without labels.

        ``form`` is the ending to assume for a file without one.

        Raises:
            ConfigError: one sentence names the file, the line and what was expected.
        """
        shape = self.input_shape
        if self.modality == "images" and not self.scaled:
            shape = (*shape[:1], 0, 0)
        return read_raw(path, self.dataset_type, shape, columns, form)

    def samples(self, x: object) -> Any:  # noqa: ANN401 - an array, or texts
        """Check samples that are in memory: an array, or a sequence of texts.

        Raises:
            ConfigError: the samples are of another kind or shape than the network
                takes.
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
        samples = array_samples(self.dataset_type, array, "x")
        if self.modality != "images" and samples.shape[1:] != self.input_shape:
            shape = ", ".join(map(str, self.input_shape))
            raise config_error("x", f"shape {samples.shape}", f"(N, {shape})")
        return samples

    def to_inputs(self, samples: Any, tokenizer: Tokenizer | None) -> torch.Tensor:  # noqa: ANN401
        """Convert raw samples to a tensor of shape ``(N, *input_shape)``.

        Images of several sizes are a list of arrays.
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


def unknown_words(texts: Sequence[str], vectors: WordVectors) -> Iterator[str]:
    """Yield the words that have no vector yet, sorted."""
    yield from sorted(
        {w for text in texts for w in words(text)} - vectors.numbers.keys()
    )
