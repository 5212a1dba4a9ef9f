"""A text classification set in memory, checked once where it enters."""

import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.datasets.base import Dataset, Split

EMPTY = "<empty>"
"""The only word of a document without words; `words` never finds it in a text."""

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*|[?!]")


Documents: TypeAlias = tuple[str, ...]
"""Texts as read; a tokenizer splits them, into `words` or otherwise."""


class TextDataset(Dataset[Documents]):
    """Documents, at least one of each class for training.

    A class may lack test documents, as 8 of the 50 fine classes of TREC do in its
    official split.
    """

    modality = "text"


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text, lower-cased, at least one.

    A word is a run of letters and digits of any script, with apostrophes inside;
    ``?`` and ``!`` are words too, because they tell questions and moods apart. All
    else separates words. A text without any gives `EMPTY`, so that no document has
    length 0: convolutions and means over the words need one.
    """
    plain = text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").lower()
    return tuple(_WORD.findall(plain)) or (EMPTY,)


def text_split(texts: Iterable[str], labels: Sequence[int]) -> Split[Documents]:
    """Return a split made of texts and their labels, one a text."""
    y = np.asarray(labels, np.int64)
    y.setflags(write=False)
    return Split(tuple(texts), y)


def label_numbers(
    labels: Iterable[str], class_names: Sequence[str], where: str
) -> list[int]:
    """Return each label's index in ``class_names``.

    Args:
        labels: as read.
        class_names: the sorted labels of the training documents.
        where: what an error says before the label's number, counted from 1.

    Raises:
        ConfigError: a label is not among ``class_names``.
    """
    indices = {name: index for index, name in enumerate(class_names)}
    numbers = []
    for at, label in enumerate(labels, 1):
        if label not in indices:
            raise ConfigError(
                f"{where} {at}: got label {label!r}, expected one of the "
                f"{len(indices)} labels of the training documents"
            )
        numbers.append(indices[label])
    return numbers


def text_dataset(
    name: str,
    where: str,
    train: Split[Documents],
    test: Split[Documents],
    class_names: tuple[str, ...],
) -> TextDataset:
    """Return a data set whose two splits fit together.

    Args:
        name: as the user wrote it.
        where: what an error calls the set, such as its folder.
        train: the training split.
        test: the test split; not every class has to occur in it.
        class_names: name of each label.

    Raises:
        ConfigError: a split is empty, a label has no name, or a class has no
            training document.
    """
    for key, split in (("train", train), ("test", test)):
        if not split.x:
            raise ConfigError(f"{where}: {key} is empty, expected documents")
        low, high = split.y.min(), split.y.max()
        if low < 0 or high >= len(class_names):
            raise ConfigError(
                f"{where}: {key} has labels {low}..{high}, expected "
                f"0..{len(class_names) - 1}"
            )
    counts = np.bincount(train.y, minlength=len(class_names))
    if not counts.all():
        missing = class_names[int(counts.argmin())]
        raise ConfigError(
            f"{where}: train has no document of class {missing!r}, expected at least "
            f"one of each of the {len(class_names)} classes"
        )
    return TextDataset(name, train, test, class_names)
