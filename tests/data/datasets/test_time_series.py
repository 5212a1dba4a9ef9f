"""Series: told from images, kept as they are, and given only to a model for them."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.arrays import ImageDataset, TimeSeriesDataset
from fcl_flower.data.examples import check_shape, to_inputs
from fcl_flower.data.registry import load_dataset
from fcl_flower.models.build import create_model


@pytest.fixture(autouse=True)
def fresh_cache():
    load_dataset.cache_clear()


def arrays(**changes):
    """Return a valid file's arrays: 2 classes, series of 3 channels and 5 steps."""
    rng = np.random.default_rng(0)
    good = {
        "x_train": rng.normal(size=(6, 3, 5)).astype(np.float16),
        "y_train": np.arange(6) % 2,
        "x_test": rng.normal(size=(4, 3, 5)),
        "y_test": np.arange(4) % 2,
    }
    return {**good, **changes}


@pytest.fixture
def load(tmp_path):
    def save_and_load(**changes):
        np.savez(tmp_path / "motion.npz", **arrays(**changes))
        return load_dataset("motion", tmp_path)

    return save_and_load


def test_series_stay_as_they_are(load):
    given = arrays()
    motion = load()
    assert isinstance(motion, TimeSeriesDataset)
    assert motion.train.x.dtype == motion.test.x.dtype == np.float32
    np.testing.assert_array_equal(motion.train.x, given["x_train"].astype(np.float32))
    np.testing.assert_array_equal(motion.test.x, given["x_test"].astype(np.float32))
    assert motion.class_names == ("0", "1")
    assert not motion.train.x.flags.writeable


def test_samples_in_0_to_1_are_grey_images_and_one_value_outside_makes_series(load):
    inside = np.linspace(0, 1, 90).reshape(6, 3, 5)
    test = np.ones((4, 3, 5))
    assert isinstance(load(x_train=inside, x_test=test), ImageDataset)
    for beyond in (-0.01, 1.01):
        other = test.copy()
        other[3, 2, 4] = beyond
        load_dataset.cache_clear()
        assert isinstance(load(x_train=inside, x_test=other), TimeSeriesDataset)


@pytest.mark.parametrize("split", ["x_train", "x_test"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
def test_a_value_that_is_not_finite_is_refused_by_file_and_key(load, split, value):
    bad = arrays()[split].astype(np.float64)
    bad[1, 2, 3] = value
    with pytest.raises(ConfigError, match=rf"motion\.npz: {split}: .*finite"):
        load(**{split: bad})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"x_test": np.zeros((4, 3, 6)) - 1},
            r"test samples of shape \(3, 6\)",
        ),
        ({"x_test": np.zeros((0, 3, 5))}, r"x_test: got shape \(0, 3, 5\)"),
        ({"y_test": np.zeros(4, int)}, "y_test: got no sample of label 1"),
        ({"y_train": np.arange(5) % 2}, r"y_train: got shape \(5,\)"),
        ({"x_test": np.zeros((4, 3, 5), np.uint8)}, "x_train: got values from"),
    ],
)
def test_a_wrong_array_is_refused_by_file_and_key(load, tmp_path, change, words):
    with pytest.raises(ConfigError, match=words) as caught:
        load(**change)
    assert str(tmp_path / "motion.npz") in str(caught.value)


def test_a_model_gets_the_chosen_series(load):
    motion = load()
    x = to_inputs(motion, motion.train, np.array([4, 1]), (3, 5), None)
    assert x.dtype == torch.float32
    np.testing.assert_array_equal(x.numpy(), motion.train.x[[4, 1]])
    x.zero_()
    assert motion.train.x[1].any()


@pytest.mark.parametrize("shape", [(3, 6), (5, 3), (3, 32, 32), (-1,)])
def test_a_model_for_another_shape_is_refused(load, shape):
    motion = load()
    with pytest.raises(ConfigError, match=r"model: got .* expected \(3, 5\)"):
        to_inputs(motion, motion.train, np.array([0]), shape, None)
    with pytest.raises(ConfigError, match="for the samples of 'motion'"):
        check_shape(motion, shape)


def test_a_model_for_series_is_refused_for_images(tmp_path):
    digits = load_dataset("digits", tmp_path)
    with pytest.raises(ConfigError, match=r"model: got input shape \(9, 128\)"):
        to_inputs(digits, digits.train, np.array([0]), (9, 128), None)


def test_har_cnn_tells_human_activities_apart():
    root = os.environ.get("FCL_DATA")
    if not root or not (Path(root) / "har" / "uci_har_raw9.npz").is_file():
        pytest.skip("needs har/uci_har_raw9.npz under FCL_DATA")
    har = load_dataset("uci_har_raw9", Path(root))
    assert har.train.x.shape == (2400, 9, 128)
    everyone = [np.arange(len(split.y)) for split in (har.train, har.test)]
    x, x_test = (
        to_inputs(har, split, chosen, (9, 128), None)
        for split, chosen in zip((har.train, har.test), everyone, strict=True)
    )
    y = torch.from_numpy(har.train.y.copy())
    model = create_model("har-cnn", tasks=1, classes=6, single_head=True, seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        for batch in torch.randperm(len(y), generator=generator).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch], 0), y[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        found = model(x_test, 0).argmax(1).numpy()
    assert np.mean(found == har.test.y) > 0.85
