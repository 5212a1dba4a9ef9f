"""The subspace of FOT: what a projected change leaves alone, and how a basis grows."""

import numpy as np
import pytest
import torch
from torch.nn.functional import conv2d

from strategies.fot import (
    extended,
    layer_inputs,
    no_directions,
    sketch_columns,
    without_subspace,
)


def model(seed):
    rng = np.random.default_rng(seed)
    shapes = {
        "body.fc.weight": (4, 6),
        "body.fc.bias": (4,),
        "body.conv.weight": (5, 2, 3, 3),
        "body.norm.weight": (5,),
        "body.norm.bias": (5,),
    }
    return {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}


def orthonormal(inputs, directions, seed=0):
    random = np.random.default_rng(seed).normal(size=(inputs, directions))
    return np.linalg.qr(random)[0]


def test_a_bias_is_one_more_input_and_kernels_are_flattened():
    assert layer_inputs(model(0)) == {"body.fc": 7, "body.conv": 18}
    assert {n: u.shape for n, u in no_directions(layer_inputs(model(0))).items()} == {
        "body.fc": (7, 0),
        "body.conv": (18, 0),
    }


def test_a_sketch_has_its_columns_rounded_up():
    assert [sketch_columns(10, w) for w in (0.01, 1.0, 1.01, 5.0)] == [1, 10, 11, 50]


def test_a_change_has_no_product_with_the_basis_and_is_whole_outside():
    before, changed = model(0), model(1)
    subspace = {"body.fc": orthonormal(7, 3), "body.conv": orthonormal(18, 5)}

    found = without_subspace(changed, before, subspace)

    rows = {
        "body.fc": lambda m: np.c_[m["body.fc.weight"], m["body.fc.bias"]],
        "body.conv": lambda m: m["body.conv.weight"].reshape(5, 18),
    }
    for layer, of in rows.items():
        u = subspace[layer]
        # All directions that are orthogonal to u, of a complete QR decomposition.
        outside = np.linalg.qr(u, mode="complete")[0][:, u.shape[1] :]
        change = of(found) - of(before)
        np.testing.assert_allclose(change @ u, 0, atol=1e-6)
        expected = (of(changed) - of(before)) @ outside
        np.testing.assert_allclose(change @ outside, expected, atol=1e-6)
        assert np.abs(expected).max() > 1
    assert {n: (t.shape, t.dtype) for n, t in found.items()} == {
        n: (t.shape, t.dtype) for n, t in before.items()
    }


def test_layers_answer_what_is_in_the_subspace_as_before():
    before, changed = model(0), model(1)
    draw = torch.Generator().manual_seed(0)
    x, image = (
        torch.randn(2, 6, generator=draw),
        torch.randn(1, 2, 4, 3, generator=draw),
    )
    patches = torch.nn.functional.unfold(image, 3)[0].numpy()  # (18, 2)
    subspace = {
        "body.fc": np.linalg.qr(np.c_[x.numpy(), np.ones(2)].T)[0],
        "body.conv": np.linalg.qr(patches)[0],
    }

    found = without_subspace(changed, before, subspace)

    def answers(arrays, x, image):
        here = {n: torch.from_numpy(t) for n, t in arrays.items()}
        linear = x @ here["body.fc.weight"].T + here["body.fc.bias"]
        return linear, conv2d(image, here["body.conv.weight"])

    for old, new in zip(
        answers(before, x, image), answers(found, x, image), strict=True
    ):
        torch.testing.assert_close(old, new, atol=1e-5, rtol=0)
    for old, new in zip(
        answers(before, -x, 0 * image + 1),
        answers(found, -x, 0 * image + 1),
        strict=True,
    ):
        assert not torch.allclose(old, new, atol=0.1)  # -x, but not -1: it is outside


def test_without_directions_the_change_stays_bit_for_bit():
    before, changed = model(0), model(1)
    found = without_subspace(changed, before, no_directions(layer_inputs(before)))
    for name, tensor in changed.items():
        np.testing.assert_array_equal(found[name], tensor)


def test_what_is_no_layer_changes_as_it_will():
    found = without_subspace(model(1), model(0), {"body.fc": np.eye(7)})
    for name in ("body.norm.weight", "body.norm.bias", "body.conv.weight"):
        np.testing.assert_array_equal(found[name], model(1)[name])
    for name in ("body.fc.weight", "body.fc.bias"):
        np.testing.assert_allclose(found[name], model(0)[name], atol=1e-6)


# ---- growth


def inputs_of(scales, seed):
    """Return inputs, shape (8, 50), of which each direction has its own scale."""
    rng = np.random.default_rng(seed)
    turned = orthonormal(8, 8, seed)
    return turned @ (np.array(scales)[:, None] * rng.normal(size=(8, 50)))


def inside(basis, inputs):
    return np.square(basis.T @ inputs).sum() / np.square(inputs).sum()


def outside(basis, inputs):
    rest = inputs - basis @ (basis.T @ inputs)
    return np.square(rest).sum() / np.square(inputs).sum()


@pytest.mark.parametrize("energy", [0.5, 0.87, 0.95, 0.999])
def test_the_basis_holds_the_wanted_share_by_as_few_directions_as_can_be(energy):
    first = inputs_of([5, 4, 3, 2, 1, 0.5, 0.2, 0.1], 1)
    second = inputs_of([0.1, 1, 5, 0.5, 3, 3, 2, 1], 2)
    none = np.zeros((8, 0), np.float32)

    one = extended(none, first, 1.0, energy)
    two = extended(one, second, outside(one, second), energy)

    for basis, inputs, old in ((one, first, none), (two, second, one)):
        np.testing.assert_allclose(basis.T @ basis, np.eye(basis.shape[1]), atol=1e-6)
        assert inside(basis, inputs) >= energy - 1e-6
        # No other directions hold more of the rest than the largest eigenvalues say.
        rest = inputs - old @ (old.T @ inputs)
        values = np.linalg.eigvalsh(rest @ rest.T)[::-1]
        count = basis.shape[1] - old.shape[1]
        most = np.square(old.T @ inputs).sum() + values[: count - 1].sum()
        assert most / np.square(inputs).sum() < energy
    assert one.dtype == two.dtype == np.float32
    np.testing.assert_allclose(two @ (two.T @ one), one, atol=1e-6)  # the old is kept


def test_a_task_whose_inputs_are_held_already_adds_nothing():
    first = inputs_of([5, 4, 3, 2, 1, 0.5, 0.2, 0.1], 1)
    basis = extended(np.zeros((8, 0), np.float32), first, 1.0, 0.9)
    assert 0 < basis.shape[1] < 8
    assert extended(basis, first, outside(basis, first), 0.9) is basis
    assert extended(basis, np.zeros((8, 8)), 0.5, 0.9) is basis
    assert extended(basis, first, outside(basis, first), 0.99).shape > basis.shape


def test_there_are_at_most_as_many_directions_as_inputs():
    basis = extended(np.zeros((8, 0), np.float32), np.eye(8), 1.0, 1.0)
    assert basis.shape == (8, 8)
    again = extended(basis, np.random.default_rng(0).normal(size=(8, 3)), 1.0, 1.0)
    assert again.shape == (8, 8)


def test_what_of_a_sketch_is_in_the_basis_does_not_count():
    basis = np.eye(4, 1, dtype=np.float32)
    # Nearly all along the old direction, and 3 to 1 in two others.
    sketch = np.diag([1000.0, 3.0, 1.0, 0.0])
    found = extended(basis, sketch, 1.0, 0.9)  # 9 of 10 is in the first of them
    assert found.shape == (4, 2)
    np.testing.assert_allclose(np.abs(found[:, 1]), [0, 1, 0, 0], atol=1e-6)
