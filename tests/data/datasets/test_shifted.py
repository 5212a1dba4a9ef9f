"""Data sets whose images are turned, or whose classes go by other names."""

from pathlib import Path

import numpy as np
import pytest

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.arrays import from_arrays
from fcl_flower.data.datasets import derive_dataset
from fcl_flower.data.registry import known_datasets, load_dataset

NAMES = ("cat", "dog", "owl")


def images(*colours):
    """Six images of three pixels by two, whose grey levels are all different."""
    x = np.arange(36, dtype=np.uint8).reshape(6, 2, 3)
    x = np.stack([x + colour for colour in colours], -1) if colours else x
    y = np.arange(6) % 3
    return from_arrays(x, y, x[::-1], y[::-1], NAMES, "pets")


def test_images_are_turned_anticlockwise():
    whole = images()
    found = {
        degrees: derive_dataset(f"rotated-{degrees}:pets", whole).train.x[0].tolist()
        for degrees in (90, 180, 270)
    }
    assert whole.train.x[0].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found == {
        90: [[2, 5], [1, 4], [0, 3]],
        180: [[5, 4, 3], [2, 1, 0]],
        270: [[3, 0], [4, 1], [5, 2]],
    }


def test_turned_images_keep_labels_names_and_colours():
    whole = images(0, 50, 100)
    found = derive_dataset("rotated-270:pets", whole)

    assert (found.name, found.class_names) == ("rotated-270:pets", NAMES)
    for turned, split in ((found.train, whole.train), (found.test, whole.test)):
        np.testing.assert_array_equal(turned.y, split.y)
        assert turned.x.shape == (6, 3, 2, 3)
        assert not turned.x.flags.writeable
        for image, before in zip(turned.x, split.x, strict=True):
            np.testing.assert_array_equal(image[0, 1], before[0, 0])


def test_a_class_has_the_name_of_the_one_so_many_places_behind_it():
    whole = images()
    found = derive_dataset("relabelled-2:pets", whole)

    assert found.class_names == ("owl", "cat", "dog")
    assert found.name == "relabelled-2:pets"
    assert found.train is whole.train
    assert found.test is whole.test


def test_both_are_data_sets_by_name_and_go_together(tmp_path: Path):
    digits = load_dataset("digits", tmp_path)
    both = load_dataset("rotated-180:relabelled-3:digits", tmp_path)
    held = load_dataset("held-out:rotated-180:digits", tmp_path)

    assert both.name == "rotated-180:relabelled-3:digits"
    assert both.class_names == tuple("3456789012")
    np.testing.assert_array_equal(both.train.x, digits.train.x[:, ::-1, ::-1])
    assert len(held.train.x) + len(held.test.x) == len(digits.train.x)
    assert {"rotated-90:NAME", "relabelled-N:NAME"} <= known_datasets(tmp_path).keys()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rotated-45:digits", "expected rotated-90, rotated-180 or rotated-270"),
        ("rotated-360:digits", "expected rotated-90, rotated-180 or rotated-270"),
        ("rotated-0:digits", "expected rotated-90, rotated-180 or rotated-270"),
        ("rotated-90:stdlib-docs", "expected images, not text"),
        ("relabelled-0:digits", "expected relabelled-N with N from 1 to 9, below"),
        ("relabelled-10:digits", "expected relabelled-N with N from 1 to 9, below"),
        ("relabelled-1:nonsense", "got 'nonsense', expected one of"),
    ],
)
def test_what_cannot_be_made_is_refused(tmp_path, name, expected):
    with pytest.raises(ConfigError) as problem:
        load_dataset(name, tmp_path)
    assert str(problem.value).startswith("dataset: got ")
    assert expected in str(problem.value)
