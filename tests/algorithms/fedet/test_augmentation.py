"""Variations of samples: what may change, how often, and what must not."""

import numpy as np
import pytest
import torch

from clients.fedet.maths import augmented
from fcl_flower.data.examples import Examples


def labelled(x):
    return Examples(x, torch.arange(len(x)))


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor([[9, 1, 2, 3, 8], [9, 4, 8, 0, 0]]),
        torch.rand(3, 1, 8, 8),
        torch.rand(3, 2, 16),
        torch.rand(5, 4),
    ],
)
def test_the_samples_come_first_and_then_every_copy_of_all(x):
    found = augmented(labelled(x), 2, 0)
    assert found.x.shape == (3 * len(x), *x.shape[1:])
    assert found.x.dtype == x.dtype
    assert torch.equal(found.x[: len(x)], x)
    assert found.y.tolist() == [*range(len(x))] * 3
    assert torch.equal(augmented(labelled(x), 0, 0).x, x)


@pytest.mark.parametrize("x", [torch.ones(400, 9).long(), torch.rand(9, 1, 8, 8)])
def test_the_seed_alone_says_what_varies(x):
    one, same, other = (augmented(labelled(x), 1, seed).x for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_copies_differ_from_each_other():
    x = torch.rand(9, 1, 8, 8)
    found = augmented(labelled(x), 2, 0).x
    assert not torch.equal(found[9:18], found[18:])


# ---- documents


def test_a_document_keeps_its_ends_and_its_order():
    x = torch.tensor([[101, *range(1, 11), 102, 0, 0]]).repeat(500, 1)
    for row in augmented(labelled(x), 1, 0).x[500:].tolist():
        length = row.index(0)
        assert not any(row[length:])
        assert row[0] == 101
        assert row[length - 1] == 102
        inner = row[1 : length - 1]
        assert inner == sorted(set(inner))
        assert set(inner) <= set(range(1, 11))


def test_a_tenth_of_the_inner_words_is_left_out():
    x = torch.tensor([[101, *range(1, 11), 102, 0, 0]]).repeat(2000, 1)
    found = augmented(labelled(x), 1, 0).x[2000:]
    dropped = 12 - (found != 0).sum(1)
    # Binomial(10, 0.1): mean 1 and variance 0.9.
    assert float(dropped.float().mean()) == pytest.approx(1.0, abs=0.07)
    assert float(dropped.float().var()) == pytest.approx(0.9, abs=0.1)


def test_a_document_without_inner_words_stays_as_it_is():
    x = torch.tensor([[101, 102, 0], [7, 0, 0], [0, 0, 0]])
    assert torch.equal(augmented(labelled(x), 20, 0).x, x.repeat(21, 1))


def test_no_documents_give_none():
    x = torch.empty(0, 5, dtype=torch.int64)
    assert augmented(labelled(x), 3, 0).x.shape == (0, 5)


# ---- images


def shifted(image, down, right, mirrored):
    """Return an image moved with its edges repeated, by NumPy's padding."""
    rows, columns = image.shape[1:]
    padded = np.pad(image, [(0, 0), (rows, rows), (columns, columns)], mode="edge")
    top, left = rows - down, columns - right
    found = padded[:, top : top + rows, left : left + columns]
    return found[:, :, ::-1] if mirrored else found


def test_an_image_moves_by_up_to_an_eighth_and_may_be_mirrored():
    x = torch.rand(300, 2, 16, 8)
    found = augmented(labelled(x), 1, 0).x[300:].numpy()
    counted = np.zeros((5, 3, 2))
    for image, moved in zip(x.numpy(), found, strict=True):
        (place,) = (
            (down + 2, right + 1, mirrored)
            for down in range(-2, 3)
            for right in range(-1, 2)
            for mirrored in (0, 1)
            if np.array_equal(shifted(image, down, right, mirrored), moved)
        )
        counted[place] += 1
    assert counted.min() > 0  # all thirty occur, ten times on average
    assert counted.max() < 30
    assert counted.sum((0, 1)) == pytest.approx([150, 150], abs=30)


# ---- plain numbers


def test_noise_is_a_tenth_of_each_features_deviation():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(5000, 3, generator=draw) * torch.tensor([1.0, 10.0, 0.0]) + 4
    noise = augmented(labelled(x), 1, 0).x[5000:] - x
    assert noise.std(0)[:2].tolist() == pytest.approx([0.1, 1.0], rel=0.05)
    assert noise.mean(0)[:2].tolist() == pytest.approx([0, 0], abs=0.05)
    assert torch.equal(noise[:, 2], torch.zeros(5000))


def test_a_single_sample_shows_no_deviation():
    x = torch.tensor([[1.0, 2.0]])
    assert torch.equal(augmented(labelled(x), 1, 0).x, x.repeat(2, 1))
    assert augmented(labelled(x[:0]), 1, 0).x.shape == (0, 2)
