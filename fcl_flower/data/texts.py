"""A text classification set in memory, checked once where it enters."""

import ast
import gzip
import json
import re
import sysconfig
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from fcl_flower.core.errors import ConfigError, refuse
from fcl_flower.data.datasets import Dataset, Split
from fcl_flower.data.partition import train_valid_split
from fcl_flower.models.pretrained import load_tokenizer

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


TRAIN = "train.jsonl.gz"
_TEST = "test.jsonl.gz"


def load_jsonl(name: str, folder: Path, field: str) -> TextDataset:
    """Return the data set in ``folder``; its classes are the sorted training labels.

    Args:
        name: what the set is called from now on.
        folder: holds ``train.jsonl.gz`` and ``test.jsonl.gz``: gzip, UTF-8, and on
            each line a JSON object with a text called ``text`` and a label.
        field: what the objects call the label, a text or a whole number.

    Raises:
        ConfigError: a file cannot be read or is empty, a line is not as described,
            or a test label never occurs in training.
    """
    train, test = (list(rows_of(folder / file, field)) for file in (TRAIN, _TEST))
    class_names = tuple(sorted({label for _, label in train}))
    train_split, test_split = (
        text_split(
            (text for text, _ in rows),
            label_numbers(
                (label for _, label in rows),
                class_names,
                f"{folder / file}: {field} in line",
            ),
        )
        for rows, file in ((train, TRAIN), (test, _TEST))
    )
    return text_dataset(name, str(folder), train_split, test_split, class_names)


def rows_of(path: Path, field: str) -> Iterator[tuple[str, str]]:
    """Yield text and label of each line.

    Args:
        path: of a file in UTF-8, with gzip where its name ends in ``.gz``.
        field: what the objects call the label, a text or a whole number.

    Raises:
        ConfigError: the file cannot be read or is empty, or a line is not a JSON
            object with a text and a label.
    """
    number = 0
    packed = path.suffix == ".gz"
    try:
        # Either is a stream of bytes, of different types.
        with cast(BinaryIO, gzip.open(path) if packed else path.open("rb")) as lines:
            for number, line in enumerate(lines, 1):
                yield _row(line, field, f"{path}: line {number}")
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(
            f"{path}: cannot be read after line {number} ({error}), expected "
            f"{'a gzip file with ' if packed else ''}one JSON object a line"
        ) from error
    if not number:
        raise ConfigError(f"{path} is empty, expected one JSON object a line")


def _row(line: bytes, field: str, where: str) -> tuple[str, str]:
    """Return text and label of one line."""
    try:
        row = json.loads(line.decode())
    # ValueError is bad UTF-8, bad JSON or an endless number; then brackets in brackets.
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{where} cannot be read ({error}), expected a JSON object in UTF-8"
        ) from error
    if not isinstance(row, dict):
        raise ConfigError(
            f"{where} is a {type(row).__name__}, expected a JSON object with the keys "
            f"text and {field}"
        )
    text = _value(row, "text", where)
    if not isinstance(text, str):
        raise ConfigError(f"{where}: text is {text!r:.60}, expected a text")
    label = _value(row, field, where)
    # True is a whole number to Python, and class names have to be printed.
    name = str(label) if type(label) in (str, int) else ""
    if not name or not name.isprintable():
        raise ConfigError(
            f"{where}: {field} is {label!r:.60}, expected a printable text or a whole "
            "number"
        )
    return text, name


def _value(row: dict[str, Any], key: str, where: str) -> Any:  # noqa: ANN401 - JSON
    """Return what a line says under ``key``."""
    if key not in row:
        raise ConfigError(
            f"{where}: got no {key}, but {', '.join(row) or 'nothing'}, expected "
            f"the key {key}"
        )
    return row[key]


# In every CPython from 3.11 on, also where the interpreter was packaged in parts:
# nothing that needs a display, is deprecated, or is a file only in some versions.
_MODULES = (
    "_pydecimal",
    "asyncio",
    "email",
    "http",
    "importlib",
    "inspect",
    "ipaddress",
    "logging",
    "mailbox",
    "multiprocessing",
    "pathlib",
    "tarfile",
    "typing",
    "unittest",
    "urllib",
    "xml",
)
_TESTS = {"test", "tests", "idle_test"}
_DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_FEWEST_WORDS = 4
_FEWEST_TEXTS = 40


def load_stdlib_docs() -> TextDataset:
    """Return docstrings labelled by the module or package they stand in.

    16 classes of about 70 to 330 docstrings of at least 4 words, a quarter of each
    class as test documents. No two documents have the same words, and words that
    occur under two labels are in none. The numbers differ a little from one version
    of Python to the next, so a result belongs to a version.

    Raises:
        ConfigError: the standard library is installed without its source files.
    """
    return _documents(Path(sysconfig.get_path("stdlib")))


# To parse all these files takes seconds, and nothing that a caller sets changes them.
@lru_cache(maxsize=1)
def _documents(folder: Path) -> TextDataset:
    homes: dict[tuple[str, ...], set[int]] = {}
    texts: dict[tuple[str, ...], str] = {}
    for label, module in enumerate(_MODULES):
        for text in _docstrings(folder, module):
            found = words(text)
            if len(found) >= _FEWEST_WORDS:
                homes.setdefault(found, set()).add(label)
                texts.setdefault(found, text)
    kept = [found for found, labels in homes.items() if len(labels) == 1]
    y = np.array([label for found in kept for label in homes[found]], np.int64)
    counts = np.bincount(y, minlength=len(_MODULES))
    if counts.min() < _FEWEST_TEXTS:
        raise ConfigError(
            f"dataset: got stdlib-docs with {counts.min()} docstrings of "
            f"{_MODULES[counts.argmin()]} in {folder}, expected at least "
            f"{_FEWEST_TEXTS}: a standard library with its .py files, not zipped or "
            "stripped"
        )
    # The split is part of the data set: the same whatever the run's seed.
    train, test = (
        text_split((texts[kept[at]] for at in chosen), y[chosen].tolist())
        for chosen in train_valid_split(y, 0.25, np.random.default_rng(0))
    )
    return text_dataset("stdlib-docs", "stdlib-docs", train, test, _MODULES)


def _docstrings(folder: Path, module: str) -> Iterator[str]:
    """Yield the docstrings of a module or package without importing it."""
    files = [folder / f"{module}.py"]
    if not files[0].is_file():
        files = sorted((folder / module).rglob("*.py"))
    for file in files:
        if _TESTS.isdisjoint(file.relative_to(folder).parts):
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, _DEFINITIONS):
                    yield ast.get_docstring(node) or ""


class Tokenizer(Protocol):
    """Turn texts into token ids, in the way that a model expects."""

    def token_ids(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return token ids, padded with 0 at the end.

        Args:
            texts: N of them, as read.

        Returns:
            int64, shape (N, tokens of the longest text).
        """

    @override
    def __hash__(self) -> int:
        """Return what tells two tokenizers apart in a cache."""


class EncoderTokenizer:
    """The tokenizer of a pre-trained encoder.

    A token id is one more than the encoder's own, so that 0 is padding whatever the
    encoder pads with.
    """

    def __init__(self, tokenizer: Any, max_tokens: int) -> None:  # noqa: ANN401 - theirs
        """Keep the encoder's tokenizer, and how many tokens a text may have."""
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens

    def token_ids(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return token ids, shape (N, tokens of the longest), padded with 0 at the end.

        The encoder's special tokens are in front and behind; a text that is too long
        is cut.
        """
        if not texts:
            return np.zeros((0, 0), np.int64)
        found = self._tokenizer(
            list(texts), truncation=True, max_length=self._max_tokens
        )["input_ids"]
        padded = np.zeros((len(found), max(map(len, found))), np.int64)
        for row, ids in zip(padded, found, strict=True):
            row[: len(ids)] = np.asarray(ids) + 1
        return padded


@lru_cache(maxsize=4)
def encoder_tokenizer(encoder: str, max_tokens: int) -> EncoderTokenizer:
    """Return the tokenizer of an encoder; later calls return the same object.

    Args:
        encoder: see `load_tokenizer`.
        max_tokens: of a text, special ones included, at least 3.

    Raises:
        ConfigError: there is no such encoder, or it reads fewer tokens.
    """
    tokenizer = load_tokenizer(encoder)
    if max_tokens > tokenizer.model_max_length:
        raise refuse(
            "max_tokens",
            max_tokens,
            f"at most the {tokenizer.model_max_length} that {encoder!r} reads",
        )
    return EncoderTokenizer(tokenizer, max_tokens)
