"""Texts of the Hugging Face Hub: which columns they are in, and the set they make."""

from typing import TYPE_CHECKING, Any

from fcl_flower.data.dataset import Split
from fcl_flower.data.textset import (
    Documents,
    TextSet,
    checked_text_set,
    label_numbers,
    text_split,
)
from fcl_flower.errors import ConfigError

if TYPE_CHECKING:
    from datasets import Dataset

PLAIN_LABEL = "label"
"""What a column of labels has to be called that is not one of class labels."""


def text_columns(rows: "Dataset") -> list[str]:
    """Return ``text`` alone where it is a column of texts, otherwise all of those."""
    texts = [key for key in _values(rows, "string") if key != PLAIN_LABEL]
    return ["text"] if "text" in texts else texts


def label_columns(rows: "Dataset") -> list[str]:
    """Return the column called ``label`` if it holds texts or whole numbers."""
    return [key for key in _values(rows, "string", "int") if key == PLAIN_LABEL]


def _values(rows: "Dataset", *kinds: str) -> list[str]:
    """Return the columns whose values are of one of the kinds, of any width."""
    from datasets import Value

    return [
        key
        for key, feature in rows.features.items()
        if isinstance(feature, Value) and any(kind in feature.dtype for kind in kinds)
    ]


def text_set(
    name: str, train: "Dataset", test: "Dataset", text: str, label: str
) -> TextSet:
    """Return the set of texts.

    Args:
        name: what the set is called from now on.
        train: the rows of the training split.
        test: the rows of the test split.
        text: the column of texts.
        label: the column of class labels, or of texts or whole numbers, whose sorted
            training values are then the classes.

    Raises:
        ConfigError: a row lacks text or label, or a test label never occurs in
            training.
    """
    published = getattr(train.features[label], "names", None)
    class_names = tuple(published or sorted(set(map(str, train[label]))))

    def split(key: str, rows: "Dataset") -> Split[Documents]:
        texts, labels = (
            _column(rows, column, f"{name}: {key}") for column in (text, label)
        )
        if not published:
            where = f"{name}: {label} in {key} row"
            labels = label_numbers(map(str, labels), class_names, where)
        return text_split(texts, labels)

    return checked_text_set(
        name, name, split("train", train), split("test", test), class_names
    )


def _column(rows: "Dataset", key: str, where: str) -> list[Any]:
    """Return the values of a column without gaps."""
    values = list(rows[key])
    if None in values:
        raise ConfigError(
            f"{where} row {values.index(None) + 1} has no {key}, expected one in every "
            "row."
        )
    return values
