"""Samples of any modality as the tensors that a model takes."""

import torch

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.arrays import TabularDataset, TimeSeriesDataset
from fcl_flower.data.datasets import Dataset, Split
from fcl_flower.data.images import to_tensor
from fcl_flower.data.partition import Indices
from fcl_flower.data.texts import TextDataset, Tokenizer


def to_inputs(
    source: Dataset,
    samples: Split,
    indices: Indices,
    input_shape: tuple[int, ...],
    numbering: Tokenizer | None,
) -> torch.Tensor:
    """Return some samples as a model takes them.

    Args:
        source: the data set.
        samples: one of its splits.
        indices: which of them.
        input_shape: of the model.
        numbering: numbers the texts, where the data are text.

    Returns:
        images, series or features, float32, shape ``(N, *input_shape)``; or texts,
        int64 numbers, shape (N, numbers of the longest), padded with 0 at the end.

    Raises:
        ConfigError: the model takes no such samples, or texts lack word vectors.
    """
    if isinstance(source, TextDataset):
        if numbering is None:
            raise ConfigError(
                f"dataset: {source.name!r} is text, which needs word vectors"
            )
        return torch.from_numpy(numbering.token_ids([samples.x[i] for i in indices]))
    if isinstance(source, TimeSeriesDataset | TabularDataset):
        check_shape(source, input_shape)
        return torch.from_numpy(samples.x[indices])
    return to_tensor(samples.x[indices], input_shape)


def check_shape(
    source: TimeSeriesDataset | TabularDataset, input_shape: tuple[int, ...]
) -> None:
    """Refuse a model for another shape: unlike images, nothing would bring them to it.

    Raises:
        ConfigError: ``input_shape`` is not the shape of the samples.
    """
    shape = source.train.x.shape[1:]
    if shape != input_shape:
        raise ConfigError(
            f"model: got input shape {input_shape}, expected {shape} for the samples "
            f"of {source.name!r}"
        )
