"""DOLFIN's equations, against SVDs of the inputs themselves and DualGPM as printed."""

import numpy as np
import pytest

from strategies.dolfin import directions, still_free

INPUTS, RANK = 8, 3


def inputs(seed, count=60, spread=None):
    """Return what enters a layer, shape (inputs, tokens), of differing size."""
    rng = np.random.default_rng(seed)
    sizes = np.exp(rng.normal(size=INPUTS)) if spread is None else spread
    turned, _ = np.linalg.qr(rng.normal(size=(INPUTS, INPUTS)))
    return turned @ np.diag(sizes) @ rng.normal(size=(INPUTS, count))


def gram(x):
    return x @ x.T / x.shape[1]


def basis(seed, count):
    rng = np.random.default_rng(seed)
    return np.linalg.qr(rng.normal(size=(INPUTS, count)))[0]


def complement(vectors):
    left, _, _ = np.linalg.svd(vectors, full_matrices=True)
    return left[:, vectors.shape[1] :]


def projector(vectors):
    return vectors @ vectors.T


# ---------------------------------------------------------------- A


def test_axes_by_hand():
    found = directions(np.diag([1.0, 9.0, 4.0, 0.0]), np.eye(4), rank=2)

    np.testing.assert_allclose(np.abs(found) * np.sqrt(3), [[0, 1, 0, 0], [0, 0, 1, 0]])


def test_the_first_factor_has_the_leading_singular_vectors_of_projected_inputs():
    x, old = inputs(0), basis(1, 3)

    found = directions(gram(x), complement(old), RANK)

    left, _, _ = np.linalg.svd(x - old @ old.T @ x)
    expected = projector(left[:, :RANK])
    np.testing.assert_allclose(3 * found.T @ found, expected, atol=1e-10)


def test_it_is_orthogonal_to_old_inputs_whose_answers_stay():
    old, x = basis(1, 4), inputs(2)
    found = directions(gram(x), complement(old), RANK)

    assert np.abs(found @ old).max() < 1e-8
    up = np.random.default_rng(3).normal(size=(5, RANK))
    spanned = old @ np.random.default_rng(4).normal(size=(4, 20))
    assert np.abs(up @ found @ spanned).max() < 1e-8
    assert np.abs(up @ found @ x).max() > 0.1


def test_rows_for_which_nothing_is_free_are_zero():
    old = basis(1, INPUTS - 2)

    found = directions(gram(inputs(0)), complement(old), RANK)

    lengths = np.linalg.norm(found, axis=1)
    np.testing.assert_allclose(lengths, [3**-0.5, 3**-0.5, 0], atol=1e-12)
    assert np.abs(found @ old).max() < 1e-8
    assert not directions(gram(inputs(0)), np.zeros((INPUTS, 0)), RANK).any()


# ---------------------------------------------------------------- M


@pytest.mark.parametrize(
    ("energy", "taken"), [(0.5, 1), (0.63, 1), (0.65, 2), (0.93, 3), (0.999, 4)]
)
def test_energy_is_that_of_squares_and_not_of_their_squares(energy, taken):
    # Squares of 9, 4, 1 and 0.1; of their squares the first would have 83 percent.
    found = still_free(np.diag([4.0, 9.0, 0.1, 1.0]), np.eye(4), energy)

    assert found.shape == (4, 4 - taken)
    order = [1, 0, 3, 2]
    np.testing.assert_allclose(found[order[:taken]], 0, atol=1e-12)


def test_all_energy_takes_all_directions_that_have_any():
    x = inputs(0, count=5)  # 5 tokens span 5 of 8 directions

    found = still_free(gram(x), np.eye(INPUTS), 1.0)

    # Rounding may give a direction without inputs a little energy.
    assert np.abs(found.T @ x).max(initial=0.0) < 1e-6
    assert found.shape[1] <= 3


def test_no_inputs_take_nothing():
    free = complement(basis(0, 3))

    assert np.array_equal(
        projector(still_free(np.zeros((INPUTS, INPUTS)), free, 0.9)).round(12),
        projector(free).round(12),
    )


def dual_gpm(memory, dual, x, energy):
    """Return M, or its complement, after a task, as DualGPM keeps them (CVPR 2024).

    By singular values of the inputs themselves; ``dual`` tells which of both it is.
    """
    total = (np.linalg.svd(x)[1] ** 2).sum()
    inside = memory @ memory.T @ x
    left, values, _ = np.linalg.svd(inside if dual else x - inside)
    squares, taken = values**2, 0
    kept = total - squares.sum()
    while kept < energy * total:
        kept += squares[taken]
        taken += 1
    if not dual:
        memory = np.hstack([memory, left[:, :taken]])
        if memory.shape[1] > INPUTS / 2:
            return complement(memory), True
        return memory, False
    removed = left[:, :taken]
    rest, _, _ = np.linalg.svd(memory - removed @ removed.T @ memory)
    return rest[:, : memory.shape[1] - taken], True


def test_the_subspace_is_that_of_dual_gpm_in_either_form():
    free, memory, dual = np.eye(INPUTS), np.zeros((INPUTS, 0)), False
    seen = set()
    for task, energy in enumerate((0.6, 0.7, 0.8, 0.9)):
        x = inputs(task + 10)
        free = still_free(gram(x), free, energy)
        memory, dual = dual_gpm(memory, dual, x, energy)
        seen.add(dual)

        expected = projector(memory) if dual else np.eye(INPUTS) - projector(memory)
        np.testing.assert_allclose(projector(free), expected, atol=1e-10)
        np.testing.assert_allclose(free.T @ free, np.eye(free.shape[1]), atol=1e-12)
        new = inputs(task + 20)
        one = directions(gram(new), free, RANK)
        left, _, _ = np.linalg.svd(expected @ new)
        found = projector(left[:, : min(RANK, free.shape[1])])
        np.testing.assert_allclose(3 * one.T @ one, found, atol=1e-9)
    assert seen == {False, True}


def test_what_a_task_had_is_held_and_directions_only_go():
    free, before = np.eye(INPUTS), INPUTS
    for task in range(5):
        x = inputs(task)
        free = still_free(gram(x), free, 0.8)
        outside = np.square(free.T @ x).sum() / np.square(x).sum()
        assert outside <= 0.2 + 1e-12
        assert free.shape[1] <= before
        before = free.shape[1]
