"""Data sets of labelled texts, and the words and tokens of texts."""

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
"""The only word of a document without words; no text contains it."""

WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*|[?!]")

Documents: TypeAlias = tuple[str, ...]
"""The texts of a split as read; a tokenizer splits them, into `words` or otherwise."""


class TextDataset(Dataset[Documents]):
    """A data set of documents, with each class in the training split.

    A class may lack test documents, as 8 of TREC's 50 fine classes do in its official
    split.
    """

    modality = "text"


def words(text: str) -> tuple[str, ...]:
    """Split a text into lower-cased words, at least one.

    A word is a run of letters and digits of any script, with apostrophes inside. ``?``
    and ``!`` are words, too, because they tell questions and moods apart. All other
    characters separate words. A text without words gives `EMPTY`, since convolutions
    and means over the words need at least one.
    """
    plain = text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").lower()
    return tuple(WORD.findall(plain)) or (EMPTY,)


def text_split(texts: Iterable[str], labels: Sequence[int]) -> Split[Documents]:
    """Make a split of texts with one label each."""
    y = np.asarray(labels, np.int64)
    y.setflags(write=False)
    return Split(tuple(texts), y)


def label_numbers(
    labels: Iterable[tuple[int, str]], class_names: Sequence[str], where: str
) -> list[int]:
    """Convert labels to indices in ``class_names``.

    Args:
        labels: each label with its place, such as its line.
        class_names: names of the classes.
        where: beginning of an error, before the place.
    """
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
    """Make a data set of two splits, and check that they fit together."""
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

    Each line holds a JSON object with ``text`` and a label under ``field``, which is a
    text or a whole number.
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


# Every CPython from 3.11 on has these modules, even if it is packaged in parts. None
# needs a display, is deprecated, or is a file only in some versions.
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
    """Collect the standard library's docstrings, labelled by module or package.

    There are 16 classes of about 70 to 330 docstrings of at least 4 words. A quarter of
    each class are test documents. No two documents have the same words; documents with
    the same words under two labels are left out. The counts depend a little on the
    version of Python, so a result belongs to a version.
    """
    return _documents(Path(sysconfig.get_path("stdlib")))


# Parsing all these files takes seconds, and always has the same result.
@lru_cache(maxsize=1)
def _documents(folder: Path) -> TextDataset:
    homes: dict[tuple[str, ...], set[int]] = {}
    texts: dict[tuple[str, ...], str] = {}
    for label, module in enumerate(_MODULES):
        for text in _docstrings(folder, module):
            document = words(text)
            if len(document) >= _FEWEST_WORDS:
                homes.setdefault(document, set()).add(label)
                texts.setdefault(document, text)
    unique = [document for document, labels in homes.items() if len(labels) == 1]
    y = np.array([label for document in unique for label in homes[document]], np.int64)
    counts = np.bincount(y, minlength=len(_MODULES))
    if counts.min() < _FEWEST_TEXTS:
        raise ConfigError(
            f"dataset: got stdlib-docs with {counts.min()} docstrings of "
            f"{_MODULES[counts.argmin()]} in {folder}, expected at least "
            f"{_FEWEST_TEXTS}: a standard library with its .py files, not zipped or "
            "stripped"
        )
    # The split belongs to the data set, so the run's seed does not change it.
    train, test = (
        text_split((texts[unique[at]] for at in chosen), y[chosen].tolist())
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
    """A tokenizer, which converts texts to the token ids that a model expects."""

    def token_ids(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """Convert texts to token ids, int64, shape (N, tokens of the longest).

        Shorter texts are padded with 0 at the end.
        """

    @override
    def __hash__(self) -> int:
        """Hash the tokenizer, which is part of a cache's key."""


class EncoderTokenizer:
    """The tokenizer of a pre-trained encoder.

    A token id is one more than the encoder's own id, so that 0 is always padding.
    """

    def __init__(self, tokenizer: Any, max_tokens: int) -> None:  # noqa: ANN401 - theirs
        """Take the encoder's tokenizer and the largest number of tokens of a text."""
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens

    def token_ids(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """Convert texts to token ids between special tokens; long texts are cut."""
        if not texts:
            return np.zeros((0, 0), np.int64)
        token_ids = self._tokenizer(
            list(texts), truncation=True, max_length=self._max_tokens
        )["input_ids"]
        padded = np.zeros((len(token_ids), max(map(len, token_ids))), np.int64)
        for row, ids in zip(padded, token_ids, strict=True):
            row[: len(ids)] = np.asarray(ids) + 1
        return padded


@lru_cache(maxsize=4)
def encoder_tokenizer(encoder: str, max_tokens: int) -> EncoderTokenizer:
    """Load the tokenizer of an encoder; later calls return the same object.

    ``max_tokens``, at least 3, limits a text with its special tokens.
    """
    tokenizer = load_tokenizer(encoder)
    if max_tokens > tokenizer.model_max_length:
        raise config_error(
            "max_tokens",
            max_tokens,
            f"at most the {tokenizer.model_max_length} that {encoder!r} reads",
        )
    return EncoderTokenizer(tokenizer, max_tokens)
