"""Conversion of raw samples, as arrays, texts or files, to the inputs of a network."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fcl_flower.core.errors import config_error
from fcl_flower.data.arrays import array_samples
from fcl_flower.data.images import to_tensor
from fcl_flower.data.local.formats import ENDINGS, RawSamples, read_raw
from fcl_flower.data.tables import checked_text
from fcl_flower.data.texts import Tokenizer
from fcl_flower.setup.build import Built

MODALITIES = {dataset.modality: dataset for dataset in ENDINGS}


@dataclass(frozen=True, slots=True)
class InputReader:
    """A reader of a user's raw samples, which refuses samples with a reason."""

    run: Built

    def read(self, path: Path, columns: Sequence[str], form: str = "") -> RawSamples:
        """Read a file, or a folder of images, without labels.

        Images are scaled to the network's size if the clients' own files are. ``form``
        is the ending to assume for a file without one.

        Raises:
            ConfigError: one sentence names the file, the line and what was expected.
        """
        spec = self.run.spec
        shape = spec.input_shape
        if spec.modality == "images" and not spec.local_data:
            shape = (*shape[:1], 0, 0)
        return read_raw(path, MODALITIES[spec.modality], shape, columns, form)

    def samples(self, x: object) -> Any:  # noqa: ANN401 - an array, or texts
        """Check samples in memory: an array, or a sequence of texts.

        Raises:
            ConfigError: the samples are of another kind or shape than the network
                takes.
        """
        modality, input_shape = self.run.spec.modality, self.run.spec.input_shape
        if modality == "text":
            texts = [x] if isinstance(x, str) else x
            if not isinstance(texts, Sequence) or not all(
                isinstance(text, str) for text in texts
            ):
                raise config_error("x", type(x).__name__, "a text, or a list of texts")
            return tuple(checked_text(text, "x: a text") for text in texts)
        array = np.asarray(x)
        if array.dtype == object:
            raise config_error("x", type(x).__name__, "an array of numbers")
        samples = array_samples(MODALITIES[modality], array, "x")
        if modality != "images" and samples.shape[1:] != input_shape:
            shape = ", ".join(map(str, input_shape))
            raise config_error("x", f"shape {samples.shape}", f"(N, {shape})")
        return samples

    def to_inputs(self, samples: Any, tokenizer: Tokenizer | None) -> torch.Tensor:  # noqa: ANN401
        """Convert raw samples to a tensor of shape ``(N, *input_shape)``.

        Images of several sizes are a list of arrays.
        """
        if self.run.spec.modality == "text":
            assert tokenizer is not None  # a run of texts has one
            return torch.from_numpy(tokenizer.token_ids(samples))
        if self.run.spec.modality != "images":
            return torch.from_numpy(np.array(samples))
        how = self.run.spec.input_shape, self.run.normalisation
        if isinstance(samples, list):
            return torch.cat([to_tensor(x[None], *how) for x in samples])
        return to_tensor(samples, *how)
