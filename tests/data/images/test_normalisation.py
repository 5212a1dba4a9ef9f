"""By what pixels are standardized, against sums by hand."""

import numpy as np
import pytest
import torch
from torch import nn

from fcl_flower.config.run_config import DataSection
from fcl_flower.data.images import to_tensor
from fcl_flower.models.normalisation import FIXED, Normalisation, own_normalisation

BY_CHANNEL = Normalisation((0.1, 0.4, 0.7), (0.2, 0.3, 0.5))


def test_each_channel_has_its_own_mean_and_deviation():
    x = np.random.default_rng(1).integers(0, 256, (5, 4, 4, 3), np.uint8)
    found = to_tensor(x, (3, 4, 4), BY_CHANNEL).numpy()
    wanted = (x / 255 - [0.1, 0.4, 0.7]) / [0.2, 0.3, 0.5]
    np.testing.assert_allclose(found, wanted.transpose(0, 3, 1, 2), atol=1e-5)


def test_a_grey_image_gets_those_of_every_channel():
    x = np.full((1, 2, 2), 51, np.uint8)
    found = to_tensor(x, (3, 2, 2), BY_CHANNEL)
    wanted = [(0.2 - 0.1) / 0.2, (0.2 - 0.4) / 0.3, (0.2 - 0.7) / 0.5]
    assert found[0, :, 1, 1].tolist() == pytest.approx(wanted)
    assert found.is_contiguous()


@pytest.mark.parametrize("known", [FIXED, BY_CHANNEL])
def test_pixels_come_back(known):
    x = torch.rand(4, 3, 5, 5, generator=torch.Generator().manual_seed(2))
    np.testing.assert_allclose(known.pixels(known.standardized(x)), x, atol=1e-6)


def test_a_body_says_what_it_was_trained_on_or_is_fixed():
    body = nn.Linear(1, 1)
    assert own_normalisation(body) == ((0.5,), (0.25,))
    body.pixel_mean, body.pixel_deviation = [0.1, 0.2, 0.3], torch.tensor([1, 2, 4])
    assert own_normalisation(body) == ((0.1, 0.2, 0.3), (1.0, 2.0, 4.0))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0.5/0.25", ((0.5,), (0.25,))),
        ("0.1, 0.2, 0/0.3", ((0.1, 0.2, 0.0), (0.3,))),
        ("model", None),
        ("0.5", None),
        ("0.5/0", None),
        ("0.5/-1", None),
        ("0.5/nan", None),
        ("inf/1", None),
        ("1/2/3", None),
        ("/", None),
    ],
)
def test_a_setting_is_mean_and_deviation_or_no_numbers(text, wanted):
    assert DataSection(normalise=text).pixel_statistics == wanted
