"""Transforms of training samples, against loops over the images in NumPy."""

import numpy as np
import pytest
import torch
from torch import Generator, nn

from fcl_flower.core.errors import ConfigError, ContractError
from fcl_flower.data.transforms import (
    IMAGES,
    JITTER,
    TRANSFORMS,
    augmentation,
    colour,
    crop,
    cutout,
    flip,
    own,
)
from fcl_flower.models.normalisation import Normalisation


def seeded(seed=3):
    return Generator().manual_seed(seed)


def images(count=40, channels=3, height=8, width=16):
    """Return pixels above 0, so that black is none of them."""
    drawn = torch.rand(count, channels, height, width, generator=seeded(1))
    return 0.1 + 0.9 * drawn


def test_flip_mirrors_about_half_of_the_images_and_leaves_the_others():
    x = images(400)

    found = flip(x, seeded()).numpy()

    same = (found == x.numpy()).all((1, 2, 3))
    mirrored = (found == x.numpy()[..., ::-1]).all((1, 2, 3))
    assert (same ^ mirrored).all()
    assert 140 < mirrored.sum() < 260


def test_crop_shifts_each_image_by_an_eighth_at_most_and_fills_up_with_black():
    x = images(200).numpy()

    found = crop(torch.tensor(x), seeded()).numpy()

    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (2, 2)))
    shifts = [(down, right) for down in range(3) for right in range(5)]
    met = set()
    for before, after in zip(padded, found, strict=True):
        fits = [
            (down, right)
            for down, right in shifts
            if (before[:, down : down + 8, right : right + 16] == after).all()
        ]
        assert len(fits) == 1
        met.update(fits)
    assert met == {*shifts}


def test_an_image_of_32_pixels_is_shifted_by_four():
    x = torch.ones(400, 1, 32, 32)
    black = (crop(x, seeded()) == 0)[:, 0]
    assert {*black[:, 16].sum(1).tolist()} == {*black[:, :, 16].sum(1).tolist()}
    assert {*black[:, 16].sum(1).tolist()} == {0, 1, 2, 3, 4}


def by_hand(image, brightness, contrast, saturation):
    """Return one RGB image, float64, with the three factors applied in this order."""
    weights = np.array([0.299, 0.587, 0.114])[:, None, None]
    image = np.clip(brightness * image, 0, 1)
    mean = (weights * image).sum(0).mean()
    image = np.clip(mean + contrast * (image - mean), 0, 1)
    grey = (weights * image).sum(0)
    return np.clip(grey + saturation * (image - grey), 0, 1)


def test_colour_changes_brightness_contrast_and_saturation_of_each_image():
    x, draws = images(), seeded()
    factors = [
        1 + JITTER * (2 * torch.rand(40, 1, 1, 1, generator=draws).flatten() - 1)
        for _ in range(3)
    ]

    found = colour(x, seeded())

    for number, image in enumerate(x.double().numpy()):
        wanted = by_hand(image, *(float(factor[number]) for factor in factors))
        np.testing.assert_allclose(found[number], wanted, atol=1e-6)
    assert all(factor.min() < 0.7 and factor.max() > 1.3 for factor in factors)


def test_a_grey_image_stays_grey_as_if_it_were_one_of_three_equal_channels():
    x = images(channels=1)
    three = colour(x.expand(-1, 3, -1, -1), seeded())
    np.testing.assert_allclose(colour(x, seeded()).expand_as(three), three, atol=1e-6)


def test_cutout_covers_one_rectangle_with_grey_and_nothing_else():
    x = images(300)

    found = cutout(x, seeded())

    sizes = set()
    for before, after in zip(x, found, strict=True):
        covered = (after != before).any(0)
        assert (after[:, covered] == 0.5).all()
        rows, columns = torch.where(covered)
        assert covered.sum() == len(rows.unique()) * len(columns.unique())
        assert rows.max() - rows.min() == len(rows.unique()) - 1
        assert columns.max() - columns.min() == len(columns.unique()) - 1
        sizes.add((len(rows.unique()), len(columns.unique())))
    # At a border it is cut off; its centre is always in the image.
    assert (max(h for h, _ in sizes), max(w for _, w in sizes)) == (4, 8)
    assert min(h for h, _ in sizes) >= 2
    assert min(w for _, w in sizes) >= 4


@pytest.mark.parametrize("name", IMAGES)
def test_views_repeat_with_their_seed_and_differ_between_images(name):
    x = images(1).expand(30, -1, -1, -1)
    found = IMAGES[name](x, seeded())
    assert torch.equal(found, IMAGES[name](x, seeded()))
    assert not torch.equal(found, IMAGES[name](x, seeded(4)))
    assert len({tuple(one.flatten().tolist()) for one in found}) > 1
    assert (found >= 0).all()
    assert (found <= 1).all()


# ---- what a network takes


def test_a_transform_is_shown_pixels_whatever_they_are_standardized_by():
    x, shown = images(5), []
    known = Normalisation((0.1, 0.4, 0.7), (0.2, 0.3, 0.5))

    def half(pixels, generator):
        shown.append(pixels)
        return pixels / 2

    with_own = augmentation_of(half, known)
    found = with_own(known.standardized(x), seeded())

    np.testing.assert_allclose(shown[0], x, atol=1e-6)
    for channel, (mean, deviation) in enumerate(zip(*known, strict=True)):
        wanted = (x[:, channel] / 2 - mean) / deviation
        np.testing.assert_allclose(found[:, channel], wanted, atol=1e-5)


def augmentation_of(transform, normalisation):
    with TRANSFORMS.registered("own", transform):
        return augmentation(["own"], normalisation)


def test_transforms_are_applied_in_their_order_from_one_stream():
    x, draws = images(), seeded()
    found = augmentation(["crop", "flip"], Normalisation((0.0,), (1.0,)))(x, seeded())
    assert torch.equal(found, flip(crop(x, draws), draws))


def test_what_is_no_image_is_changed_as_it_is():
    series = torch.randn(4, 9, 20, generator=seeded())
    found = augmentation_of(lambda x: x + 1, None)(series, seeded())
    assert torch.equal(found, series + 1)


# ---- a callable of one's own


class Noise(nn.Module):
    """Draws from torch's global generator, as torchvision's transforms do."""

    def forward(self, *inputs):
        (x,) = inputs
        return x + torch.randn(x.shape)


def noise(x):
    return x + torch.randn(x.shape)


def drawn(x, generator):
    return x + torch.randn(x.shape, generator=generator)


def scaled(x, factor=2.0):
    return factor * x


@pytest.mark.parametrize("transform", [Noise(), noise, Noise().forward])
def test_torchs_global_generator_is_seeded_for_a_call_and_then_as_before(transform):
    x = images(3)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    known, draws = own("noise", transform), seeded()

    first, second = known(x, draws), known(x, draws)

    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(first, second)
    torch.manual_seed(6)
    assert torch.equal(first, known(x, seeded()))


def test_a_second_parameter_without_a_default_is_given_the_generator():
    x, draws = images(3), seeded()
    torch.randint(2**62, (), generator=draws)
    assert torch.equal(own("drawn", drawn)(x, seeded()), drawn(x, draws))
    assert torch.equal(own("scaled", scaled)(x, seeded()), 2 * x)


def test_a_callable_of_three_things_is_refused():
    with pytest.raises(ConfigError, match=r"mixed.*samples and a torch.Generator"):
        own("mixed", lambda x, y, generator: x)


@pytest.mark.parametrize(
    ("transform", "got"),
    [
        (lambda x: x[:, :1], r"torch.float32 \(3, 1, 8, 16\)"),
        (lambda x: x.double(), "torch.float64"),
        (lambda x: None, "NoneType"),
    ],
)
def test_other_samples_than_were_given_are_refused(transform, got):
    with pytest.raises(ContractError, match=f"augment bad: got {got}.*, expected"):
        own("bad", transform)(images(3), seeded())
