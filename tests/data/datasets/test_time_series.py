"""Series: told from images, kept as they are, and given only to a model for them."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.arrays import from_arrays
from fcl_flower.data.examples import to_inputs
from fcl_flower.data.registry import load_dataset
from fcl_flower.models.build import create_model


@pytest.mark.parametrize("shape", [(3, 6), (5, 3), (3, 32, 32), (-1,)])
def test_a_model_for_another_shape_is_refused(shape):
    y = np.arange(2)
    motion = from_arrays(
        np.full((2, 3, 5), 7.0), y, np.zeros((2, 3, 5)), y, (), "motion"
    )
    sentence = r"model: got .* expected \(3, 5\) for the samples of 'motion'"
    with pytest.raises(ConfigError, match=sentence):
        to_inputs(motion, motion.train, y, shape, None)
    assert to_inputs(motion, motion.train, y, (3, 5), None).dtype == torch.float32


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
