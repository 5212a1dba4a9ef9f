"""Test samples that are taken from the training samples, by a name's ``held-out:``."""

import numpy as np
import pytest

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.arrays import from_arrays
from fcl_flower.data.datasets import derive_dataset
from fcl_flower.data.registry import load_dataset
from fcl_flower.data.texts import TextDataset, text_dataset, text_split


def tables(counts):
    """Rows that are told apart by their first column, ``counts`` of each class."""
    y = np.repeat(np.arange(len(counts)), counts)
    x = np.stack([np.arange(len(y)), y], axis=1).astype(np.float32)
    return from_arrays(x, y, -1 - x, y, name="rows")


def test_a_fifth_of_each_class_is_for_testing_and_test_samples_are_left_alone():
    whole = tables([10, 20, 2])
    cut = derive_dataset("held-out:rows", whole)

    assert type(cut) is type(whole)
    assert (cut.name, cut.class_names) == ("held-out:rows", whole.class_names)
    assert np.bincount(cut.test.y).tolist() == [2, 4, 1]
    assert np.bincount(cut.train.y).tolist() == [8, 16, 1]
    both = np.concatenate([cut.train.x, cut.test.x])
    np.testing.assert_array_equal(np.sort(both[:, 0]), np.arange(32))
    for split in (cut.train, cut.test):
        np.testing.assert_array_equal(split.x[:, 1], split.y)
        assert not split.x.flags.writeable
        assert not split.y.flags.writeable


def test_texts_are_held_out_too():
    texts = [f"text {index}" for index in range(10)]
    split = text_split(texts, [0] * 5 + [1] * 5)
    other = text_split(["never", "seen"], [0, 1])
    cut = derive_dataset(
        "held-out:a", text_dataset("t", "t", split, other, ("no", "yes"))
    )

    assert isinstance(cut, TextDataset)
    assert sorted([*cut.train.x, *cut.test.x]) == texts
    assert [len(cut.train.x), len(cut.test.x)] == [8, 2]
    assert [texts.index(x) // 5 for x in cut.test.x] == cut.test.y.tolist()


def test_a_class_with_a_single_sample_is_refused():
    with pytest.raises(ConfigError) as problem:
        derive_dataset("held-out:rows", tables([3, 1]))
    assert str(problem.value) == (
        "dataset: got 'held-out:rows' with one training sample of class '1', expected "
        "two or more, as one is held out"
    )


def test_a_data_set_is_named_so(tmp_path):
    whole = load_dataset("digits", tmp_path)
    cut = load_dataset("held-out:digits", tmp_path)
    assert cut.name == "held-out:digits"
    assert len(cut.train.x) + len(cut.test.x) == len(whole.train.x)
    again = derive_dataset("held-out:digits", whole)
    np.testing.assert_array_equal(cut.test.x, again.test.x)
    with pytest.raises(ConfigError, match="got 'nonsense', expected one of"):
        load_dataset("held-out:nonsense", tmp_path)
