"""A data set in memory: samples of one modality, each with a label."""

from dataclasses import dataclass
from typing import Any, ClassVar, Generic

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeVar

X_co = TypeVar("X_co", covariant=True, default=Any)
"""Samples, one after the other: an array, or a tuple of texts."""


@dataclass(frozen=True, slots=True, eq=False)
class Split(Generic[X_co]):
    """Samples and labels; read-only.

    Attributes:
        x: N samples.
        y: int64, shape (N,), labels from 0.
    """

    x: X_co
    y: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Dataset(Generic[X_co]):
    """A data set with its own split into training and test samples.

    There are `ImageDataset`, `TimeSeriesDataset`, `TabularDataset` and `TextDataset`,
    told apart with ``isinstance``.

    Attributes:
        modality: ``images``, ``time-series``, ``tabular`` or ``text``.
        name: as the user wrote it.
        train: the training split, with at least one sample of each class.
        test: the test split.
        class_names: name of each label.
    """

    modality: ClassVar[str]

    name: str
    train: Split[X_co]
    test: Split[X_co]
    class_names: tuple[str, ...]

    @property
    def num_classes(self) -> int:
        """Return the number of classes."""
        return len(self.class_names)
