"""What fcl check-data says of data that can be learned from, and perhaps should not."""

import numpy as np
import pytest

from fcl_flower.data.arrays import ImageDataset, TabularDataset
from fcl_flower.data.datasets import Split
from fcl_flower.data.local.client import LocalTask
from fcl_flower.data.local.findings import class_counts, findings
from fcl_flower.data.texts import TextDataset

NOISE = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)


def task(x, y, test_x, test_y, kind=TabularDataset, names=("a", "b"), columns=()):
    """Make a task whose last training sample is held out to validate."""
    y, test_y = np.asarray(y), np.asarray(test_y)
    train, valid = Split(x[:-1], y[:-1]), Split(x[-1:], y[-1:])
    data = kind("task-01", train, Split(test_x, test_y), tuple(names))
    return LocalTask(data, valid, tuple(names), tuple(columns))


def said(*tasks, rule="refuse"):
    return list(findings({"site": tasks}, rule))


def table(x, y=None, **more):
    y = np.arange(len(x)) % 2 if y is None else y
    return task(x[10:], y[10:], x[:10], y[:10], **more)


def test_nothing_is_said_of_noise():
    assert said(table(NOISE)) == []


def test_classes_are_counted_without_those_to_test():
    found = table(NOISE, np.repeat([0, 1], [15, 25]), names=("ill", "well"))
    assert class_counts(found) == {"ill": 5, "well": 25}


@pytest.mark.parametrize(("few", "told"), [(3, True), (4, False)])
def test_a_rare_class_is_named(few, told):
    x = np.random.default_rng(1).normal(size=(10 + 30 + few, 2)).astype(np.float32)
    y = np.concatenate([np.arange(10) % 2, np.zeros(30, int), np.ones(few, int)])
    sentence = (
        "site, task-01: class 'a' has 30 training samples, 'b' 3: accuracy says little "
        "of a rare class"
    )
    assert (sentence in said(table(x, y))) == told


@pytest.mark.parametrize("kind", [TabularDataset, TextDataset])
def test_samples_to_train_and_to_test_on_are_counted(kind):
    x, test = NOISE[:20], np.concatenate([NOISE[[0, 19]], NOISE[20:25]])
    if kind is TextDataset:
        x, test = tuple(map(str, x)), tuple(map(str, test))
    (found,) = said(task(x, np.arange(20) % 2, test, [0, 1, 0, 1, 0, 1, 0], kind))
    assert "2 of 7 test samples are also training samples" in found


@pytest.mark.parametrize(
    ("column", "what"),
    [
        (np.full(40, 7), "is the same number everywhere"),
        (np.arange(40)[::-1], "is the number of the sample"),
        (np.arange(40) % 2 * 5 + NOISE[:, 0] / 100, "is all that tells the classes"),
    ],
)
@pytest.mark.parametrize(("names", "called"), [("xyz", "'y'"), ("", "'2'")])
def test_columns_that_say_nothing_or_too_much_are_named(column, what, names, called):
    x = NOISE.copy()
    x[:, 1] = column
    (found,) = said(table(x, columns=names))
    assert f"column {called} {what}" in found


def test_the_index_of_rows_sorted_by_class_is_named():
    x = NOISE.copy()
    x[:, 0] = np.arange(40) * 2
    (found,) = said(task(x[::2], np.repeat([0, 1], 10), x[1::2], np.repeat([0, 1], 10)))
    assert "column '1' is all that tells the classes apart" in found


def test_samples_with_several_labels_are_counted():
    x = np.concatenate([NOISE, NOISE[:3] + 0.0])
    y = np.r_[np.arange(40) % 2, (np.arange(3) + 1) % 2]
    found = said(task(x[20:], y[20:], x[:20], y[:20]))
    sentence = "site, task-01: 3 samples are there with several labels, such as 'a' and"
    assert [text for text in found if text.startswith(sentence)]
    assert not any("several labels" in text for text in said(table(NOISE)))


def test_equal_columns_are_named_once():
    x = np.concatenate([NOISE, NOISE[:, [0]], np.ones((40, 2), np.float32)], axis=1)
    found = said(table(x, columns=("a", "b", "c", "d", "e", "f")))
    assert (
        "site, task-01: columns 'a' and 'd' are equal: leave all but one out" in found
    )
    assert sum("are equal" in text for text in found) == 1


def test_many_columns_are_one_sentence():
    x = np.zeros((40, 30), np.float32)
    x[:, 0] = NOISE[:, 0]
    (found,) = said(table(x))
    assert "column '2', '3', '4', '5', '6' (and 24 others) is the same" in found


def test_images_that_are_all_dark_are_told():
    x = np.random.default_rng(0).uniform(0, 4095 / 65535, (40, 4, 4))
    dark = table(x.astype(np.float32), kind=ImageDataset)
    (found,) = said(dark)
    assert "the brightest pixel is 6.2% of white" in found
    assert said(table((x * 15).astype(np.float32), kind=ImageDataset)) == []
    black = table(np.uint8(np.arange(640).reshape(40, 4, 4) % 7), kind=ImageDataset)
    assert all("brightest" not in found for found in said(black))


def test_classes_of_several_clients_that_look_alike_are_named_until_somebody_decides():
    first, second = (
        table(NOISE, names=("Cat", "dog")),
        table(NOISE, names=("cat", "dog")),
    )
    clients = {"a": [first], "b": [second]}
    (found,) = findings(clients, "refuse")
    assert "classes look alike, 'Cat' (a, task-01) and 'cat' (b, task-01)" in found
    assert "data.labels=merge" in found
    for rule in ("merge", "keep"):
        assert list(findings(clients, rule)) == []
