"""Data sets made of arrays in memory: the rules are those of files."""

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


@pytest.mark.parametrize(
    ("given", "form", "dtype"),
    [
        (samples((4, 4)), ImageDataset, np.uint8),
        (samples((4, 4, 3)), ImageDataset, np.uint8),
        (samples((4, 4), dtype=np.uint8), ImageDataset, np.uint8),
        (samples((2, 9), low=-1.0), TimeSeriesDataset, np.float32),
        (samples((5,)), TabularDataset, np.float32),
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
    assert (found.class_names, stored.class_names) == (("a", "b", "c"), ("0", "1", "2"))


def test_the_given_arrays_stay_the_users_own():
    x, x_test = samples((4, 4), dtype=np.uint8)
    labels = Y.copy()
    found = from_arrays(x, labels, x_test, Y_TEST)
    x[:], labels[:] = 7, 1
    assert not found.train.x.any()
    assert found.train.y.tolist() == Y.tolist()
    with pytest.raises(ValueError, match="read-only"):
        found.train.x[0] = 1


def test_lists_will_do():
    found = from_arrays([[1, 2], [3, 4]], [0, 1], [[5, 6], [7, 8]], [1, 0])
    assert found.test.x.tolist() == [[5, 6], [7, 8]]
    assert found.name == "arrays"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"y_test": [0, 1]}, r"mine: y_test: got shape \(2,\), expected \(3,\), one"),
        ({"y_test": [0, 1, 0]}, "mine: y_test: got no sample of label 2, expected ev"),
        ({"x_test": np.zeros((3, 6))}, r"mine: got test samples of shape \(6,\), exp"),
        ({"x_test": np.full((3, 5), np.nan)}, "mine: x_test: got values that float32"),
        ({"x_train": np.zeros(6), "x_test": np.zeros(3)}, r"x_train: got shape \(6,\)"),
        ({"class_names": ("a", "b")}, r"mine: y_train: got labels 0\.\.2, expected 0"),
    ],
)
def test_a_wrong_array_is_refused_by_its_name(change, sentence):
    x, x_test = samples((5,))
    good = {"x_train": x, "y_train": Y, "x_test": x_test, "y_test": Y_TEST}
    with pytest.raises(ConfigError, match=sentence) as caught:
        from_arrays(**{**good, **change}, name="mine")
    assert not str(caught.value).endswith(".")
