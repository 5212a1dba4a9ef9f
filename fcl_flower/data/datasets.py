"""Data sets in memory: samples of one modality with labels, their names and variants.

A variant takes its samples from other data sets: with test samples held out of the
training samples, with turned images or permuted labels, or several sets in one.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeAlias

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeVar, override

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.partition import Indices, train_valid_split

X_co = TypeVar("X_co", covariant=True, default=Any)
"""Samples, one after the other: an array, or a tuple of texts."""

HELD_OUT = "held-out:"
"""In front of a name: test samples are taken from the training samples."""

HELD_OUT_FRACTION = 0.2
"""Of each class's training samples: few, to learn from nearly as many as later."""


@dataclass(frozen=True, slots=True, eq=False)
class Split(Generic[X_co]):
    """Samples and labels; read-only.

    Attributes:
        x: N samples.
        y: int64, shape (N,), labels from 0.
    """

    x: X_co
    y: npt.NDArray[np.int64]

    def take(self, indices: Indices) -> "Split[X_co]":
        """Select samples by index."""
        return _split_of(_at(self.x, indices), self.y[indices])


@dataclass(frozen=True, eq=False)
class Dataset(Generic[X_co]):
    """A data set with its own split into training and test samples.

    There are `ImageDataset`, `TimeSeriesDataset`, `TabularDataset` and `TextDataset`,
    told apart with ``isinstance``. The training split has each class.
    """

    modality: ClassVar[str]

    name: str
    train: Split[X_co]
    test: Split[X_co]
    class_names: tuple[str, ...]

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    def split(self, name: str) -> Split[X_co]:
        """Look up ``test``, or else the training split."""
        return self.test if name == "test" else self.train


@dataclass(frozen=True, slots=True)
class Source:
    """``NAME`` or ``NAME:FIELD``: a data set that is stored or built in."""

    name: str
    field: str = ""

    @override
    def __str__(self) -> str:
        return f"{self.name}:{self.field}" if self.field else self.name


@dataclass(frozen=True, slots=True)
class HubSource:
    """``hub:PATH``: a data set of the Hugging Face Hub or a local folder."""

    path: str

    @override
    def __str__(self) -> str:
        return f"hub:{self.path}"


@dataclass(frozen=True, slots=True)
class Union:
    """``A+B``: the classes of several data sets side by side."""

    members: tuple[Source | HubSource, ...]

    @override
    def __str__(self) -> str:
        return "+".join(map(str, self.members))


@dataclass(frozen=True, slots=True)
class Derived:
    """``KIND:NAME`` or ``KIND-NUMBER:NAME``: a variant of another data set."""

    kind: str
    number: int | None
    of: "DatasetName"

    @override
    def __str__(self) -> str:
        number = "" if self.number is None else f"-{self.number}"
        return f"{self.kind}{number}:{self.of}"


DatasetName: TypeAlias = Source | HubSource | Union | Derived


def parse_name(text: str) -> DatasetName:
    """Parse the name of a data set; ``str`` of the result gives the text again."""
    found = re.fullmatch(
        r"(?:(held-out)|(rotated|relabelled)-(0|[1-9]\d{0,8})):(.*)", text
    )
    if found:
        plain, numbered, number, of = found.groups()
        return Derived(
            plain or numbered, int(number) if number else None, parse_name(of)
        )
    members = tuple(map(_parse_source, text.split("+")))
    return Union(members) if len(members) > 1 else members[0]


def _parse_source(text: str) -> Source | HubSource:
    if text.startswith("hub:"):
        return HubSource(text.removeprefix("hub:"))
    if not re.fullmatch(r"\w[\w.-]*(:\w+)?", text):
        raise ConfigError(
            f"dataset: got {text!r}, expected digits, stdlib-docs, a file's name "
            "without folder and .npz, a folder's name, FOLDER:FIELD, or hub:NAME"
        )
    name, _, field = text.partition(":")
    return Source(name, field)


def derive_dataset(name: Derived, whole: Dataset) -> Dataset:
    """Make the variant of a data set that a name asks for."""
    return _VARIANTS[name.kind](str(name), name.number or 0, whole)


def _hold_out(name: str, _: int, whole: Dataset) -> Dataset:
    """Take a fifth of each class's training samples for testing.

    They are the same whatever the run's seed. So settings are chosen without a look at
    what a table shows.
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
    """Call each class as the one ``places`` behind it, in a circle.

    Where classes of one name are one class (``scenario.merge_labels``), what is right
    for the one set is wrong for the other: concept shift by permuted labels, as in
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
    """Turn images anticlockwise.

    Clusters of clients differ so in IFCA's experiments (Ghosh et al., NeurIPS 2020),
    by 0, 90, 180 and 270 degrees.
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


_VARIANTS: Mapping[str, Callable[[str, int, Dataset], Dataset]] = MappingProxyType(
    {"held-out": _hold_out, "rotated": _rotate, "relabelled": _relabel}
)


def unite(name: str, members: Sequence[Dataset]) -> Dataset:
    """Join data sets of one modality into one with the classes of all.

    The labels of a member follow those of the member before. A class is called by
    member and class, such as ``mnist:0``. Images get the largest height and width,
    by bilinear interpolation, and are RGB where one member is.
    """
    if len({member.name for member in members}) < len(members):
        raise ConfigError(f"dataset: got {name!r}, expected different names")
    _refuse_unlike(name, {member.name: member.modality for member in members})
    first = members[0]
    if first.modality not in ("images", "text"):
        shapes = {m.name: f"shape {m.train.x.shape[1:]}" for m in members}
        _refuse_unlike(name, shapes)
    return type(first)(
        name,
        _join([member.train for member in members], members),
        _join([member.test for member in members], members),
        tuple(f"{m.name}:{label}" for m in members for label in m.class_names),
    )


def _refuse_unlike(name: str, found: Mapping[str, str]) -> None:
    if len(set(found.values())) > 1:
        said = " and ".join(f"{what} in {member!r}" for member, what in found.items())
        raise ConfigError(
            f"dataset: got {name!r} with {said}, expected the same in all of them"
        )


def _join(splits: Sequence[Split], members: Sequence[Dataset]) -> Split:
    starts = np.cumsum([0, *(member.num_classes for member in members)])[:-1]
    y = np.concatenate([s.y + start for s, start in zip(splits, starts, strict=True)])
    parts = [split.x for split in splits]
    if members[0].modality == "text":
        return _split_of(tuple(chain.from_iterable(parts)), y)
    if members[0].modality == "images":
        parts = _alike(parts)
    return _split_of(np.concatenate(parts), y)


def _alike(parts: Sequence[npt.NDArray[np.uint8]]) -> list[npt.NDArray[np.uint8]]:
    # Imported here since it loads torch, and most data sets are one.
    from fcl_flower.data.images import resized

    height, width = (max(x.shape[axis] for x in parts) for axis in (1, 2))
    rgb = any(x.ndim == 4 for x in parts)
    same = [resized(x, height, width) for x in parts]
    return [np.repeat(x[..., None], 3, -1) if rgb and x.ndim == 3 else x for x in same]


def _at(x: Any, indices: Indices) -> Any:  # noqa: ANN401 - an array or texts
    return tuple(x[i] for i in indices) if isinstance(x, tuple) else x[indices]


def _split_of(x: Any, y: npt.NDArray[np.int64]) -> Split:  # noqa: ANN401 - as above
    for part in (x, y):
        if isinstance(part, np.ndarray):
            part.setflags(write=False)
    return Split(x, y)
