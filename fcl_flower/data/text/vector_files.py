"""Files of word vectors: gensim's, word2vec's and GloVe's."""

import gzip
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import BinaryIO, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from fcl_flower.core.errors import ConfigError, extra

Vectors: TypeAlias = Mapping[str, npt.NDArray[np.float32]]
"""Of each word, shape (D,), all of the same D."""


def find_vectors(file: str, data_root: Path) -> Path:
    """Return where the file is: as given, in ``data_root``, or in ``wordvectors``.

    Raises:
        ConfigError: it is nowhere there.
    """
    # An absolute path is itself in every folder.
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
    """Return the vectors that a file has of the vocabulary, at least one.

    Three formats, told apart by the name:

    - ``.kv``: gensim's own, the one for large tables, because it is mapped into
      memory instead of read. It is made once with
      ``KeyedVectors.load_word2vec_format(...).save("mine.kv")``. It is a pickle,
      which can run any code: open only your own.
    - ``.bin`` and ``.bin.gz``: word2vec's binary format, read whole.
    - all else, also with ``.gz``: a word and its numbers on each line, with a first
      line of two counts (word2vec's text format) or without (GloVe's).

    Args:
        path: of the file.
        vocabulary: the words wanted, in lower case; so should the file's words be,
            as they are compared as they are.

    Raises:
        ConfigError: the file is broken or has none of the words.
    """
    try:
        known = _reader(path)(path, vocabulary)
    except ConfigError:
        raise
    # A damaged file makes gensim, zlib, pickle and NumPy raise many unrelated types.
    except Exception as error:
        raise ConfigError(
            f"word-vectors: {path} cannot be read ({error}), expected a .kv file of "
            "gensim, a .bin file of word2vec, or a text with a word and its numbers "
            "on each line"
        ) from error
    if not known:
        raise ConfigError(
            f"word-vectors: {path} has none of the {len(vocabulary)} words of the "
            "data sets, expected vectors of words in lower case"
        )
    if not all(np.isfinite(vector).all() for vector in known.values()):
        raise ConfigError(
            f"word-vectors: {path} has values that are not finite, expected numbers"
        )
    return known


def _reader(path: Path) -> Callable[[Path, Sequence[str]], Vectors]:
    """Return who reads files of this name."""
    if path.suffix == ".kv" or path.name.endswith((".bin", ".bin.gz")):
        return _from_gensim
    return _from_text


def _from_gensim(path: Path, vocabulary: Sequence[str]) -> Vectors:
    """Return the rows of the vocabulary; the rest of the table is let go."""
    # Imported here since it takes a second, and the other formats do without.
    with extra("text", f"word vectors of {path.name}"):
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


# Not left to gensim, which reads every number of every word, and GloVe's files twice
# without closing them.
def _from_text(path: Path, vocabulary: Sequence[str]) -> Vectors:
    """Return the rows of the vocabulary; only their numbers are read as numbers."""
    wanted = {word.encode(): word for word in vocabulary}
    known: dict[str, npt.NDArray[np.float32]] = {}
    # Either is a stream of bytes, of different types.
    with cast(
        BinaryIO, gzip.open(path) if path.suffix == ".gz" else path.open("rb")
    ) as lines:
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
            word = wanted.get(line.partition(b" ")[0])
            # The first of two rows of a word counts, as in gensim.
            if word is not None and word not in known:
                # From the right: some words of GloVe have spaces inside.
                key, *values = line.rsplit(maxsplit=dimensions)
                if len(values) != dimensions:
                    raise ValueError(f"row {number} has not {dimensions} numbers")
                if key.decode() == word:
                    known[word] = np.array([float(value) for value in values], "f4")
    if number != (expected or number) or dimensions < 1:
        raise ValueError(f"{number} rows of {dimensions} numbers after {first[:40]!r}")
    return known
