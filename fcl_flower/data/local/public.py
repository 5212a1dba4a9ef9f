"""The server's public samples, where clients have local data."""

from pathlib import Path

import numpy as np
import torch

from fcl_flower.data.datasets.base import Split
from fcl_flower.data.examples import PublicExamples
from fcl_flower.data.inputs import to_inputs
from fcl_flower.data.local.files import read_samples
from fcl_flower.data.local.task import LocalDataSpec
from fcl_flower.data.text.tokenizers import Tokenizer


def load_public_file(
    path: Path, wanted: LocalDataSpec, numbering: Tokenizer | None
) -> PublicExamples:
    """Return what a file holds, in a format of local data.

    A label that is none of the run's is a class that no client has.

    Args:
        path: of a file, or of a folder of images.
        wanted: what the run expects of local data, with labels.
        numbering: numbers the texts, where the data are text.

    Raises:
        ConfigError: the file is missing or not as expected.
    """
    found = read_samples(path, wanted.dataset_type, wanted.input_shape)
    split = Split(found.x, found.codes)
    data = wanted.dataset_type("public", split, split, found.names)
    everyone = np.arange(len(found.codes))
    x = to_inputs(data, split, everyone, wanted.input_shape, numbering)
    head = {label: index for index, label in enumerate(wanted.labels)}
    indices = np.array([head.get(name, -1) for name in found.names], np.int64)
    y, classes = indices[found.codes], found.codes.copy()
    return PublicExamples(x, torch.from_numpy(y), torch.from_numpy(classes))
