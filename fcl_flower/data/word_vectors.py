"""The table of word vectors from which a text model starts."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fcl_flower.core.errors import ConfigError, require_extra
from fcl_flower.core.schedule import derive
from fcl_flower.data.datasets import Dataset
from fcl_flower.data.tables import open_binary
from fcl_flower.data.texts import words

Vectors: TypeAlias = Mapping[str, npt.NDArray[np.float32]]
"""The vector of each word, shape (D,) with one D for all."""


def find_vectors(file: str, data_root: Path) -> Path:
    """Find a file at its path, in ``data_root``, or in its folder ``wordvectors``."""
    # Joining a folder and an absolute path gives the absolute path.
    paths = [
        folder / Path(file).expanduser()
        for folder in (Path(), data_root, data_root / "wordvectors")
    ]
    for path in paths:
        if path.is_file():
            return path
    raise ConfigError(
        f"word-vectors: got {file!r}, expected a file of word vectors, but there is "
        f"none at {' or '.join(dict.fromkeys(map(str, paths)))}"
    )


def read_vectors(path: Path, vocabulary: Sequence[str]) -> Vectors:
    """Read the vectors of the vocabulary's words that a file has.

    The file's name tells its format:

    - ``.kv``: gensim's own format, best for large tables, because it is mapped into
      memory instead of read. Make it once with
      ``KeyedVectors.load_word2vec_format(...).save("mine.kv")``. It is a pickle,
      which can run any code: open only your own.
    - ``.bin`` and ``.bin.gz``: word2vec's binary format, which is read whole.
    - any other name, also with ``.gz``: a word and its numbers on each line, with a
      first line of two counts (word2vec's text format) or without (GloVe's).

    The vocabulary is in lower case, so the file's words should be, too.

    Raises:
        ConfigError: the file cannot be read, or has no word of the vocabulary.
    """
    vectors = _read(path, vocabulary)
    if not vectors:
        raise ConfigError(
            f"word-vectors: {path} has none of the {len(vocabulary)} words of the "
            "data sets, expected vectors of words in lower case"
        )
    return vectors


def _read(path: Path, vocabulary: Sequence[str]) -> Vectors:
    try:
        gensims = path.name.endswith((".kv", ".bin", ".bin.gz"))
        vectors = (_from_gensim if gensims else _from_text)(path, vocabulary)
    except ConfigError:
        raise
    # A damaged file makes gensim, zlib, pickle and NumPy raise many unrelated types.
    except Exception as error:
        raise ConfigError(
            f"word-vectors: {path} cannot be read ({error}), expected a .kv file of "
            "gensim, a .bin file of word2vec, or a text with a word and its numbers "
            "on each line"
        ) from error
    if not all(np.isfinite(vector).all() for vector in vectors.values()):
        raise ConfigError(
            f"word-vectors: {path} has values that are not finite, expected numbers"
        )
    return vectors


def _from_gensim(path: Path, vocabulary: Sequence[str]) -> Vectors:
    # Imported late, since it takes a second and other formats do not need it.
    with require_extra("text", f"word vectors of {path.name}"):
        from gensim.models import KeyedVectors

    if path.suffix == ".kv":
        loaded = KeyedVectors.load(str(path), mmap="r")
    else:
        loaded = KeyedVectors.load_word2vec_format(str(path), binary=True)
    rows = loaded.key_to_index
    return {
        word: np.array(loaded.vectors[rows[word]], np.float32)
        for word in vocabulary
        if word in rows
    }


# Gensim would read every number of every word, and GloVe's files twice without closing
# them.
def _from_text(path: Path, vocabulary: Sequence[str]) -> Vectors:
    words_by_bytes = {word.encode(): word for word in vocabulary}
    vectors: dict[str, npt.NDArray[np.float32]] = {}
    with open_binary(path) as lines:
        first = lines.readline()
        counts = first.split()
        if len(counts) == 2 and all(count.isdigit() for count in counts):
            expected, dimensions = map(int, counts)
            body = iter(lines)
        else:
            expected, dimensions = None, len(counts) - 1
            body = chain([first], lines)
        number = 0
        for number, line in enumerate(body, 1):
            word = words_by_bytes.get(line.partition(b" ")[0])
            # The first row of a word counts, as in gensim.
            if word is not None and word not in vectors:
                # The line is split from the right: some words of GloVe have spaces.
                key, *values = line.rsplit(maxsplit=dimensions)
                if len(values) != dimensions:
                    raise ValueError(f"row {number} has not {dimensions} numbers")
                if key.decode() == word:
                    vectors[word] = np.array([float(value) for value in values], "f4")
    if number != (expected or number) or dimensions < 1:
        raise ValueError(f"{number} rows of {dimensions} numbers after {first[:40]!r}")
    return vectors


Documents = Sequence[Sequence[str]]
"""A sequence of documents, each of which is a sequence of at least one word."""

_DIMENSIONS = 100
# Word2Vec needs about this many running words, even from a small corpus. The nearest
# class mean of skip-gram vectors has these accuracies on stdlib-docs: 0.22 after 5
# epochs (300,000 words), 0.62 after 20, 0.68 after 50.
_RUNNING_WORDS = 2_000_000
_EPOCHS = (5, 50)


@dataclass(frozen=True, slots=True, eq=False)
class WordVectors:
    """A table with one vector for each word of a vocabulary; read-only.

    Attributes:
        numbers: number of each word, from 1; 0 is padding.
        table: vector of each number, float32, shape (words + 1, D); row 0 is zeros.
        origin: one line for people on the vectors' source and coverage.
        bound: largest magnitude of the entries drawn for words without a vector.
    """

    numbers: Mapping[str, int]
    table: npt.NDArray[np.float32]
    origin: str
    bound: float = 0.0

    def token_ids(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """Convert texts of the vocabulary's words to numbers, padded with 0 at the end.

        Returns:
            int64, shape (N, words of the longest text).
        """
        documents = [words(text) for text in texts]
        longest = max(map(len, documents), default=0)
        padded = np.zeros((len(documents), longest), np.int64)
        for row, document in zip(padded, documents, strict=True):
            row[: len(document)] = [self.numbers[word] for word in document]
        return padded


# A table takes tens of megabytes, so the cache holds only the few that one run uses.
# The data sets themselves are the key, since two may have one name.
@lru_cache(maxsize=4)
def word_vectors(
    sets: tuple[Dataset, ...], file: Path | None, seed: int
) -> WordVectors:
    """Collect vectors for all words of the data sets; later calls return the same.

    Without a file Word2Vec (Mikolov et al., 2013) is trained on the training documents:
    skip-gram, 100 dimensions. The result is the same for the same seed in every
    process; another machine may differ in the last digits.

    A word without a vector gets uniform random entries with the variance of the known
    vectors (Kim, "Convolutional Neural Networks for Sentence Classification", EMNLP
    2014, section 4.2). Except for that scale they depend on the seed and the word
    alone, so that clients with different data agree on them.
    """
    for source in sets:
        if source.modality != "text":
            raise ConfigError(
                f"dataset: got {source.name!r}, of {source.modality}, expected texts "
                "for word vectors"
            )
    train = [words(text) for text_set in sets for text in text_set.train.x]
    test = (words(text) for text_set in sets for text in text_set.test.x)
    vocabulary = sorted(set(chain.from_iterable(chain(train, test))))
    if file:
        return vectors_from(file, vocabulary, train, seed)
    vectors = _trained(train, derive(seed, "word2vec"))
    origin = (
        f"Word2Vec trained here on the {len(train)} training documents of "
        f"{', '.join(text_set.name for text_set in sets)}, {_DIMENSIONS} dimensions"
    )
    return _numbered(vectors, vocabulary, seed, origin)


def vectors_from(
    path: Path, vocabulary: Sequence[str], train: Documents, seed: int
) -> WordVectors:
    """Read a vocabulary's vectors, and draw missing ones as `word_vectors` does.

    The training documents serve to report how many running words the file covers.
    """
    vectors = read_vectors(path, vocabulary)
    running = [word in vectors for document in train for word in document]
    origin = (
        f"{path.name}, {len(next(iter(vectors.values())))} dimensions, known are "
        f"{len(vectors)} of {len(vocabulary)} words, {np.mean(running):.1%} of the "
        "running words of the training documents"
    )
    return _numbered(vectors, vocabulary, seed, origin)


def _numbered(
    vectors: Vectors, vocabulary: Sequence[str], seed: int, origin: str
) -> WordVectors:
    rows = np.stack(list(vectors.values()))
    # A uniform distribution on [-bound, bound] has the variance bound ** 2 / 3.
    bound = np.sqrt(3 * np.var(rows, dtype=np.float64))
    table = np.zeros((len(vocabulary) + 1, rows.shape[1]), np.float32)
    _fill(table[1:], vectors, vocabulary, seed, float(bound))
    table.setflags(write=False)
    numbers = {word: number for number, word in enumerate(vocabulary, 1)}
    return WordVectors(MappingProxyType(numbers), table, origin, float(bound))


def _fill(
    rows: npt.NDArray[np.float32],
    vectors: Vectors,
    vocabulary: Sequence[str],
    seed: int,
    bound: float,
) -> None:
    for row, word in zip(rows, vocabulary, strict=True):
        if word in vectors:
            row[:] = vectors[word]
        else:
            digest = hashlib.sha256(word.encode()).digest()
            number = int.from_bytes(digest[:8], "big")
            rng = np.random.default_rng(derive(seed, "word", number))
            row[:] = bound * rng.uniform(-1, 1, len(row))


def with_words(
    vectors: WordVectors, new: Sequence[str], path: Path | None, seed: int
) -> WordVectors:
    """Append new words, each once, to a table; the rows of other words stay.

    The vector of a new word is read from the file ``path``. It is drawn as in
    `word_vectors` if there is no file, or if the file lacks the word.
    """
    read: Vectors = {}
    if path is not None:
        read = _read(path, new)
    rows = np.zeros((len(new), vectors.table.shape[1]), np.float32)
    _fill(rows, read, new, seed, vectors.bound)
    table = np.concatenate([vectors.table, rows])
    table.setflags(write=False)
    start = len(vectors.table)
    numbers = dict(vectors.numbers) | {w: start + n for n, w in enumerate(new)}
    return WordVectors(MappingProxyType(numbers), table, vectors.origin, vectors.bound)


def _trained(train: Documents, seed: int) -> Vectors:
    # Imported late, since it takes a second and images do not need it.
    with require_extra("text", "word vectors"):
        from gensim.models import Word2Vec

    least_epochs, most_epochs = _EPOCHS
    epochs = round(_RUNNING_WORDS / sum(map(len, train)))
    model = Word2Vec(
        train,
        vector_size=_DIMENSIONS,
        window=5,
        min_count=1,
        sg=1,
        epochs=min(max(epochs, least_epochs), most_epochs),
        # Several threads would race, so that no two runs would be alike.
        workers=1,
        # NumPy's older generator takes 32 bits.
        seed=seed % 2**32,
    )
    return {word: model.wv[word] for word in model.wv.key_to_index}
