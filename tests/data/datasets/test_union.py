"""Several data sets as one, by a name with ``+``."""

import numpy as np
import pytest
import torch
from text_sets import write_text_set

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.arrays import TimeSeriesDataset
from fcl_flower.data.images import resized
from fcl_flower.data.registry import load_dataset
from fcl_flower.data.texts import TextDataset


def save(folder, name, shape, classes, low=0, dtype=np.uint8):
    """Write three training samples and one test sample of each class."""
    rng, y = np.random.default_rng(len(name)), np.arange(classes)
    train, test = (
        rng.uniform(low, 256, (count * classes, *shape)).astype(dtype)
        for count in (3, 1)
    )
    given = {"x_train": train, "y_train": np.tile(y, 3), "x_test": test, "y_test": y}
    np.savez(folder / f"{name}.npz", **given)
    return given


def test_classes_stand_side_by_side_in_the_order_given(tmp_path):
    one = save(tmp_path, "one", (5, 4), 2)
    other = save(tmp_path, "other", (5, 4), 3)
    both = load_dataset("other+one", tmp_path)
    assert load_dataset("other+one", tmp_path) is both
    assert both.name == "other+one"
    assert both.class_names == ("other:0", "other:1", "other:2", "one:0", "one:1")
    for split in ("train", "test"):
        found = getattr(both, split)
        x = np.concatenate([other[f"x_{split}"], one[f"x_{split}"]])
        y = [*other[f"y_{split}"], *(3 + one[f"y_{split}"])]
        np.testing.assert_array_equal(found.x, x)
        assert found.y.tolist() == y
        assert not found.x.flags.writeable
        assert not found.y.flags.writeable


def test_images_get_the_largest_size_and_colours_where_one_has_them(tmp_path):
    grey = save(tmp_path, "grey", (6, 4), 2)
    save(tmp_path, "rgb", (3, 8, 3), 2)
    both = load_dataset("grey+rgb", tmp_path)
    assert both.train.x.shape == (12, 6, 8, 3)
    assert both.train.x.dtype == np.uint8
    np.testing.assert_array_equal(both.test.x[:2, ..., 0], both.test.x[:2, ..., 2])
    assert (both.test.x[2:, ..., 0] != both.test.x[2:, ..., 2]).any()
    # Only the width of the grey ones has to grow, from 4 to 8: the outermost columns
    # keep their value, those between are a quarter and three quarters of neighbours.
    x = grey["x_test"].astype(float)
    wide = both.test.x[:2, ..., 0]
    np.testing.assert_array_equal(wide[..., 0], x[..., 0])
    np.testing.assert_allclose(wide[..., 1], (3 * x[..., 0] + x[..., 1]) / 4, atol=0.5)
    np.testing.assert_allclose(wide[..., 2], (x[..., 0] + 3 * x[..., 1]) / 4, atol=0.5)


def test_many_images_are_resized_as_few_are():
    x = np.random.default_rng(0).integers(0, 256, (2100, 3, 2), np.uint8)
    large = resized(x, 6, 5)
    for at in (0, 999, 1000, 2099):
        wanted = torch.nn.functional.interpolate(
            torch.tensor(x[at], dtype=torch.float32)[None, None],
            (6, 5),
            mode="bilinear",
            align_corners=False,
        )
        assert np.abs(large[at] - wanted[0, 0].numpy()).max() <= 0.5 + 1e-3


def test_texts_are_joined_also_where_a_field_is_the_label(tmp_path):
    write_text_set(tmp_path, [("p", "A cat")], [("p", "A cat")], "pets")
    write_text_set(tmp_path, [("n", "So it is")], [("n", "So it is")], "news")
    both = load_dataset("pets:label+news", tmp_path)
    assert isinstance(both, TextDataset)
    assert both.class_names == ("pets:label:p", "news:n")
    assert both.train.x == ("A cat", "So it is")
    assert both.test.y.tolist() == [0, 1]


def test_series_are_joined_where_they_have_one_shape(tmp_path):
    save(tmp_path, "a", (3, 5), 2, -256, np.float32)
    b = save(tmp_path, "b", (3, 5), 2, -256, np.float32)
    save(tmp_path, "c", (3, 6), 2, -256, np.float32)
    both = load_dataset("a+b", tmp_path)
    assert isinstance(both, TimeSeriesDataset)
    np.testing.assert_array_equal(both.test.x[2:], b["x_test"])
    sentence = r"'a\+c' with shape \(3, 5\) in 'a' and shape \(3, 6\) in 'c', expected"
    with pytest.raises(ConfigError, match=sentence):
        load_dataset("a+c", tmp_path)


def test_kinds_do_not_mix(tmp_path):
    write_text_set(tmp_path, [("n", "So it is")], [("n", "So it is")], "news")
    save(tmp_path, "motion", (3, 5), 2, -256, np.float32)
    for pair, words in (
        ("digits+news", "images in 'digits' and text in 'news'"),
        ("motion+digits", "time-series in 'motion' and images in 'digits'"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_dataset(pair, tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("digits+digits", r"got 'digits\+digits', expected different names"),
        ("digits+nothing", "dataset: got 'nothing', expected"),
        ("digits+", "dataset: got '', expected"),
        ("+", "dataset: got '', expected"),
        ("digits+../x", r"dataset: got '\.\./x', expected"),
    ],
)
def test_a_member_that_cannot_be_is_named(tmp_path, name, words):
    with pytest.raises(ConfigError, match=words):
        load_dataset(name, tmp_path)


def test_the_hub_can_be_a_member(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "flwr_datasets", None)
    with pytest.raises(ConfigError, match="got 'hub:a/b', expected Flower Data"):
        load_dataset("digits+hub:a/b", tmp_path)
