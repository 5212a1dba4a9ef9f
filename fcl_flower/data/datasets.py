"""Data sets in memory: labelled samples of one modality, and variants of data sets.

A variant takes its samples from other data sets. It holds test samples out of the
training samples, turns images, permutes labels, or joins several data sets.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, Generic

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeVar

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.partition import Indices, train_valid_split

X_co = TypeVar("X_co", covariant=True, default=Any)
"""The type of the samples of a split: an array, or a tuple of texts."""

HELD_OUT = "held-out:"
"""The prefix of a name whose test samples are taken from the training samples."""

HELD_OUT_FRACTION = 0.2
"""The fraction of each class's training samples that is held out for testing.

It is small, so that training has nearly as many samples as without it.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Split(Generic[X_co]):
    """A split of a data set: samples and labels, both read-only.

    Attributes:
        x: N samples.
        y: int64, shape (N,), labels from 0.
    """

    x: X_co
    y: npt.NDArray[np.int64]

    def take(self, indices: Indices) -> "Split[X_co]":
        """Select samples by index."""
        x: Any = self.x
        selected = tuple(x[i] for i in indices) if isinstance(x, tuple) else x[indices]
        return _split_of(selected, self.y[indices])


@dataclass(frozen=True, eq=False)
class Dataset(Generic[X_co]):
    """A data set with its own split into training and test samples.

    Its subclasses are `ImageDataset`, `TimeSeriesDataset`, `TabularDataset` and
    `TextDataset`. The training split has each class.
    """

    modality: ClassVar[str]

    name: str
    train: Split[X_co]
    test: Split[X_co]
    class_names: tuple[str, ...]

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    def split(self, name: str) -> Split[X_co]:
        """Return the test split for ``test``, the training split for any other name."""
        return self.test if name == "test" else self.train


_VARIANT = re.compile(r"(?:held-out|(?:rotated|relabelled)-(?:0|[1-9]\d{0,8})):(.*)")


def variant_of(name: str) -> str | None:
    """Find the data set that a variant is made of: NAME for ``rotated-90:NAME``.

    Returns None if the name is no variant's.
    """
    match = _VARIANT.fullmatch(name)
    return match[1] if match else None


def check_source(name: str) -> None:
    """Refuse a name that is neither ``NAME`` nor ``NAME:FIELD``."""
    if not re.fullmatch(r"\w[\w.-]*(:\w+)?", name):
        raise ConfigError(
            f"dataset: got {name!r}, expected digits, stdlib-docs, a file's name "
            "without folder and .npz, a folder's name, FOLDER:FIELD, or hub:NAME"
        )


def derive_dataset(name: str, whole: Dataset) -> Dataset:
    """Make the variant of a data set that a name asks for."""
    if name.startswith(HELD_OUT):
        return _hold_out(name, whole)
    kind, _, number = name.partition(":")[0].partition("-")
    return (_rotate if kind == "rotated" else _relabel)(name, int(number), whole)


def _hold_out(name: str, whole: Dataset) -> Dataset:
    """Take a fifth of each class's training samples for testing.

    They are the same for every seed of a run. They serve to choose settings without
    the test samples that results are reported on.
    """
    y = whole.train.y
    counts = np.bincount(y, minlength=whole.num_classes)
    if counts.min() < 2:
        raise ConfigError(
            f"dataset: got {name!r} with one training sample of class "
            f"{whole.class_names[int(counts.argmin())]!r}, expected two or more, as "
            "one is held out"
        )
    parts = train_valid_split(y, HELD_OUT_FRACTION, np.random.default_rng(0))
    train, test = map(whole.train.take, parts)
    return type(whole)(name, train, test, whole.class_names)


def _relabel(name: str, places: int, whole: Dataset) -> Dataset:
    """Give each class the name of the class ``places`` behind it, cyclically.

    With ``scenario.merge_labels`` classes of one name are one class. Then the right
    answer for one set is wrong for the other: concept shift by permuted labels, as in
    clustered federated learning (Sattler et al., TNNLS 2020).
    """
    if not 0 < places < whole.num_classes:
        raise ConfigError(
            f"dataset: got {name!r}, expected relabelled-N with N from 1 to "
            f"{whole.num_classes - 1}, below the number of classes"
        )
    names = whole.class_names
    return type(whole)(
        name, whole.train, whole.test, (*names[places:], *names[:places])
    )


def _rotate(name: str, degrees: int, whole: Dataset) -> Dataset:
    """Rotate images anticlockwise by 90, 180 or 270 degrees.

    In IFCA's experiments (Ghosh et al., NeurIPS 2020) clusters of clients differ by
    these rotations.
    """
    if whole.modality != "images":
        expected = f"images, not {whole.modality}"
        raise ConfigError(f"dataset: got {name!r}, expected {expected}")
    if degrees not in (90, 180, 270):
        raise ConfigError(
            f"dataset: got {name!r}, expected rotated-90, rotated-180 or rotated-270"
        )
    train, test = (
        _split_of(np.ascontiguousarray(np.rot90(s.x, degrees // 90, (1, 2))), s.y)
        for s in (whole.train, whole.test)
    )
    return type(whole)(name, train, test, whole.class_names)


def unite(name: str, members: Sequence[Dataset]) -> Dataset:
    """Join data sets of one modality into one with the classes of all.

    The labels of a member follow the labels of the member before. A class is named by
    member and class, such as ``mnist:0``. Images are scaled bilinearly to the largest
    height and width, and become RGB if one member is.
    """
    if len({member.name for member in members}) < len(members):
        raise ConfigError(f"dataset: got {name!r}, expected different names")
    forms = [member.modality for member in members]
    if {*forms} in ({"time-series"}, {"tabular"}):
        forms = [f"shape {member.train.x.shape[1:]}" for member in members]
    if len({*forms}) > 1:
        pairs = zip(forms, members, strict=True)
        different = " and ".join(f"{form} in {member.name!r}" for form, member in pairs)
        raise ConfigError(
            f"dataset: got {name!r} with {different}, expected the same in all of them"
        )
    return type(members[0])(
        name,
        _join([member.train for member in members], members),
        _join([member.test for member in members], members),
        tuple(f"{m.name}:{label}" for m in members for label in m.class_names),
    )


def _join(splits: Sequence[Split], members: Sequence[Dataset]) -> Split:
    starts = np.cumsum([0, *(member.num_classes for member in members)])[:-1]
    y = np.concatenate([s.y + start for s, start in zip(splits, starts, strict=True)])
    parts = [split.x for split in splits]
    if members[0].modality == "text":
        return _split_of(tuple(chain.from_iterable(parts)), y)
    if members[0].modality == "images":
        # Imported late, since it loads torch and is needed by united images alone.
        from fcl_flower.data.images import resized

        height, width = (max(x.shape[axis] for x in parts) for axis in (1, 2))
        if len({x.dtype for x in parts}) > 1:
            parts = [fractions(x) for x in parts]
        parts = [resized(x, height, width) for x in parts]
        if len({x.ndim for x in parts}) > 1:
            parts = [x if x.ndim == 4 else x[..., None].repeat(3, -1) for x in parts]
    return _split_of(np.concatenate(parts), y)


def fractions(x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Convert pixels to float32 in [0, 1]; pixels of uint8 are divided by 255."""
    return x.astype(np.float32) / np.float32(255 if x.dtype == np.uint8 else 1)


def _split_of(x: Any, y: npt.NDArray[np.int64]) -> Split:  # noqa: ANN401 - as above
    for part in (x, y):
        if isinstance(part, np.ndarray):
            part.setflags(write=False)
    return Split(x, y)
