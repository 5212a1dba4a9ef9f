"""A client's own data: every format is read, and every mistake named by its place."""

import gzip
import io
import json
import os
import sys

import numpy as np
import pytest
from PIL import Image

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.arrays import (
    ImageDataset,
    TabularDataset,
    TimeSeriesDataset,
)
from fcl_flower.data.local import client as task
from fcl_flower.data.local.client import LocalData, LocalDataSpec, load_task
from fcl_flower.data.local.layout import find_tasks
from fcl_flower.data.texts import TextDataset

CSV = "b,label,a\n1,cat,10\n2,dog,20\n3,cat,30\n4,dog,40\n5,cat,50\n6,dog,60\n"
OTHER = '[[task]]\nname = "x"\ntrain = "other.csv"\n'
ONE = {"input_shape": (1,), "valid_fraction": 0.25}
JSONL = "".join(
    json.dumps({"text": f"a {label} no {n}", "label": label}) + "\n"
    for n in range(3)
    for label in ("cat", "dog")
)


@pytest.fixture(autouse=True)
def fresh_cache():
    task._loaded.cache_clear()


def wanted(kind=TabularDataset, **changes):
    shapes = {
        TabularDataset: (2,),
        TextDataset: (-1,),
        ImageDataset: (1, 8, 8),
        TimeSeriesDataset: (3, 5),
    }
    usual = {"width": 0, "classes": 3, "labels": (), "valid_fraction": 0.34, "seed": 0}
    given = {"input_shape": shapes[kind], **usual, **changes}
    return LocalDataSpec(dataset_type=kind, **given)


@pytest.fixture
def write(tmp_path):
    """Write files of the first task, and return the loaded task."""

    def written(kind=TabularDataset, /, changes=None, **files):
        folder = tmp_path / "data" / "task-01"
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            split, _, end = name.partition("_")
            path = folder / f"{split}.{end.replace('_', '.')}"
            path.write_bytes(
                content if isinstance(content, bytes) else content.encode()
            )
        (place,) = find_tasks(tmp_path / "data")
        return load_task(place, 0, wanted(kind, **(changes or {})))

    return written


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def everything(task):
    """List all samples of a task with the names of their labels, sorted."""
    found = []
    for split in (task.data.train, task.valid, task.data.test):
        names = [task.data.class_names[y] for y in split.y]
        found += zip(np.array(split.x).tolist(), names, strict=True)
    return sorted(found)


def shares(task):
    return [len(split.y) for split in (task.data.train, task.valid, task.data.test)]


# ---- formats


def test_a_table_is_numbers_in_the_order_of_their_names(write):
    task = write(train_csv=CSV, valid_csv=CSV, test_csv="label,a,b\ndog,7,8\n")
    np.testing.assert_array_equal(task.data.train.x[:2], [[10, 1], [20, 2]])
    assert task.data.train.x.dtype == np.float32
    assert task.data.train.y.tolist() == [0, 1, 0, 1, 0, 1]
    assert task.data.test.x.tolist() == [[7, 8]]
    assert task.data.test.y.tolist() == [1]
    assert task.classes == task.data.class_names == ("cat", "dog")
    with pytest.raises(ValueError, match="read-only"):
        task.data.train.x[0] = 0


def test_what_spreadsheets_write_is_read(write):
    text = '"a",label,b\r\n" 1.5 ","the ""cat"",\r\nor so",2e3\r\n\r\n-1,dog,0\r\n'
    text = text.replace("\r\nor", " or")
    task = write(train_csv=("\ufeff" + text).encode(), valid_csv=text, test_csv=text)
    assert task.data.train.x.tolist() == [[1.5, 2000], [-1, 0]]
    assert task.classes == ("dog", 'the "cat", or so')


def test_texts_come_from_tables_and_from_lines(write):
    table = 'id,text,label\n7,"One, two\nlines!",a\n8,Other,b\n'
    test = '{"text": "One two lines!", "label": "a"}\n'
    task = write(TextDataset, train_csv=table, valid_csv=table, test_jsonl=test)
    assert task.data.train.x == ("One, two\nlines!", "Other")
    assert task.data.test.x == ("One two lines!",)
    assert task.data.test.y.tolist() == [0]


@pytest.mark.parametrize("end", ["jsonl", "jsonl_gz"])
def test_lines_of_json_may_be_packed(write, end):
    content = gzip.compress(JSONL.encode()) if end == "jsonl_gz" else JSONL
    task = write(TextDataset, **{f"train_{end}": content})
    assert shares(task) == [2, 2, 2]
    assert len({x for x, _ in everything(task)}) == 6


@pytest.mark.parametrize(
    ("kind", "x"),
    [
        (TabularDataset, np.arange(12.0).reshape(6, 2)),
        (TimeSeriesDataset, np.arange(90.0).reshape(6, 3, 5) / 90),
        (ImageDataset, np.arange(96, dtype=np.uint8).reshape(6, 4, 4)),
        (ImageDataset, np.arange(288).astype("u1").reshape(6, 4, 4, 3)),
    ],
)
def test_arrays_are_what_the_model_takes(write, kind, x):
    y = np.array([7, 3, 7, 3, 7, 3])
    task = write(kind, train_npz=npz(x=x, y=y))
    assert isinstance(task.data, kind)
    assert task.classes == ("3", "7")
    expected = sorted(zip(x.tolist(), y.astype(str).tolist(), strict=True))
    assert [label for _, label in everything(task)] == [label for _, label in expected]


def test_arrays_may_name_their_classes(write):
    names = np.array(["zebra", "none", "ant"])
    x, y = np.zeros((6, 2)), np.array([0, 2] * 3)
    content = npz(x=x, y=y, class_names=names)
    task = write(train_npz=content, valid_npz=content, test_npz=content)
    assert task.classes == ("ant", "zebra")
    assert task.data.train.y.tolist() == [1, 0, 1, 0, 1, 0]


def test_a_cell_may_be_long(write):
    text = "one two " * 50_000
    table = f'text,label\n"{text}",a\nshort,b\n'
    task = write(TextDataset, train_csv=table, valid_csv=table, test_csv=table)
    assert task.data.train.x == (text, "short")


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + JSONL.encode(),
        JSONL.replace("\n", "\n\n").encode(),
        ("\n" + JSONL + " \n\n").encode(),
        JSONL.rstrip("\n").encode(),
        JSONL.replace("\n", "\r\n").encode(),
    ],
)
def test_blank_lines_and_marks_of_editors_do_not_count(write, content):
    task = write(TextDataset, train_jsonl=JSONL)
    assert everything(write(TextDataset, train_jsonl=content)) == everything(task)


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "data" / "task-01" / "train"

    def saved(name, size=(8, 8), mode="L", value=0, **kind):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, size, value).save(path, **kind)
        return path

    for n in range(3):
        saved(f"cat/{n}.png", value=100 + n)
        saved(f"dog/{n}.png", value=200 + n)
    return saved


def first_task(tmp_path, kind=ImageDataset, **changes):
    return load_task(find_tasks(tmp_path / "data")[0], 0, wanted(kind, **changes))


def test_images_lie_in_folders_named_by_label(tmp_path, pictures):
    pictures("cat/.hidden.png", value=7)
    task = first_task(tmp_path)
    values = [(x[0][0], x[7][7], label) for x, label in everything(task)]
    cats = [(100 + n, 100 + n, "cat") for n in range(3)]
    assert values == cats + [(200 + n, 200 + n, "dog") for n in range(3)]


def test_images_of_any_size_and_colour_get_the_models(tmp_path, pictures):
    pictures("dog/wide.JPG", (30, 7), "RGB", (255, 0, 0), quality=100)
    pictures("dog/clear.png", (3, 5), "RGBA", (255, 0, 0, 128))
    grey = first_task(tmp_path)
    assert grey.data.train.x.shape[1:] == (8, 8)
    colour = first_task(tmp_path, input_shape=(3, 6, 4))
    assert colour.data.train.x.shape[1:] == (6, 4, 3)
    # Red is 299 thousandths of grey.
    assert {76} < {x[0][0] for x, label in everything(grey) if label == "dog"}
    reds = [x[0][0] for x, _ in everything(colour) if x[0][0][0] > 250]
    # Half of the red of what half shines through is on white.
    greens = sorted(green for _, green, _ in reds)
    assert len(greens) == 2
    assert abs(greens[0] - 0) <= 2
    assert abs(greens[1] - 127) <= 1


def test_without_pillow_one_sentence_says_what_to_install(
    tmp_path, pictures, monkeypatch
):
    monkeypatch.setitem(sys.modules, "PIL", None)
    sentence = r"0\.png: got no package PIL.*pip install 'fcl-f.*images\]'"
    with pytest.raises(ConfigError, match=sentence):
        first_task(tmp_path)


# ---- shares


def many(classes=2, each=20):
    rows = (f"{n},{n % classes}" for n in range(classes * each))
    return "a,label\n" + "\n".join(rows) + "\n"


def test_a_fifth_of_each_class_is_kept_to_test_and_a_share_of_the_rest_to_validate(
    write,
):
    task = write(changes=ONE, train_csv=many())
    assert shares(task) == [24, 8, 8]
    assert np.bincount(task.data.test.y).tolist() == [4, 4]
    assert [x[0] for x, _ in everything(task)] == list(range(40))
    other = write(changes={**ONE, "seed": 1}, train_csv=many())
    assert other.data.test.x.tolist() != task.data.test.x.tolist()


def test_what_the_task_brings_is_used_whole(write):
    test, valid = "a,label\n-1,0\n", "a,label\n-1,1\n-2,1\n"
    tested = write(changes=ONE, train_csv=many(), test_csv=test)
    assert shares(tested) == [30, 10, 1]
    whole = write(changes=ONE, train_csv=many(), test_csv=test, valid_csv=valid)
    assert shares(whole) == [40, 2, 1]


def test_a_cap_leaves_so_many_samples_of_each_class(write):
    caps = {**ONE, "max_train_per_class": 8, "max_test_per_class": 3}
    whole = write(changes=ONE, train_csv=many())
    few = write(changes=caps, train_csv=many())
    # Of 20 samples of each class 4 are to test and 16 to train, 2 of 8 to validate.
    assert shares(few) == [12, 4, 6]
    for split, count in ((few.data.train, 6), (few.valid, 2), (few.data.test, 3)):
        assert np.bincount(split.y).tolist() == [count, count]
    trained = {x[0] for x, _ in everything(few)} - {x[0] for x in few.data.test.x}
    assert trained.isdisjoint(x[0] for x in whole.data.test.x)
    assert {x[0] for x in few.data.test.x} < {x[0] for x in whole.data.test.x}
    other = write(changes={**caps, "seed": 1}, train_csv=many())
    assert everything(other) != everything(few)
    tested = write(changes=caps, train_csv=many(), test_csv=many())
    assert np.bincount(tested.data.test.y).tolist() == [3, 3]


def test_labels_are_numbered_as_the_run_or_the_manifest_says(write, tmp_path):
    task = write(changes={"labels": ("ant", "dog", "cat")}, train_csv=CSV)
    assert task.data.class_names == ("ant", "dog", "cat")
    assert task.classes == ("dog", "cat")
    assert {*task.data.train.y.tolist()} == {1, 2}
    entry = 'train = "task-01/train.csv"\nlabels = ["dog", "cat"]\n'
    (tmp_path / "data" / "tasks.toml").write_text(f'[[task]]\nname = "x"\n{entry}')
    (place,) = find_tasks(tmp_path / "data")
    assert load_task(place, 0, wanted()).data.class_names == ("dog", "cat")


def test_a_file_is_read_once_until_it_changes(write, tmp_path, monkeypatch):
    read = []
    original = task.read_samples
    monkeypatch.setattr(
        task,
        "read_samples",
        lambda path, *rest: read.append(path.name) or original(path, *rest),
    )
    first = write(train_csv=CSV, test_csv=CSV)
    (place,) = find_tasks(tmp_path / "data")
    assert load_task(place, 0, wanted()) is first
    assert sorted(read) == ["test.csv", "train.csv"]
    os.utime(place.test, ns=(1, 1))
    assert load_task(place, 0, wanted()) is not first
    assert len(read) == 4


def test_large_numbers_that_float32_tells_apart_are_read(write):
    kept = "3e20,cat,1\n5e20,dog,1\n16777216,cat,1\n33554432,dog,1\n1764000001,cat,1\n"
    assert write(train_csv=CSV + kept).columns == ("a", "b")
    near = "1764000001.2,cat,1\n1764000001.3,dog,1\n"  # a measurement, no name
    assert write(train_csv=CSV + near).columns == ("a", "b")


# ---- mistakes


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", r"train\.csv: line 1 is empty, expected the names"),
        ("a,b,label\n", r"train\.csv has no samples"),
        ("a,b\n1,2\n", "line 1 has no label, but 'a', 'b'"),
        ("a;label\n1;x\n", "'a;label', .*separated by semicolons, expected commas"),
        ("a\tlabel\n1\tx\n", "separated by tabs, expected commas"),
        (CSV.replace("b,", ",", 1), "line 1 has a column '', as pandas .*index=False"),
        (CSV.replace("b,", "Unnamed: 0,", 1), "line 1 has a column 'Unnamed: 0'"),
        (CSV + "1_000,cat,1\n", "line 8: b is '1_000', .* the digits 0 to 9, with not"),
        (CSV + "١٢,cat,1\n", "line 8: b is '١٢', expected .* the digits 0 to 9"),
        (CSV + '"1,5",cat,1\n', "line 8: b is '1,5', .*decimal point, not a comma"),
        (CSV + '"1,234",cat,1\n', "b is '1,234', .*: 1234 if it parts thousands, 1.2"),
        (CSV + '"-12,345,678",cat,1\n', "b is '-12,345,678', .* without a comma"),
        (CSV.replace("\n", ",\n"), "line 1 ends with a comma, .* from all lines"),
        (
            CSV + "16777216,cat,1\n16777217,dog,1\n",
            "b is 16777216 and 16777217, .* 7 d",
        ),
        (CSV + "1,cat,1764000001\n1,dog,1764000002\n", "a is 1764000001 and .*a base"),
        (CSV.encode("utf-16"), "expected .* UTF-8; if it is UTF-16, convert .* UTF-16"),
        (
            CSV.encode() + b"1,caf\xe9,1\n",
            "after line 7 .* if it is Windows-1252 .*iconv -f WINDOWS-1252",
        ),
        ("a,a,label\n1,2,x\n", "line 1 names column 'a' twice"),
        ("label\nx\n", "line 1 names no column but label"),
        (CSV + "7,cat\n", "line 8 has 2 cells, expected 3"),
        (CSV + "\n\n7,cat,1,1\n", "line 10 has 4 cells, expected 3"),
        (CSV + "7,,1\n", "line 8: label is '', expected a printable text"),
        (CSV + '7,"a\nb",1\n', "line 8: label is 'a.nb'"),
        (CSV + "7,cat,\n", "line 8: a is '', expected a number: fill in what is miss"),
        (CSV + "seven,cat,1\n", "line 8: b is 'seven', expected a number"),
        (CSV + "nan,cat,1\n", "line 8: b is no finite number"),
        (CSV + "1,cat,-inf\n", "line 8: a is no finite number"),
        (CSV + "1e39,cat,1\n", "line 8: b is no finite number"),
        (CSV + '"7,cat,1\n', r"cannot be read after line 7 \(unexpected end of data\)"),
        (CSV.encode() + b"\xff,cat,1\n", "cannot be read after line .*utf-8"),
        ("a,b,c,label\n1,2,3,x\n1,2,3,y\n", r"shape \(3,\), expected \(2,\)"),
        ("a,b,label\n1,2,x\n1,2,x\n", "every label is 'x', expected at least two"),
        (CSV + "1,emu,1\n1,fox,1\n", "has 4 classes, .* 3 th"),
        ("a,b,label\n1,2,x\n1,2,y\n", "every class has a single sample"),
    ],
)
def test_a_mistake_in_a_table_is_named_by_file_and_line(write, content, words):
    with pytest.raises(ConfigError, match=words) as caught:
        write(train_csv=content)
    assert "task-01/train.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("train_csv", "a,label\n1,x\n", "line 1 has no text, but 'a', 'label'"),
        ("train_csv", "text,label\nhello,\n", "line 2: label is ''"),
        ("train_jsonl", JSONL + "\n{", r"train\.jsonl: line 8 cannot be read"),
        ("train_jsonl", "", r"train\.jsonl has no samples"),
        (
            "train_jsonl",
            JSONL + '{"text": "x", "label": "cat", "label": "dog"}',
            r"train\.jsonl: line 7 cannot be read \(the key 'label' is there twice\)",
        ),
        ("train_jsonl", "\n\n", r"train\.jsonl has no samples"),
        (
            "train_jsonl",
            JSONL + '{"text": "so \\ud83d", "label": "cat"}',
            r"line 7: text has '\\ud83d', half a character \(a surrogate\), at place 3",
        ),
        (
            "train_jsonl",
            JSONL.replace("a cat", "één").encode("latin-1"),
            "if it is Windows-1252 or Latin-1, convert it",
        ),
        (
            "train_jsonl_gz",
            gzip.compress(JSONL.encode(), mtime=0)[:-9],
            r"train\.jsonl\.gz: cannot be read after",
        ),
    ],
)
def test_a_mistake_in_texts_is_named_by_file_and_line(write, file, content, words):
    with pytest.raises(ConfigError, match=words):
        write(TextDataset, **{file: content})


X, Y = np.zeros((6, 2)), np.array([0, 1] * 3)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": X}, "got no array y, expected x, y"),
        ({"x": X, "y": Y[:5]}, r"y: got shape \(5,\)"),
        ({"x": X, "y": Y * 1.0}, "y: got dtype float64"),
        ({"x": X, "y": Y - 1}, "y has label -1, expected none below 0"),
        ({"x": X, "y": Y, "class_names": np.array(["a"])}, r"y has label 1.* 0\.\.0"),
        ({"x": X, "y": Y, "class_names": np.array(["a", ""])}, "class_names: label is"),
        ({"x": X, "y": Y, "class_names": np.array([1, 2])}, "class_names has shape"),
        ({"x": X, "y": Y, "class_names": np.array(["a", "a"])}, "has 'a' twice, expec"),
        (
            {"x": np.stack([Y, 2**24 + np.arange(6)], 1), "y": Y},
            "x: got 16777216 and 16777217 in column 1, expected numbers of at most 7 d",
        ),
        ({"x": X * np.nan, "y": Y}, "x: got values that float32 cannot hold"),
        ({"x": X[:, 0], "y": Y}, r"x: got shape \(6,\), expected \(N, columns\)"),
        ({"x": np.zeros((6, 3)), "y": Y}, r"shape \(3,\), expected \(2,\), which the"),
        ({"x": np.array([None] * 6), "y": Y}, "cannot be read"),
    ],
)
def test_a_mistake_in_arrays_is_named_by_file_and_array(write, arrays, words):
    with pytest.raises(ConfigError, match=rf"train\.npz:? .*{words}|npz: {words}"):
        write(train_npz=npz(**arrays))


@pytest.mark.parametrize("split", ["test", "valid"])
def test_other_samples_go_with_the_training_samples(write, split):
    for content, words in (
        ("b,label,a\n1,cat,1\n1,cow,1\n", "line 3: label is 'cow', .*train"),
        ("b,label,c\n1,cat,1\n", "the table has 'c' and lacks 'a', expected the"),
    ):
        with pytest.raises(ConfigError, match=rf"{split}\.csv: {words}"):
            write(train_csv=CSV, **{f"{split}_csv": content})


def test_a_table_with_names_is_tested_by_one_with_names(write):
    sentence = r"test\.npz: the columns have no names, expected .*train\.csv"
    with pytest.raises(ConfigError, match=sentence):
        write(
            train_csv=CSV, test_npz=npz(x=X, y=Y, class_names=np.array(["cat", "dog"]))
        )


def test_arrays_with_an_unknown_class_are_named_by_index(write):
    train, test = (npz(x=X, y=Y), npz(x=X, y=Y + 1))
    with pytest.raises(ConfigError, match=r"test\.npz: y at index 1: label is '2'"):
        write(train_npz=train, test_npz=test)


def test_a_label_that_the_run_does_not_know_is_refused(write):
    sentence = "line 3: label is 'dog', expected one of the run's labels: cat, ant"
    with pytest.raises(ConfigError, match=sentence):
        write(changes={"labels": ("cat", "ant")}, train_csv=CSV)


def test_one_class_will_do_where_all_have_one_head(write):
    one = "a,label\n" + "1,x\n" * 10
    with pytest.raises(ConfigError, match=r"every label is 'x', .*model\.head=single"):
        write(changes=ONE, train_csv=one)
    for head in ({"labels": ("w", "x")}, {"labels": ("x",), "places": 5}):
        task = write(changes={**ONE, **head}, train_csv=one)
        assert (task.classes, shares(task)) == (("x",), [6, 2, 2])


def test_the_columns_are_those_of_the_run(write):
    assert write(changes={"columns": ("a", "b")}, train_csv=CSV).columns == ("a", "b")
    sentence = r"train\.csv: the table has 'b' and lacks 'B', .*run \(data\.columns\)"
    with pytest.raises(ConfigError, match=sentence):
        write(changes={"columns": ("B", "a")}, train_csv=CSV)


def test_the_tasks_of_a_client_have_the_same_columns(tmp_path):
    for number, text in ((1, CSV), (2, CSV.replace("b,", "B,", 1)), (3, CSV)):
        folder = tmp_path / f"task-0{number}"
        folder.mkdir()
        (folder / "train.csv").write_text(text)
    client = LocalData(tmp_path, wanted(), 3, None)
    assert client.classes(0).columns == client.classes(2).columns == ("a", "b")
    with pytest.raises(ConfigError, match=r"^task 1: the client's data") as refused:
        client.classes(1)
    sentence = str(refused.value.__cause__)
    where = f"{tmp_path / 'task-02' / 'train.csv'}: the table has 'B' and lacks 'b', "
    assert sentence == f"{where}expected the columns of {tmp_path}/task-01/train.csv"


@pytest.mark.parametrize(
    ("kind", "end", "expected"),
    [
        (TextDataset, "npz", r"\.csv or \.jsonl or \.jsonl\.gz for text"),
        (TabularDataset, "jsonl", r"\.csv or \.npz for tabular"),
        (TimeSeriesDataset, "csv", r"\.npz for time-series"),
        (ImageDataset, "csv", r"a folder of images or \.npz for images"),
    ],
)
def test_a_format_that_does_not_suit_the_model_is_refused(write, kind, end, expected):
    with pytest.raises(ConfigError, match=rf"train\.{end}: expected {expected}"):
        write(kind, **{f"train_{end}": "x"})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cat/notes.txt", r"notes\.txt is no image, expected \.png"),
        ("stray.png", r"stray\.png is a file, expected a folder named by a label"),
        ("cat/torn.png", r"torn\.png cannot be read"),
    ],
)
def test_what_is_no_image_is_named(tmp_path, pictures, name, words):
    (tmp_path / "data" / "task-01" / "train" / name).write_bytes(b"\x89PNG")
    with pytest.raises(ConfigError, match=words):
        first_task(tmp_path)


@pytest.mark.parametrize(
    ("name", "mode", "words"),
    [
        ("../test/emu/last.png", "L", r"test: image emu/last\.png: label is 'emu'"),
        ("cat/odd.tif", "LAB", r"odd\.tif cannot be read .*LAB.* expected a single"),
    ],
)
def test_an_image_that_does_not_fit_is_named(tmp_path, pictures, name, mode, words):
    pictures(name, mode=mode)
    with pytest.raises(ConfigError, match=words):
        first_task(tmp_path)


# ---- the folder


def touch(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(CSV)
    return folder


def test_what_windows_and_macs_leave_behind_is_no_task(tmp_path):
    left = ("Thumbs.db", "desktop.ini", ".DS_Store")
    touch(tmp_path, "task-1/train.csv", *left, *(f"task-1/{name}" for name in left))
    (task,) = find_tasks(tmp_path)
    assert (task.train.name, task.valid, task.test) == ("train.csv", None, None)


def test_tasks_come_in_the_order_of_their_numbers(tmp_path):
    names = [f"task-{n}/train.csv" for n in (10, 2, 9, 3, 4, 5, 6, 7, 8, 1)]
    touch(tmp_path, *names, ".task-11/train.csv", "task-1/.train.csv.swp")
    found = [task.name for task in find_tasks(tmp_path)]
    assert found == [f"task-{n}" for n in range(1, 11)]
    # What is wrong with a later task does no harm yet.
    touch(tmp_path, "task-3/other.csv")
    assert [task.name for task in find_tasks(tmp_path, 2)] == ["task-1", "task-2"]
    with pytest.raises(ConfigError, match="other"):
        find_tasks(tmp_path, 3)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["task-01/train.csv", "task-03/train.csv"], "task-03 comes without a task 2"),
        (["task-00/train.csv"], "task-00 comes without a task 1"),
        (["task-01/train.csv", "task-1/train.csv"], "task-1 has the number of task-01"),
        (["task-01/train.csv", "notes/a.csv"], "notes: expected nothing but folders"),
        (["task-01"], "task-01: expected nothing but folders"),
        (["task-one/train.csv"], "task-one: expected nothing but folders"),
        (["task-01/test.csv"], "task-01 has no train"),
        (
            ["task-01/train.csv", "task-01/train.npz"],
            "expected one train, but train.csv",
        ),
        (["task-01/train.txt"], r"train\.txt: expected nothing but train, valid and"),
        (["task-01/train.csv", "task-01/more.csv"], r"more\.csv: expected nothing but"),
    ],
)
def test_other_names_and_gaps_are_refused(tmp_path, names, words):
    touch(tmp_path, *names)
    with pytest.raises(ConfigError, match=words):
        find_tasks(tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    for path in (tmp_path / "none", touch(tmp_path, "file") / "file"):
        with pytest.raises(
            ConfigError, match=r"^data-path: .* is refused: expected a f"
        ):
            find_tasks(path)


def test_a_manifest_names_tasks_and_files(tmp_path):
    touch(tmp_path, "one/big.csv", "other.csv")
    (tmp_path / "tasks.toml").write_text(
        '[[task]]\nname = "second"\ntrain = "other.csv"\n'
        '[[task]]\nname = "first"\ntrain = "one/big.csv"\ntest = "other.csv"\n'
    )
    second, first = find_tasks(tmp_path)
    assert (second.name, second.test) == ("second", None)
    assert (first.train, first.test) == (
        tmp_path / "one" / "big.csv",
        tmp_path / "other.csv",
    )
    assert shares(load_task(first, 1, wanted())) == [4, 2, 6]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[task]", "data-path: got .*tasks.toml', expected a TOML file"),
        ("", r"tasks\.toml: expected tables \[\[task\]\] and nothing else"),
        ("task = 3", r"tasks\.toml: expected tables \[\[task\]\] and nothing else"),
        ("task = [3]", "task 1: expected a table"),
        ('[[task]]\nname = "x"', "task 1: train: missing, expected a value"),
        ('[[task]]\ntrain = "x"', "task 1: name: missing"),
        ('[[task]]\nname = ""\ntrain = "x"', "task 1: name: got '', expected"),
        ('[[task]]\nname = "x"\ntrain = 3', "task 1: train: got 3, expected a valid"),
        (OTHER + "more = 1", "task 1: more: got 'more', expected one of name, "),
        (OTHER + 'labels = ["a", "a"]', "task 1: labels: expected each label once"),
        (OTHER * 2, "expected a different name for each task"),
    ],
)
def test_a_mistake_in_the_manifest_is_named(tmp_path, text, words):
    touch(tmp_path, "other.csv")
    (tmp_path / "tasks.toml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        find_tasks(tmp_path)


@pytest.mark.parametrize("key", ["train", "valid", "test"])
def test_nothing_outside_of_the_folder_is_read(tmp_path, key):
    inside = touch(tmp_path / "data", "other.csv")
    outside = touch(tmp_path, "secret.csv") / "secret.csv"
    (inside / "link.csv").symlink_to(outside)
    (inside / "up").symlink_to(tmp_path)
    paths = ["../secret.csv", "up/secret.csv", "link.csv", "a/../../b.csv", "\0"]
    for path in [*paths, str(outside)]:
        entry = {"name": "x", "train": "other.csv", key: path}
        lines = "\n".join(f"{k} = {json.dumps(v)}" for k, v in entry.items())
        (inside / "tasks.toml").write_text(f"[[task]]\n{lines}\n")
        with pytest.raises(ConfigError, match=r"expected a path inside|is no path"):
            find_tasks(inside)


def test_the_manifests_labels_are_those_of_the_file(tmp_path):
    touch(tmp_path, "other.csv")
    for labels, odd in (('["cat"]', "dog"), ('["cat", "dog", "emu"]', "emu")):
        (tmp_path / "tasks.toml").write_text(f"{OTHER}labels = {labels}\n")
        sentence = f"label '{odd}' is only here or only in"
        with pytest.raises(ConfigError, match=sentence):
            load_task(find_tasks(tmp_path)[0], 0, wanted())


def test_a_file_that_the_manifest_names_must_be_there(tmp_path):
    (tmp_path / "tasks.toml").write_text(OTHER)
    with pytest.raises(ConfigError, match=r"other\.csv cannot be read \(No such file"):
        load_task(find_tasks(tmp_path)[0], 0, wanted())
