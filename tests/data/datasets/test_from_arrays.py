"""Data sets made of arrays in memory, of every form, and what is refused."""

import numpy as np
import pytest

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.arrays import (
    ImageDataset,
    TabularDataset,
    TimeSeriesDataset,
    from_arrays,
)
from fcl_flower.data.registry import load_dataset

Y, Y_TEST = np.array([0, 1, 2, 0, 1, 2]), np.array([2, 1, 0])


def samples(shape, low=0.0, dtype=np.float64):
    rng = np.random.default_rng(0)
    return [rng.uniform(low, 1, (n, *shape)).astype(dtype) for n in (6, 3)]


IMAGES, SERIES = samples((5, 4), dtype=np.uint8), samples((2, 9), low=-1.0)
TABLE = samples((5,))


@pytest.mark.parametrize(
    ("given", "form", "dtype"),
    [
        (samples((4, 4)), ImageDataset, np.float32),
        (samples((4, 4, 3)), ImageDataset, np.float32),
        (samples((5, 4), dtype=np.uint16), ImageDataset, np.float32),
        (IMAGES, ImageDataset, np.uint8),
        (SERIES, TimeSeriesDataset, np.float32),
        (TABLE, TabularDataset, np.float32),
        (samples((5,), dtype=np.int64), TabularDataset, np.float32),
    ],
)
def test_arrays_are_what_a_file_of_them_would_be(given, form, dtype, tmp_path):
    x, x_test = given
    found = from_arrays(x, Y, x_test, Y_TEST, ("a", "b", "c"), name="mine")
    arrays = {"x_train": x, "y_train": Y, "x_test": x_test, "y_test": Y_TEST}
    np.savez(tmp_path / "file.npz", **arrays)
    stored = load_dataset("file", tmp_path)
    assert (type(found), found.name) == (type(stored), "mine") == (form, "mine")
    for one, other in ((found.train, stored.train), (found.test, stored.test)):
        assert one.x.dtype == dtype
        np.testing.assert_array_equal(one.x, other.x)
        np.testing.assert_array_equal(one.y, other.y)
    if form is not ImageDataset:
        np.testing.assert_array_equal(found.train.x, x.astype(np.float32))
    assert (found.class_names, stored.class_names) == (("a", "b", "c"), ("0", "1", "2"))


def test_images_of_more_than_8_bits_are_what_they_were_but_for_the_unit():
    found = from_arrays(
        [[[0.0, 0.5001, 1.0]]], [0], np.ones((1, 1, 3), np.float32), [0]
    )
    assert found.train.x.tolist() == [[[0, np.float32(0.5001), 1]]]
    assert found.test.x.tolist() == [[[1, 1, 1]]]
    deep = np.array([[[0, 1, 65535]]], np.uint16)
    signed = np.array([[[0, 1, 32767]]], np.int16)
    found = from_arrays(deep, [0], signed, [0])
    np.testing.assert_allclose(found.train.x, [[[0, 1 / 65535, 1]]])
    np.testing.assert_allclose(found.test.x, [[[0, 1 / 32767, 1]]])
    with pytest.raises(ConfigError, match="from -3 to 1, expected 0 to 32767: scale"):
        from_arrays(signed, [0], np.array([[[-3, 0, 1]]], np.int16), [0])


def test_one_value_outside_of_0_to_1_makes_series():
    inside, test = np.linspace(0, 1, 90).reshape(6, 3, 5), np.ones((3, 3, 5))
    assert isinstance(from_arrays(inside, Y, test, Y_TEST), ImageDataset)
    for beyond in (-0.01, 1.01):
        other = test.copy()
        other[2, 2, 4] = beyond
        assert isinstance(from_arrays(inside, Y, other, Y_TEST), TimeSeriesDataset)


def test_the_given_arrays_stay_the_users_own():
    x, labels = IMAGES[0].copy(), Y.copy()
    found = from_arrays(x, labels, IMAGES[1], Y_TEST)
    x[:], labels[:] = 7, 1
    np.testing.assert_array_equal(found.train.x, IMAGES[0])
    assert found.train.y.tolist() == Y.tolist()
    with pytest.raises(ValueError, match="read-only"):
        found.train.x[0] = 1


def test_lists_will_do():
    found = from_arrays([[1, 2], [3, 4]], [0, 1], [[5, 6], [7, 8]], [1, 0])
    assert found.test.x.tolist() == [[5, 6], [7, 8]]
    assert found.name == "arrays"


@pytest.mark.parametrize(
    ("base", "change", "sentence"),
    [
        (TABLE, {"y_test": [0, 1]}, r"y_test: got shape \(2,\), expected \(3,\), one"),
        (TABLE, {"y_test": [0, 1, 0]}, "y_test: got no sample of label 2, expected ev"),
        (TABLE, {"y_train": Y * 1.0}, "y_train: got dtype float64, expected whole num"),
        (TABLE, {"y_train": Y[:, None]}, r"y_train: got shape \(6, 1\)"),
        (
            TABLE,
            {"y_train": Y + 1, "class_names": tuple("abc")},
            r"y_train: got labels 1\.\.3",
        ),
        (TABLE, {"y_train": Y - 1}, r"y_train: got labels -1\.\.1"),
        (TABLE, {"y_train": Y % 2}, "y_test: got labels 0..2, expected 0..1"),
        (TABLE, {"y_train": Y * 2**40}, "y_train: got no sample of label 1"),
        (TABLE, {"class_names": ("a", "b", "a")}, "class_names has 'a' twice, expecte"),
        (TABLE, {"class_names": ("a", "b", 1.5)}, "class_names: label is 1.5, expecte"),
        (TABLE, {"class_names": ("a", "b")}, r"y_train: got labels 0\.\.2, expected 0"),
        (
            TABLE,
            {"x_test": np.zeros((3, 6))},
            r"mine: got test samples of shape \(6,\)",
        ),
        (TABLE, {"x_test": np.zeros((3, 0))}, r"x_test: got shape \(3, 0\)"),
        (
            TABLE,
            {"x_test": np.full((3, 5), "1")},
            "x_test: got dtype <U1, expected numb",
        ),
        *(
            (TABLE, {"x_test": np.full((3, 5), value)}, "x_test: .*float32 cannot hold")
            for value in (np.nan, np.inf, -np.inf, 1e39)
        ),
        (TABLE, {"x_train": np.zeros(6), "x_test": np.zeros(3)}, "x_train: got shape"),
        (SERIES, {"x_test": np.zeros((3, 2, 8)) - 1}, "test samples of shape"),
        (SERIES, {"x_test": np.zeros((0, 2, 9))}, r"x_test: got shape \(0, 2, 9\)"),
        (SERIES, {"x_test": SERIES[1] * np.nan}, "x_test: .*float32 cannot hold"),
        (SERIES, {"x_test": IMAGES[1]}, "x_train: got values from"),
        (
            IMAGES,
            {"x_train": np.zeros((6, 20), np.uint8)},
            r"x_train: got shape \(6, 20",
        ),
        (IMAGES, {"x_train": np.zeros((6, 5, 4, 2), np.uint8)}, "x_train: got shape"),
        (IMAGES, {"x_train": np.zeros((0, 5, 4), np.uint8)}, "x_train: got shape"),
        (IMAGES, {"x_train": np.zeros((6, 5, 4), int)}, "x_train: got dtype int64"),
        (
            IMAGES,
            {"x_train": np.full((6, 5, 4), 1.5)},
            "x_train: got values from 1.5 to",
        ),
        (
            IMAGES,
            {"x_train": np.full((6, 5, 4), -0.1)},
            "x_train: got values from -0.1",
        ),
        (
            IMAGES,
            {"x_train": np.full((6, 5, 4), np.nan)},
            "x_train: got values from nan",
        ),
        (
            IMAGES,
            {"x_test": IMAGES[1][:, 1:]},
            r"test samples of shape \(4, 4\), expect",
        ),
    ],
)
def test_a_wrong_array_is_refused_by_its_name(base, change, sentence):
    good = {"x_train": base[0], "y_train": Y, "x_test": base[1], "y_test": Y_TEST}
    with pytest.raises(
        ConfigError, match=rf"^mine: .*{sentence.removeprefix('mine: ')}"
    ):
        from_arrays(**{**good, **change}, name="mine")
