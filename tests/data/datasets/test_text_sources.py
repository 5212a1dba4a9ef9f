"""Text sets by name: words, files, docstrings and the Hub, and what is refused."""

import ast
import gzip
import inspect
import json
import logging
import os
import sysconfig
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.registry import load_dataset
from fcl_flower.data.texts import (
    EMPTY,
    TextDataset,
    load_stdlib_docs,
    text_dataset,
    text_split,
    words,
)

TRAIN = [
    {"text": "The cat sat.", "label": "pet", "fine": "cat"},
    {"text": "A dog!", "label": "pet", "fine": "dog"},
    {"text": "Bees?", "label": "insect", "fine": "bee"},
]
TEST = [{"text": "Dogs", "label": "pet", "fine": "dog"}]


def lines(rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def write(folder, train=TRAIN, test=TEST):
    """Write a set of two files; bytes stand for the whole unpacked file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("train", train), ("test", test)):
        content = content if isinstance(content, bytes) else lines(content)
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(content))


# ---- words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The cat sat.", ("the", "cat", "sat")),
        ("Don't 'stop' rock'n'roll'", ("don't", "stop", "rock'n'roll")),
        ("I\N{RIGHT SINGLE QUOTATION MARK}m", ("i'm",)),
        ("What?! No!!", ("what", "?", "!", "no", "!", "!")),
        ("snake_case_3 x-y 1.5", ("snake", "case", "3", "x", "y", "1", "5")),
        ("Ünï Größe", ("ünï", "größe")),
        ("...", (EMPTY,)),
        ("", (EMPTY,)),
        (EMPTY, ("empty",)),
        ("\ud800", (EMPTY,)),
    ],
)
def test_words_of_a_text(text, expected):
    assert words(text) == expected


# ---- sets


@pytest.mark.parametrize(
    ("train", "test", "sentence"),
    [
        ([0, 1, 2], [], "here: test is empty"),
        ([], [0], "here: train is empty"),
        ([0, 1, 3], [0], r"here: train has labels 0\.\.3, expected 0\.\.2"),
        ([0, 1, 2], [-1], r"here: test has labels -1\.\.-1, expected 0\.\.2"),
        ([0, 2, 2], [0], "here: train has no document of class 'b'"),
        ([0, 1, 1], [0], "here: train has no document of class 'c'"),
    ],
)
def test_splits_that_do_not_fit_the_classes_are_refused(train, test, sentence):
    splits = [text_split(["x"] * len(labels), labels) for labels in (train, test)]
    with pytest.raises(ConfigError, match=sentence):
        text_dataset("mine", "here", *splits, ("a", "b", "c"))


def test_a_class_may_lack_test_documents():
    splits = [text_split(["x"] * len(labels), labels) for labels in ([0, 1], [1])]
    assert text_dataset("mine", "here", *splits, ("a", "b")).num_classes == 2


# ---- files


@pytest.mark.parametrize("place", ["", "text"])
def test_a_folder_is_found_in_the_root_and_in_its_folders(tmp_path, place):
    write(tmp_path / place / "pets")
    pets = load_dataset("pets", tmp_path)
    assert load_dataset("pets", tmp_path) is pets
    assert isinstance(pets, TextDataset)
    assert (pets.name, pets.class_names) == ("pets", ("insect", "pet"))
    assert pets.train.x == ("The cat sat.", "A dog!", "Bees?")
    assert pets.train.y.tolist() == [1, 1, 0]
    assert (pets.test.x, pets.test.y.tolist()) == (("Dogs",), [1])
    with pytest.raises(ValueError, match="read-only"):
        pets.train.y[0] = 0


def test_another_field_can_be_the_label(tmp_path):
    write(tmp_path / "pets")
    pets = load_dataset("pets:fine", tmp_path)
    assert pets.name == "pets:fine"
    assert pets.class_names == ("bee", "cat", "dog")
    assert pets.train.y.tolist() == [1, 2, 0]


def test_whole_numbers_are_labels(tmp_path):
    rows = [{"text": "x", "label": 3}, {"text": "y", "label": -1}]
    write(tmp_path / "pets", train=rows, test=rows)
    pets = load_dataset("pets", tmp_path)
    assert pets.class_names == ("-1", "3")
    assert pets.test.y.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b'{"text": "x"}', "line 2 has no label, but 'text', expected"),
        (b'{"label": "pet"}', "line 2 has no text, but 'label', expected"),
        (b"{}", "line 2 has no text, but nothing"),
        (b'{"text": 3, "label": "pet"}', "line 2: text is 3, expected a text"),
        (b'{"text": "x", "label": true}', "line 2: label is True, expected"),
        (b'{"text": "x", "label": 1.5}', "line 2: label is 1.5, expected"),
        (b'{"text": "x", "label": null}', "line 2: label is None, expected"),
        (b'{"text": "x", "label": ""}', "line 2: label is '', expected"),
        (b'{"text": "x", "label": "\\ud800"}', "line 2: label is .*expected"),
        (b'["x", "pet"]', "line 2 is a list, expected a JSON object"),
        (b'{"text": "x', "line 2 cannot be read"),
        (b"\n" + lines(TRAIN[:1]) + b"[]", "line 4 is a list"),
        (
            b"\n" + b'{"text": "x", "label": "fish"}',
            "label in line 3: got label 'fish'",
        ),
        (
            b'{"text": "\\ud83d!", "label": "pet"}',
            "line 2: text has .*half a character",
        ),
        (b'{"text": "\xff", "label": "pet"}', "line 2 cannot be read"),
        (b"[" * 100_000, "line 2 cannot be read"),
        (b"1" * 10_000, "line 2 cannot be read"),
        (b'{"text": "x", "label": "fish"}', "label in line 2: got label 'fish', expec"),
    ],
)
def test_a_wrong_line_is_refused_by_file_and_number(tmp_path, line, sentence):
    content = lines(TRAIN[:1]) + line + b"\n" + lines(TRAIN[1:])
    write(tmp_path / "pets", test=content)
    with pytest.raises(ConfigError, match=sentence) as caught:
        load_dataset("pets", tmp_path)
    assert str(tmp_path / "pets" / "test.jsonl.gz") in str(caught.value)


def test_an_empty_file_is_refused(tmp_path):
    write(tmp_path / "pets", train=b"")
    with pytest.raises(ConfigError, match=r"train\.jsonl\.gz has no samples, expected"):
        load_dataset("pets", tmp_path)


def test_a_missing_test_file_is_refused(tmp_path):
    write(tmp_path / "pets")
    path = tmp_path / "pets" / "test.jsonl.gz"
    path.unlink()
    with pytest.raises(
        ConfigError, match=r"test\.jsonl\.gz: cannot be read after line"
    ):
        load_dataset("pets", tmp_path)


def test_a_file_of_images_has_no_fields(tmp_path):
    (tmp_path / "pets.npz").write_bytes(b"")
    with pytest.raises(ConfigError, match="or a folder pets with"):
        load_dataset("pets:fine", tmp_path)


@pytest.mark.parametrize(
    "name", ["pets:", ":fine", "pets:a/b", "../pets:fine", "pets:fine:x", "pets:\0"]
)
def test_a_field_that_is_no_word_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="FOLDER:FIELD"):
        load_dataset(name, tmp_path)


# ---- docstrings


@pytest.fixture(scope="module")
def docs():
    return load_stdlib_docs()


def test_docstrings_are_those_that_python_shows(docs):
    assert load_dataset("stdlib-docs", Path("nowhere")).train.x == docs.train.x
    texts = docs.train.x + docs.test.x
    labels = [*docs.train.y.tolist(), *docs.test.y.tolist()]
    for label, found in (
        ("logging", logging.Logger.setLevel),
        ("tarfile", tarfile.TarFile.extractall),
    ):
        place = texts.index(inspect.getdoc(found))
        assert docs.class_names[labels[place]] == label
    counts = Counter(map(words, texts))
    assert max(counts.values()) == 1
    assert min(map(len, counts)) >= 4


def test_each_class_of_docstrings_has_a_quarter_for_testing(docs):
    train, test = (np.bincount(split.y) for split in (docs.train, docs.test))
    assert len(train) == len(test) == docs.num_classes == 16
    np.testing.assert_allclose(test, (train + test) / 4, atol=0.5)
    assert (train + test).min() >= 60


@pytest.fixture
def library(docs, tmp_path, monkeypatch):
    """A standard library of our own: 50 functions in each module."""
    for number, module in enumerate(docs.class_names):
        package = number % 2
        path = tmp_path / (f"{module}/deep/__init__.py" if package else f"{module}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        functions = [
            f"def f{at}():\n    'Do this and that {module} {at}'\n" for at in range(50)
        ]
        path.write_text("\n".join(functions))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    return tmp_path


def texts_by_label(docs):
    found = {name: set() for name in docs.class_names}
    for split in (docs.train, docs.test):
        for x, y in zip(split.x, split.y, strict=True):
            found[docs.class_names[y]].add(" ".join(words(x)))
    return found


def test_docstrings_of_every_kind_of_definition_are_taken(library):
    (library / "asyncio" / "more.py").write_text(
        '''"""This is the module"""
raise SystemExit("never run")
class A:
    """This is the class"""
    def b(self):
        """This is the method"""
    async def c(self):
        """This is the coroutine"""
        def d():
            """This is the inner"""
    def e(self):
        """Only three words"""
'''
    )
    for tests in ("test", "tests", "idle_test"):
        (library / "asyncio" / tests).mkdir()
        (library / "asyncio" / tests / "a.py").write_text("'This is a test'\n")
    found = texts_by_label(load_stdlib_docs())["asyncio"]
    kinds = ("module", "class", "method", "coroutine", "inner")
    assert {f"this is the {kind}" for kind in kinds} <= found
    assert len(found) == 50 + len(kinds)


def test_a_text_of_two_labels_is_in_neither_and_of_one_label_is_there_once(library):
    (library / "asyncio" / "a.py").write_text("'This stands in both'\n")
    (library / "http" / "b.py").write_text("'This stands, in BOTH'\n")
    (library / "asyncio" / "c.py").write_text("'This stands here twice'\n")
    (library / "asyncio" / "d.py").write_text("'This stands here twice.'\n")
    found = texts_by_label(load_stdlib_docs())
    assert not any("this stands in both" in texts for texts in found.values())
    assert "this stands here twice" in found["asyncio"]


@pytest.mark.parametrize("damage", ["missing", "stripped"])
def test_a_library_without_sources_is_refused(library, damage):
    path = library / "email.py"
    path = path if path.is_file() else library / "tarfile.py"
    if damage == "missing":
        path.unlink()
    else:
        functions = ast.unparse(
            ast.parse("\n".join(f"def f{i}(): 0" for i in range(50)))
        )
        path.write_text(functions)
    sentence = f"stdlib-docs with 0 docstrings of {path.stem} .* not zipped or stripped"
    with pytest.raises(ConfigError, match=sentence):
        load_stdlib_docs()


# ---- the Hub


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Write a local folder of rows and return its name."""
    pytest.importorskip("flwr_datasets", reason="needs the extra hub")
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))

    def write(train=TRAIN, test=TEST):
        folder = tmp_path / "rows"
        folder.mkdir()
        (folder / "train.jsonl").write_bytes(lines(train))
        (folder / "test.jsonl").write_bytes(lines(test))
        return f"hub:{folder}"

    return write


def test_the_hub_loads_a_folder_of_texts(hub, tmp_path):
    name = hub()
    pets = load_dataset(name, tmp_path)
    assert isinstance(pets, TextDataset)
    assert pets.name == name
    assert pets.class_names == ("insect", "pet")
    assert pets.train.x == ("The cat sat.", "A dog!", "Bees?")
    assert pets.train.y.tolist() == [1, 1, 0]
    assert pets.test.y.tolist() == [1]


def test_the_hub_takes_the_only_column_of_texts_and_whole_numbers(hub, tmp_path):
    rows = [{"sentence": "So it is", "label": 7}, {"sentence": "No", "label": 2}]
    pets = load_dataset(hub(rows, rows), tmp_path)
    assert pets.class_names == ("2", "7")
    assert pets.train.x == ("So it is", "No")
    assert pets.test.y.tolist() == [1, 0]


def test_the_hub_takes_the_finest_class_labels_before_a_plain_label(hub, tmp_path):
    datasets = pytest.importorskip("datasets")
    folder = tmp_path / "typed"
    folder.mkdir()
    rows = {
        "text": ["x", "y", "z"],
        "label": [5, 5, 6],
        "coarse": [0, 1, 0],
        "fine": [2, 0, 1],
    }
    features = datasets.Features(
        text=datasets.Value("string"),
        label=datasets.Value("int64"),
        coarse=datasets.ClassLabel(names=["a", "b"]),
        fine=datasets.ClassLabel(names=["p", "q", "r"]),
    )
    for split in ("train", "test"):
        table = datasets.Dataset.from_dict(rows, features=features)
        table.to_parquet(folder / f"{split}.parquet")
    pets = load_dataset(f"hub:{folder}", tmp_path)
    assert pets.class_names == ("p", "q", "r")
    assert pets.train.y.tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("train", "test", "sentence"),
    [
        ([{"a": "x", "b": "y", "label": "p"}], None, "with columns a, b, label"),
        ([{"text": "x", "label": 1.5}], None, "with columns text, label"),
        ([{"text": "x"}], None, "with columns text, expected"),
        (
            [{"text": "x", "label": "p"}, {"text": None, "label": "p"}],
            None,
            "train row 2: got no text",
        ),
        (
            [{"text": "x", "label": "p"}],
            [{"text": "x", "label": "q"}],
            "label in test row 1: got label 'q'",
        ),
    ],
)
def test_the_hub_refuses_rows_that_are_no_labelled_texts(
    hub, tmp_path, train, test, sentence
):
    with pytest.raises(ConfigError, match=sentence):
        load_dataset(hub(train, test or train), tmp_path)


# ---- real data


@pytest.mark.parametrize(
    ("name", "train", "test", "classes"),
    [
        ("r8", 5485, 2189, 8),
        ("trec", 5452, 500, 6),
        ("trec:fine", 5452, 500, 50),
        ("subj", 8000, 2000, 2),
    ],
)
def test_the_stored_sets_are_complete(name, train, test, classes):
    root = os.environ.get("FCL_DATA")
    if not root or not (Path(root) / "text" / name.split(":")[0]).is_dir():
        pytest.skip(f"needs text/{name.split(':')[0]} under FCL_DATA")
    source = load_dataset(name, Path(root))
    sizes = (len(source.train.x), len(source.test.x), source.num_classes)
    assert sizes == (train, test, classes)
