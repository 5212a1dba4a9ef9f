"""What one file, or one folder of images, holds before classes are numbered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.datasets.base import Split


@dataclass(frozen=True, slots=True, eq=False)
class FileSamples:
    """Samples with their labels by name; read-only.

    Attributes:
        where: what an error calls the file.
        x: the samples, as a `Split` has them.
        names: the labels that occur, sorted.
        codes: int64, shape (N,), index of each sample's label in ``names``.
        unit: what a sample is in the file, such as ``line``.
        locations: which of them each sample is.
        columns: names of the numbers of a sample, sorted; empty where they have none.
    """

    where: str
    x: Any
    names: tuple[str, ...]
    codes: npt.NDArray[np.int64]
    unit: str
    locations: Sequence[object]
    columns: tuple[str, ...] = ()

    def location(self, label: str) -> str:
        """Return where the first sample of a label that occurs stands."""
        first = int(np.argmax(self.codes == self.names.index(label)))
        return f"{self.where}: {self.unit} {self.locations[first]}"

    def split(self, numbers: Mapping[str, int]) -> Split:
        """Return the samples with numbers for labels; knows all that occur."""
        y = np.array([numbers[name] for name in self.names], np.int64)[self.codes]
        y.setflags(write=False)
        return Split(self.x, y)


def coded(labels: Sequence[str]) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """Return the labels that occur, sorted, and the index of each label in them."""
    names = tuple(sorted(set(labels)))
    codes = {name: code for code, name in enumerate(names)}
    return names, np.array([codes[label] for label in labels], np.int64)


def checked_label(label: str, where: str) -> str:
    """Return a label that can be printed.

    Args:
        label: as it stands in the file.
        where: what an error says before it.

    Raises:
        ConfigError: it is empty, or has characters that cannot be printed.
    """
    if not label or not label.isprintable():
        raise ConfigError(f"{where}: label is {label!r:.60}, expected a printable text")
    return label
