import numpy as np
import pytest

from fcl_flower.core.errors import WireError
from fcl_flower.core.types import SparseArray


def sparse(shape, indices, values):
    return SparseArray(shape, np.array(indices, np.int64), np.array(values, np.float32))


def test_counts_describe_the_dense_tensor():
    tensor = sparse((2, 3), [1, 5], [7, 0])
    assert (tensor.size, tensor.nnz, tensor.dtype) == (6, 2, np.float32)
    assert tensor.density == pytest.approx(1 / 3)


def test_an_empty_tensor_has_density_zero():
    assert sparse((4, 0), [], []).density == 0.0


def test_a_tensor_without_axes_has_one_entry():
    tensor = sparse((), [0], [7])
    assert (tensor.size, tensor.density) == (1, 1.0)
    assert tensor.to_dense().shape == ()
    assert tensor.to_dense() == 7


def test_size_does_not_wrap_beyond_int64():
    assert sparse((2**40, 2**40), [], []).size == 2**80


def test_of_mask_keeps_the_marked_entries_even_when_zero():
    dense = np.array([[1, 0], [3, 4]], np.int16)
    tensor = SparseArray.of_mask(dense, np.array([[True, True], [False, True]]))
    assert tensor.shape == (2, 2)
    assert tensor.indices.tolist() == [0, 1, 3]
    assert tensor.values.tolist() == [1, 0, 4]
    assert tensor.dtype == np.int16


def test_of_nonzero_keeps_magnitudes_strictly_above_the_threshold():
    dense = np.array([-2.0, -1.0, 0.0, 1.0, 1.5])
    assert SparseArray.of_nonzero(dense).indices.tolist() == [0, 1, 3, 4]
    assert SparseArray.of_nonzero(dense, 1.0).indices.tolist() == [0, 4]


def test_of_nonzero_keeps_what_is_not_a_number():
    tensor = SparseArray.of_nonzero(np.array([0.0, np.nan, -np.inf]))
    assert tensor.indices.tolist() == [1, 2]


def test_of_nonzero_keeps_the_smallest_integer():
    tensor = SparseArray.of_nonzero(np.array([0, -128, 127], np.int8))
    assert tensor.values.tolist() == [-128, 127]


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64])
def test_of_nonzero_accepts_dtypes_without_a_sign_or_a_fraction(dtype):
    tensor = SparseArray.of_nonzero(np.array([0, 1], dtype))
    assert tensor.indices.tolist() == [1]
    assert tensor.dtype == dtype


def test_of_channels_takes_whole_rows():
    dense = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    tensor = SparseArray.of_channels(dense, np.array([0, 2]))
    assert tensor.indices.tolist() == [0, 1, 2, 3, 8, 9, 10, 11]
    assert tensor.values.tolist() == [0, 1, 2, 3, 8, 9, 10, 11]
    assert tensor.shape == (3, 2, 2)
    tensor.validate()


def test_of_channels_of_a_vector_takes_entries():
    tensor = SparseArray.of_channels(np.array([5.0, 6.0, 7.0]), np.array([1]))
    assert (tensor.indices.tolist(), tensor.values.tolist()) == ([1], [6.0])


def test_of_no_channels_is_empty():
    tensor = SparseArray.of_channels(np.ones((3, 2)), np.array([], np.int64))
    assert (tensor.nnz, tensor.shape) == (0, (3, 2))
    tensor.validate()


def test_to_dense_puts_zero_where_nothing_is_present():
    dense = sparse((2, 2), [1, 2], [5, -0.0]).to_dense()
    assert dense.tolist() == [[0, 5], [0, 0]]
    assert np.signbit(dense).tolist() == [[False, False], [True, False]]
    assert dense.dtype == np.float32


def test_overwrite_leaves_absent_entries_and_its_argument_alone():
    dense = np.array([[1, 2], [3, 4]], np.float32)
    result = sparse((2, 2), [0, 3], [0, 9]).overwrite(dense)
    assert result.tolist() == [[0, 2], [3, 9]]
    assert dense.tolist() == [[1, 2], [3, 4]]


def test_overwrite_follows_c_order_whatever_the_memory_layout():
    dense = np.asfortranarray([[1.0, 2.0], [3.0, 4.0]])
    assert sparse((2, 2), [1], [9]).overwrite(dense).tolist() == [[1, 9], [3, 4]]


def test_overwrite_refuses_another_shape_of_the_same_size():
    with pytest.raises(WireError, match=r"\(2, 2\).*\(4,\)"):
        sparse((2, 2), [0], [1]).overwrite(np.zeros(4))


def test_validate_accepts_first_last_and_no_entry():
    sparse((2, 3), [0, 5], [1, 2]).validate()
    sparse((2, 3), [], []).validate()
    sparse((0,), [], []).validate()


@pytest.mark.parametrize(
    ("indices", "values", "message"),
    [
        ([1, 1], [1, 2], "strictly increasing"),
        ([2, 1], [1, 2], "strictly increasing"),
        ([-1, 2], [1, 2], r"\[0, 6\)"),
        ([0, 6], [1, 2], r"\[0, 6\)"),
        ([0, 1], [1], "2 indices"),
        ([[0, 1]], [[1, 2]], "one axis"),
    ],
)
def test_validate_names_what_is_wrong(indices, values, message):
    with pytest.raises(WireError, match=message):
        sparse((2, 3), indices, values).validate()


def test_validate_refuses_indices_that_are_not_int64():
    tensor = SparseArray((3,), np.array([0.5]), np.array([1.0]))
    with pytest.raises(WireError, match="int64"):
        tensor.validate()
