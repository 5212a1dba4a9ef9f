"""Word vectors: which row a word gets from which file, by chance, or by training."""

import gzip
import hashlib
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from text_sets import write_text_set

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.local.client import local_vectors
from fcl_flower.data.registry import load_dataset
from fcl_flower.data.word_vectors import find_vectors, word_vectors

ROOT = Path(__file__).parents[3]
KNOWN = {"bee": [1.0, 2.0, 3.0], "cat": [-1.0, 0.5, 0.0], "zebra": [9.0, 9.0, 9.0]}


def write_set(root, name="pets", train=("cat cat bee", "ape"), test=("dog bee",)):
    rows = ([("x", text) for text in texts] for texts in (train, test))
    write_text_set(root, *rows, name)


@pytest.fixture
def root(tmp_path):
    write_set(tmp_path)
    return tmp_path


def text_lines(known=KNOWN):
    return "".join(
        f"{word} {' '.join(map(str, row))}\n" for word, row in known.items()
    ).encode()


def write_vectors(root, kind, known=KNOWN):
    """Write the vectors without gensim, but for its own format."""
    header = f"{len(known)} {len(next(iter(known.values())))}\n".encode()
    binary = header + b"".join(
        word.encode() + b" " + struct.pack(f"<{len(row)}f", *row) + b"\n"
        for word, row in known.items()
    )
    contents = {
        "glove.txt": text_lines(known),
        "glove.txt.gz": gzip.compress(text_lines(known)),
        "vectors.vec": header + text_lines(known),
        "vectors.txt.gz": gzip.compress(header + text_lines(known)),
        "vectors.bin": binary,
        "vectors.bin.gz": gzip.compress(binary),
    }
    if kind in contents:
        (root / kind).write_bytes(contents[kind])
    else:
        from gensim.models import KeyedVectors

        vectors = KeyedVectors(len(next(iter(known.values()))))
        vectors.add_vectors(list(known), np.array(list(known.values()), np.float32))
        # A limit of 0 moves every array to a file beside it, as a large one is.
        apart = kind == "apart.kv"
        vectors.save(str(root / kind), **({"sep_limit": 0} if apart else {}))
    return kind


def vectors_of(names, root, file, seed):
    sets = tuple(load_dataset(name, root) for name in names)
    return word_vectors(sets, find_vectors(file, root) if file else None, seed)


def row(vectors, word):
    return vectors.table[vectors.numbers[word]]


KINDS = (
    "glove.txt",
    "glove.txt.gz",
    "vectors.vec",
    "vectors.txt.gz",
    "vectors.bin",
    "vectors.bin.gz",
    "one.kv",
    "apart.kv",
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_gives_each_word_its_vector(root, kind, capfd):
    vectors = vectors_of(("pets",), root, write_vectors(root, kind), 0)

    assert vectors_of(("pets",), root, kind, 0) is vectors
    assert vectors.numbers == {"ape": 1, "bee": 2, "cat": 3, "dog": 4}
    assert vectors.table.shape == (5, 3)
    assert vectors.table.dtype == np.float32
    assert vectors.table[0].tolist() == [0, 0, 0]
    assert row(vectors, "bee").tolist() == KNOWN["bee"]
    assert row(vectors, "cat").tolist() == KNOWN["cat"]
    # Of 4 running words of the training documents, the file has 3.
    assert vectors.origin == (
        f"{kind}, 3 dimensions, known are 2 of 4 words, 75.0% of the running words of "
        "the training documents"
    )
    with pytest.raises(ValueError, match="read-only"):
        vectors.table[1] = 0
    assert capfd.readouterr() == ("", "")


def test_documents_become_numbers_padded_at_the_end(root):
    vectors = vectors_of(("pets",), root, write_vectors(root, "glove.txt"), 0)
    numbered = vectors.token_ids(["Dog, bee", "cat", "ape cat-cat"])
    assert numbered.tolist() == [[4, 2, 0], [3, 0, 0], [1, 3, 3]]
    assert numbered.dtype == np.int64
    assert vectors.token_ids([]).shape == (0, 0)


def test_a_file_is_found_in_wordvectors(root):
    (root / "wordvectors").mkdir()
    write_vectors(root / "wordvectors", "glove.txt")
    assert find_vectors("glove.txt", root) == root / "wordvectors" / "glove.txt"


def test_a_file_is_found_as_given_first(root, monkeypatch):
    own = root / "own"
    own.mkdir()
    write_vectors(own, "glove.txt", {"bee": [4.0]})
    write_vectors(root, "glove.txt")
    assert find_vectors("glove.txt", root) == root / "glove.txt"
    assert find_vectors(str(own / "glove.txt"), root) == own / "glove.txt"
    monkeypatch.chdir(own)
    assert find_vectors("glove.txt", root).resolve() == own / "glove.txt"


def test_a_word_with_spaces_inside_is_another_word(root):
    content = b"ape of asia 7 8 9\nape 1 2 3\nape 4 5 6\n"
    (root / "glove.txt").write_bytes(b"the 0 0 0\n" + content)
    vectors = vectors_of(("pets",), root, "glove.txt", 0)
    assert row(vectors, "ape").tolist() == [1, 2, 3]


# ---- unknown words


def test_an_unknown_word_gets_a_vector_of_its_own_seed(root):
    vectors = vectors_of(("pets",), root, write_vectors(root, "glove.txt"), 5)

    # The variance of the six known entries, by hand.
    entries = [1.0, 2.0, 3.0, -1.0, 0.5, 0.0]
    mean = sum(entries) / 6
    variance = sum((entry - mean) ** 2 for entry in entries) / 6
    number = int.from_bytes(hashlib.sha256(b"dog").digest()[:8], "big")
    digest = hashlib.sha256(f"5/word/{number}".encode()).digest()
    seed = int.from_bytes(digest[:8], "big") >> 1
    drawn = np.random.default_rng(seed).uniform(-1, 1, 3) * (3 * variance) ** 0.5
    np.testing.assert_allclose(row(vectors, "dog"), drawn, rtol=1e-6)


def test_unknown_words_have_the_variance_of_the_known_ones(root):
    rng = np.random.default_rng(0)
    known = {"bee": rng.normal(0, 0.3, 2000).tolist()}
    vectors = vectors_of(("pets",), root, write_vectors(root, "glove.txt", known), 0)
    for word in ("ape", "dog"):
        assert np.std(row(vectors, word)) == pytest.approx(0.3, rel=0.05)
        assert abs(np.mean(row(vectors, word))) < 0.03
    assert not np.array_equal(row(vectors, "ape"), row(vectors, "dog"))


def test_an_unknown_word_has_the_same_vector_in_another_vocabulary(root):
    write_set(root, "more", train=("zoo dog bee", "eel cat"), test=("aardvark",))
    file = write_vectors(root, "glove.txt")
    one, other = (vectors_of(("pets",), root, file, seed) for seed in (0, 1))
    both = vectors_of(("more", "pets"), root, file, 0)
    assert one.numbers["dog"] != both.numbers["dog"]
    for word in one.numbers:
        np.testing.assert_array_equal(row(one, word), row(both, word))
    np.testing.assert_array_equal(row(one, "bee"), row(other, "bee"))
    assert not np.array_equal(row(one, "dog"), row(other, "dog"))


# ---- refused


def test_a_missing_file_says_where_it_was_looked_for(root):
    with pytest.raises(ConfigError) as caught:
        find_vectors("none.bin", root)
    assert str(caught.value) == (
        "word-vectors: got 'none.bin', expected a file of word vectors, but there is "
        f"none at none.bin or {root}/none.bin or {root}/wordvectors/none.bin"
    )


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("a.txt", b"", "cannot be read"),
        ("a.txt", b"bee 1 2\ncat 1\n", "cannot be read"),
        ("a.txt", b"5 2\nbee 1 2\n", "cannot be read"),
        ("a.txt", b"99999999999999 300\nbee 1 2\n", "cannot be read"),
        ("a.txt", b"bee one two three\n", "cannot be read"),
        ("a.txt", b"bee 1 2\ncat 1 x\n", "cannot be read"),
        ("a.txt", b"0 0\n", "cannot be read"),
        ("a.txt", b"\xff\xfe 1 2 3\n", "none of the 4 words"),
        ("a.txt.gz", b"bee 1 2 3\n", "cannot be read"),
        ("a.bin", b"bee 1 2 3\n", "cannot be read"),
        ("a.bin", b"1 3\nbee 12", "cannot be read"),
        ("a.kv", b"bee 1 2 3\n", "cannot be read"),
        ("a.kv", b"\x80\x04N.", "cannot be read"),
        ("a.txt", b"zebra 1 2 3\nBEE 1 2 3\n", "none of the 4 words"),
        ("a.txt", b"bee 1 nan 3\n", "not finite"),
        ("a.txt", b"bee 1 inf 3\n", "not finite"),
    ],
)
def test_a_broken_file_is_refused(root, file, content, sentence):
    (root / file).write_bytes(content)
    with pytest.raises(ConfigError, match=sentence) as caught:
        vectors_of(("pets",), root, file, 0)
    assert str(caught.value).startswith(f"word-vectors: {root / file} ")


def test_a_kv_file_without_its_table_is_refused(root):
    file = write_vectors(root, "apart.kv")
    for path in root.glob("*.npy"):
        path.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        vectors_of(("pets",), root, file, 0)


def test_images_have_no_word_vectors(root):
    with pytest.raises(ConfigError, match="got 'digits', of images"):
        vectors_of(("pets", "digits"), root, "", 0)


# ---- training

# "hot" and "warm" share their neighbours, and so do "cold" and "chilly".
SENTENCES = [
    f"{feel} {day} {means} {wear}"
    for feels, days, wear in (
        (("hot", "warm"), ("july", "august"), "shirt"),
        (("cold", "chilly"), ("january", "february"), "coat"),
    )
    for feel in feels
    for day in days
    for means in ("means", "says")
] * 100


def cosine(one, other):
    return one @ other / np.linalg.norm(one) / np.linalg.norm(other)


def test_training_brings_words_of_like_neighbours_together(root, capfd):
    write_set(root, "weather", train=SENTENCES, test=("hot unseen",))
    vectors = vectors_of(("weather",), root, "", 0)
    hot, warm, cold = (row(vectors, word) for word in ("hot", "warm", "cold"))
    assert cosine(hot, warm) > cosine(hot, cold) + 0.2
    assert vectors.table.shape == (len(vectors.numbers) + 1, 100)
    assert row(vectors, "unseen").any()
    assert vectors.origin == (
        "Word2Vec trained here on the 1600 training documents of weather, "
        "100 dimensions"
    )
    assert capfd.readouterr() == ("", "")


def test_training_sees_no_test_document(root):
    write_set(root, "one", train=SENTENCES[:16], test=("hot coat",))
    write_set(root, "two", train=SENTENCES[:16], test=("cold coat", "shirt shirt"))
    one, two = (vectors_of((name,), root, "", 0) for name in ("one", "two"))
    np.testing.assert_array_equal(one.table, two.table)


@pytest.mark.process
def test_training_gives_the_same_in_every_process(root):
    # More than the 10,000 words that gensim gives to one thread at a time.
    write_set(root, "weather", train=SENTENCES * 2, test=("hot unseen",))
    program = (
        "import hashlib, sys; from pathlib import Path\n"
        "from fcl_flower.data.registry import load_dataset\n"
        "from fcl_flower.data.word_vectors import word_vectors\n"
        "weather = load_dataset('weather', Path(sys.argv[1]))\n"
        "table = word_vectors((weather,), None, 3).table\n"
        "print(hashlib.sha256(table.tobytes()).hexdigest())\n"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(root)],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    own = vectors_of(("weather",), root, "", 3).table
    expected = (hashlib.sha256(own.tobytes()).hexdigest() + "\n", "")
    for process in running:
        assert process.communicate(timeout=60) == expected


# ---- real data


def test_the_stored_vectors_cover_most_of_r8():
    root = os.environ.get("FCL_DATA")
    file = "googlenews_word2vec_300d_subset.txt.gz"
    if not root or not (Path(root) / "wordvectors" / file).is_file():
        pytest.skip(f"needs wordvectors/{file} under FCL_DATA")
    vectors = vectors_of(("r8",), Path(root), file, 0)
    assert vectors.table.shape[1] == 300
    assert "73.6% of the running words" in vectors.origin


def test_words_of_local_tasks_keep_their_numbers_as_tasks_come(root):
    path = root / "vectors.txt"
    path.write_text("".join(f"{word} {n} 1\n" for n, word in enumerate(KEPT)))
    wanted = SimpleNamespace(width=2, seed=0)
    tasks = [local_task("zebra good", "film"), local_task("apple pie", "good film")]
    before, after = (local_vectors(tasks[:n], path, wanted) for n in (1, 2))
    assert dict(before.numbers) == {"film": 1, "good": 2, "zebra": 3}
    assert dict(after.numbers) == {**before.numbers, "apple": 4, "pie": 5}
    for word, number in after.numbers.items():
        assert after.table[number].tolist() == [KEPT.index(word), 1]


KEPT = ["apple", "film", "good", "pie", "zebra"]


def local_task(train, test):
    """Make as much of a task as its words take: texts to learn from, and others."""
    splits = [SimpleNamespace(x=texts) for texts in ((train,), (test,), ())]
    data = SimpleNamespace(train=splits[0], test=splits[1])
    return SimpleNamespace(data=data, valid=splits[2])
