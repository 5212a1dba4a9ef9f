"""Distances between models against SciPy on the matrix of all weights."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.spatial.distance import cdist, pdist

from strategies.concept_matching import maths
from strategies.concept_matching.maths import (
    distances,
    embedding,
    gram,
    gram_of_directions,
    sketched,
)


def models_of(matrix, counter=0):
    """Return a model for each row: two tensors of weights and one of counts."""
    return [
        {
            "conv": np.float32(row[:6]).reshape(3, 2),
            "seen": np.array(i * counter),
            "half": np.float16(row[6:]),
        }
        for i, row in enumerate(matrix)
    ]


def weights(count, size=11, seed=0):
    drawn = np.random.default_rng(seed).normal(3, 1, (count, size))
    drawn[:, :6] = drawn[:, :6].astype(np.float32)
    drawn[:, 6:] = drawn[:, 6:].astype(np.float16)
    return drawn


@pytest.fixture(params=[2**21, 12], ids=["one block", "blocks of two or three"])
def cells(request, monkeypatch):
    monkeypatch.setattr(maths, "_CELLS", request.param)


@pytest.mark.usefixtures("cells")
def test_the_gram_matrix_is_that_of_the_centred_matrix():
    matrix = weights(5)
    centred = matrix - matrix.mean(axis=0)

    assert_allclose(gram(models_of(matrix)), centred @ centred.T, atol=1e-12)


def test_a_model_of_many_blocks_is_as_a_matrix_of_it():
    rows = np.random.default_rng(1).normal(size=(40, 2**18)).astype(np.float32)
    centred = rows.astype(np.float64) - rows.mean(axis=0, dtype=np.float64)

    assert rows.size > maths._CELLS
    assert_allclose(gram([{"w": row} for row in rows]), centred @ centred.T, atol=1e-7)


@pytest.mark.usefixtures("cells")
@pytest.mark.parametrize("count", [1, 2, 3, 8, 20])
def test_the_embedding_has_the_models_own_distances(count):
    matrix = weights(count)
    points = embedding(gram(models_of(matrix)))

    assert points.shape == (count, min(count - 1, 11))
    assert_allclose(cdist(points, points), cdist(matrix, matrix), atol=1e-10)


def test_close_models_far_from_zero_keep_their_distances():
    near = 1e4 + weights(6) * 1e-3
    near = near.astype(np.float32).astype(np.float64)
    models = [{"w": np.float32(row)} for row in near]

    assert_allclose(pdist(embedding(gram(models))), pdist(near), rtol=1e-9)


def test_coordinates_fall_in_width_and_have_a_fixed_sign():
    # A rectangle of 6 by 2 around (5, 5): half as far out as it is wide and high.
    corners = np.array([[2, 4], [2, 6], [8, 4], [8, 6], [9, 5]])
    points = embedding(gram([{"w": np.float32(c)} for c in corners]))

    assert points.shape == (5, 2)
    spread = np.square(points).sum(axis=0)
    assert spread[0] > spread[1] > 0
    assert (points.max(axis=0) >= -points.min(axis=0) - 1e-9).all()


def test_equal_models_leave_no_coordinate():
    same = {"w": np.float32([0.1, 0.2, 0.7])}

    assert embedding(gram([same, same, same])).shape == (3, 0)


def test_enormous_models_do_not_overflow():
    # 3e38 is near the end of float32: its square is not, and neither is twice itself.
    models = [{"w": np.float32([x, 0])} for x in (3e38, -3e38, 0)]

    assert_allclose(pdist(embedding(gram(models))), [6e38, 3e38, 3e38], rtol=1e-6)


@pytest.mark.usefixtures("cells")
@pytest.mark.parametrize(
    ("metric", "scipys"),
    [("manhattan", "cityblock"), ("euclidean", "euclidean"), ("chebyshev",) * 2],
)
def test_distances_to_other_models_are_those_of_scipy(metric, scipys):
    here, there = weights(4), weights(3, seed=7)
    found = distances(models_of(here), models_of(there, counter=99), metric)

    assert_allclose(found, cdist(here, there, scipys), rtol=1e-12)


def test_no_models_have_no_distances():
    assert distances([], models_of(weights(3)), "manhattan").shape == (0, 3)


def test_counters_do_not_count():
    same = np.tile(weights(1), (3, 1))
    models = models_of(same, counter=1000)

    assert not gram(models).any()
    assert not distances(models, models[:1], "chebyshev").any()


# ---- directions


def directions(matrix, starts, origin):
    """Return in NumPy the unit steps, from starts that are 2 apart."""
    steps = matrix - starts[origin]
    lengths = np.linalg.norm(steps, axis=1, keepdims=True)
    places = np.sqrt(2) * np.eye(len(starts))
    return np.hstack([steps / np.where(lengths > 0, lengths, 1), places[origin]])


@pytest.mark.usefixtures("cells")
@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_directions_are_unit_steps_from_starts_that_are_two_apart(count):
    matrix, starts = weights(count), weights(3, seed=7)
    matrix[count // 2] = starts[1]  # one of several does not move
    origin = np.arange(count) % 3
    origin[count // 2] = 1
    found = gram_of_directions(models_of(matrix), models_of(starts, 99), origin)
    points = directions(matrix, starts, origin)

    centred = points - points.mean(axis=0)
    assert_allclose(found, centred @ centred.T, atol=1e-12)
    assert_allclose(pdist(embedding(found)), pdist(points), atol=1e-7)


def test_steps_far_shorter_than_their_model_keep_their_angles():
    starts = np.float32(weights(2) * 1e3)
    steps = np.float32(weights(4, seed=3) * [[1e-2], [3e-4], [1e-2], [1e-2]])
    origin = np.array([0, 0, 0, 1])
    matrix = starts[origin] + steps
    found = gram_of_directions(
        [{"w": row} for row in matrix], [{"w": row} for row in starts], origin
    )
    points = directions(*(m.astype(np.float64) for m in (matrix, starts)), origin)

    assert_allclose(pdist(embedding(found)), pdist(points), rtol=1e-9)


# ---- sketches


def test_a_sketch_is_a_signed_sum_of_weights_in_buckets():
    unit = np.eye(30)
    rows = np.stack([s["sketch"] for s in sketched(models_wide(unit), 16, 5)])

    assert (np.abs(rows).sum(axis=1) == 1).all(), "one bucket each"
    assert set(rows[rows != 0]) == {1.0, -1.0}
    assert (rows != 0).any(axis=0).sum() > 8, "and not all the same"
    # Linear: the sketch of a sum is the sum of the sketches.
    (whole,) = sketched(models_wide(unit.sum(axis=0, keepdims=True)), 16, 5)
    assert_allclose(whole["sketch"], rows.sum(axis=0))


def models_wide(matrix):
    return [{"a": np.float32(r[:10]), "b": np.float32(r[10:])} for r in matrix]


def test_sketches_are_the_same_for_a_seed_and_others_for_another():
    models = models_wide(np.random.default_rng(0).normal(size=(2, 500)))
    first, again, other = (sketched(models, 32, seed) for seed in (1, 1, 2))

    assert (first[1]["sketch"] == again[1]["sketch"]).all()
    assert (first[1]["sketch"] != other[1]["sketch"]).any()


def test_squared_distances_of_sketches_err_as_little_as_is_said():
    matrix = np.random.default_rng(2).normal(size=(2, 3000)).astype(np.float32)
    true = pdist(matrix)[0] ** 2
    ratios = [
        pdist(np.stack([s["sketch"] for s in sketched(models_wide(matrix), 200, seed)]))
        ** 2
        / true
        for seed in range(300)
    ]

    # sqrt(2 / 200) = 0.1; the mean of 300 has a standard error of 0.006.
    assert np.mean(ratios) == pytest.approx(1, abs=0.02)
    assert 0.08 < np.std(ratios) < 0.12
