"""Sets of labelled texts, and how texts become words or tokens."""

import ast
import re
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from fcl_flower.core.errors import ConfigError, config_error
from fcl_flower.data.datasets import Dataset, Split
from fcl_flower.data.partition import train_valid_split
from fcl_flower.data.tables import read_texts
from fcl_flower.models.pretrained import load_tokenizer

EMPTY = "<empty>"
"""The only word of a document without words; `words` never finds it in a text."""

WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*|[?!]")

Documents: TypeAlias = tuple[str, ...]
"""Texts as read; a tokenizer splits them, into `words` or otherwise."""


class TextDataset(Dataset[Documents]):
    """Documents, at least one of each class for training.

    A class may lack test documents, as 8 of the 50 fine classes of TREC do in its
    official split.
    """

    modality = "text"


def words(text: str) -> tuple[str, ...]:
    """Split a text into lower-cased words, at least one.

    A word is a run of letters and digits of any script, with apostrophes inside;
    ``?`` and ``!`` are words too, because they tell questions and moods apart. All
    else separates words. A text without any gives `EMPTY`, so that no document has
    length 0: convolutions and means over the words need one.
    """
    plain = text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").lower()
    return tuple(WORD.findall(plain)) or (EMPTY,)


def text_split(texts: Iterable[str], labels: Sequence[int]) -> Split[Documents]:
    """Make a split of texts and their labels, one a text."""
    y = np.asarray(labels, np.int64)
    y.setflags(write=False)
    return Split(tuple(texts), y)


def label_numbers(
    labels: Iterable[tuple[int, str]], class_names: Sequence[str], where: str
) -> list[int]:
    """Index labels in ``class_names``; an error begins with ``where`` and its place."""
    indices = {name: index for index, name in enumerate(class_names)}
    numbers = []
    for at, label in labels:
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
    """Make a data set of two splits that fit together."""
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
    """Read ``train.jsonl.gz`` and ``test.jsonl.gz``; training labels are the classes.

    On each line is a JSON object with ``text`` and a label, called ``field``: a text or
    a whole number.
    """
    train, test = (list(read_texts(folder / file, field)) for file in (TRAIN, _TEST))
    class_names = tuple(sorted({label for _, _, label in train}))
    train_split, test_split = (
        text_split(
            (text for _, text, _ in rows),
            label_numbers(
                ((line, label) for line, _, label in rows),
                class_names,
                f"{folder / file}: {field} in line",
            ),
        )
        for rows, file in ((train, TRAIN), (test, _TEST))
    )
    return text_dataset(name, str(folder), train_split, test_split, class_names)


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
    """Collect docstrings labelled by the module or package they stand in.

    16 classes of about 70 to 330 docstrings of at least 4 words, a quarter of each
    class as test documents. No two documents have the same words, and words that
    occur under two labels are in none. The numbers differ a little from one version
    of Python to the next, so a result belongs to a version.
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
        """Convert texts to token ids, int64, shape (N, tokens of the longest).

        Shorter ones are padded with 0 at the end.
        """

    @override
    def __hash__(self) -> int:
        """Tell two tokenizers apart in a cache."""


class EncoderTokenizer:
    """The tokenizer of a pre-trained encoder.

    A token id is one more than the encoder's own, so that 0 is padding whatever the
    encoder pads with.
    """

    def __init__(self, tokenizer: Any, max_tokens: int) -> None:  # noqa: ANN401 - theirs
        """Take the encoder's tokenizer, and how many tokens a text may have."""
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens

    def token_ids(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """Cut texts that are too long; the encoder's special tokens are around them."""
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
    """Load the tokenizer of an encoder; later calls return the same object.

    A text has at most ``max_tokens``, special ones included, at least 3.
    """
    tokenizer = load_tokenizer(encoder)
    if max_tokens > tokenizer.model_max_length:
        raise config_error(
            "max_tokens",
            max_tokens,
            f"at most the {tokenizer.model_max_length} that {encoder!r} reads",
        )
    return EncoderTokenizer(tokenizer, max_tokens)
