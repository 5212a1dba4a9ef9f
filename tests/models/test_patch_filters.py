"""Fixed filters: their arithmetic, where they come from, and that they stay."""

import sys

import pytest
import torch
from torch.nn.functional import unfold

from fcl_flower.core.errors import ConfigError
from fcl_flower.models.build import create_model
from fcl_flower.models.frozen_images import (
    PatchFilters,
    PatchFiltersParams,
    photo_filters,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def images(count, side=32):
    generator = torch.Generator().manual_seed(1)
    return 2 * torch.randn(count, 3, side, side, generator=generator)


@pytest.mark.parametrize("side", [32, 9])
def test_features_are_those_of_the_normalised_patches_one_by_one(side):
    body = PatchFilters(PatchFiltersParams(filters=4, patch=5, grid=2))
    x = images(3, side)
    found = body(x)
    weight, bias = photo_filters(4, 5)
    patches = unfold(x, 5).transpose(1, 2)
    patches = patches - patches.mean(2, keepdim=True)
    spread = patches.square().mean(2, keepdim=True)
    patches = patches / (spread + 10 / 255**2 / 0.25**2).sqrt()
    answers = patches @ weight.reshape(4, -1).T - bias
    both = torch.cat([answers, -answers], 2)
    active = torch.clamp(both - 0.5, min=0).transpose(1, 2)
    places = side - 4
    active = active.reshape(3, 8, places, places)
    half, rest = -(-places // 2), places // 2  # an odd row counts in both halves
    expected = torch.stack(
        [
            active[:, :, rows, columns].mean((2, 3))
            for rows in (slice(0, half), slice(rest, None))
            for columns in (slice(0, half), slice(rest, None))
        ],
        2,
    ).flatten(1)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_brightness_and_contrast_of_an_image_do_not_count():
    body = PatchFilters(PatchFiltersParams(filters=6))
    x = images(4)
    torch.testing.assert_close(body(3 * x + 5), body(x), rtol=1e-2, atol=1e-2)


def test_a_flat_image_gives_what_a_flat_patch_gives_and_no_nan():
    body = PatchFilters(PatchFiltersParams(filters=6))
    found = body(torch.full((1, 3, 32, 32), 0.3))
    assert found.isfinite().all()
    torch.testing.assert_close(found, body(torch.zeros(1, 3, 32, 32)))


def test_filters_are_the_same_for_every_client_and_seed():
    states = [
        create_model(
            "patch-filters", tasks=2, classes=3, single_head=False, seed=seed
        ).body.state_dict()
        for seed in (1, 2)
    ]
    photo_filters.cache_clear()
    again = PatchFilters(PatchFiltersParams()).state_dict()
    for name, tensor in again.items():
        assert torch.equal(tensor, states[0][name])
        assert torch.equal(tensor, states[1][name])


def test_filters_differ_and_every_one_answers_to_something():
    weight, _ = photo_filters(50, 6)
    assert weight.shape == (50, 3, 6, 6)
    flat = torch.nn.functional.normalize(weight.flatten(1))
    likeness = (flat @ flat.T - torch.eye(50)).abs()
    assert likeness.max() < 0.999
    assert (
        PatchFilters(PatchFiltersParams(filters=50))(images(64)).max(0).values > 0
    ).all()


def test_settings_say_how_many_features_there_are():
    for filters, grid in ((3, 1), (5, 3)):
        params = PatchFiltersParams(filters=filters, grid=grid)
        body = PatchFilters(params)
        assert body(images(2)).shape == (2, 2 * filters * grid**2)
        assert body.features == 2 * filters * grid**2


def test_features_are_computed_once_and_stand_for_the_images():
    model = create_model("patch-filters", tasks=2, classes=3, single_head=False, seed=1)
    x = images(5)
    known = model.frozen_features(x)
    assert known.shape == (5, 800)
    torch.testing.assert_close(model(known, 1), model(x, 1))
    assert model.frozen_features(x[:0]).shape == (0, 800)
    assert not known.requires_grad


def test_without_pillow_the_message_says_what_to_install(monkeypatch):
    photo_filters.cache_clear()
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ConfigError, match=r"patch-filters.*fcl-flower\[images\]"):
        PatchFilters(PatchFiltersParams(filters=2))
    photo_filters.cache_clear()
