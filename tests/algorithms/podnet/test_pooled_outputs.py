"""Pooled outputs distillation against NumPy, and on what of a network it looks."""

import numpy as np
import pytest
import torch
from torch import nn

from clients.podnet import (
    flat_distance,
    spatial_distance,
    stage_outputs,
    stages,
)
from fcl_flower.models.convolutional import Mlp, ResNet18, SmallNet


def maps(seed):
    draw = torch.Generator().manual_seed(seed)
    shapes = ((3, 2, 4, 5), (3, 6, 2, 3))
    return [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]


def pooled(sample):
    """Return the sums over width and over height of the squares, of length 1."""
    channels, height, width = sample.shape
    by_row = [
        sum(sample[c, h, w] ** 2 for w in range(width))
        for c in range(channels)
        for h in range(height)
    ]
    by_column = [
        sum(sample[c, h, w] ** 2 for h in range(height))
        for c in range(channels)
        for w in range(width)
    ]
    found = np.array(by_row + by_column)
    return found / np.sqrt((found**2).sum())


def test_maps_are_compared_by_their_sums_over_width_and_height():
    new, old = maps(0), maps(1)
    of_stages = [
        np.mean(
            [
                np.sqrt(((pooled(a) - pooled(b)) ** 2).sum())
                for a, b in zip(one.numpy(), other.numpy(), strict=True)
            ]
        )
        for one, other in zip(new, old, strict=True)
    ]
    assert of_stages[0] != pytest.approx(of_stages[1], rel=0.01)
    assert float(spatial_distance(new, old)) == pytest.approx(np.mean(of_stages))


def test_nothing_that_pooling_keeps_has_moved():
    # Swapping two entries crosswise leaves the sums of rows and columns alone.
    one, other = torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2)
    one[0, 0, 0, 0] = one[0, 0, 1, 1] = 2.0
    other[0, 0, 0, 1] = other[0, 0, 1, 0] = -2.0
    assert float(spatial_distance([one], [other])) == 0
    assert float(spatial_distance([3 * one], [one])) == pytest.approx(0, abs=1e-6)


def test_a_network_that_has_not_moved_yet_has_gradients():
    new = [one.requires_grad_() for one in maps(0)]
    found = spatial_distance(new, maps(0))
    found.backward()
    assert float(found.detach()) == 0
    assert all(torch.isfinite(one.grad).all() for one in new)


def test_features_are_compared_by_their_direction():
    new, old = (one.flatten(1) for one in (maps(0)[0], maps(1)[0]))
    cosines = [
        a @ b / np.sqrt((a @ a) * (b @ b))
        for a, b in zip(new.numpy(), old.numpy(), strict=True)
    ]
    assert float(flat_distance(new, old)) == pytest.approx(
        np.mean(1 - np.array(cosines))
    )
    assert float(flat_distance(7 * old, old)) == pytest.approx(0, abs=1e-6)


def test_a_stage_is_a_convolution_or_a_block_of_them():
    body = SmallNet()
    assert stages(body) == [body.conv1, body.conv2]
    body = ResNet18()
    assert stages(body) == [body.stem, *body.blocks]
    assert stages(Mlp(3)) == []


def test_the_outputs_are_those_of_the_last_call_alone():
    torch.manual_seed(0)
    body, x = SmallNet(), torch.rand(2, 1, 8, 8)
    with stage_outputs(body) as found:
        body(torch.rand(3, 1, 8, 8))
        body(x)
        first = torch.relu(body.conv1(x))
        assert [tuple(one.shape) for one in found[:2]] == [(2, 16, 8, 8), (2, 32, 8, 8)]
        torch.testing.assert_close(found[1], body.conv2(first))
    found.clear()
    body(x)
    assert found == []


def test_without_images_only_features_are_left():
    class Nested(nn.Module):
        """Returns features of what has convolutions, but shows no map."""

        def __init__(self):
            super().__init__()
            self.inside = SmallNet()

        def forward(self, x):
            return self.inside(x)

    for body, x in (
        (Mlp(3), torch.rand(2, 3)),
        (Nested(), torch.rand(2, 1, 8, 8)),
    ):
        with stage_outputs(body) as found:
            body(x)
        assert found == []
    assert spatial_distance([], []) == 0
