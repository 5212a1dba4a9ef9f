import numpy as np
import pytest

from fcl_flower.core.errors import ConfigError, ContractError, WireError
from fcl_flower.core.types import SparseArray, Update
from fcl_flower.federation.secure.crypto import (
    Layout,
    decode_fixed_point,
    encode_fixed_point,
)

BITS = 32  # behind the binary point


def update(seed, examples, **more):
    rng = np.random.default_rng(seed)
    base = {
        "w": rng.standard_normal((3, 4)).astype(np.float32),
        "steps": np.asarray(seed + 1, np.int64),
    }
    return Update({"base": base, **more}, examples)


def layout(weighted=True):
    return Layout.of(update(0, 1).payload, weighted=weighted)


def test_the_mean_is_exact_up_to_the_rounding_of_each_summand():
    updates = [update(seed, examples) for seed, examples in enumerate((7, 40, 1))]

    vectors = [encode_fixed_point(one, layout(), clients=3) for one in updates]
    mean = decode_fixed_point(vectors[0] + vectors[1] + vectors[2], layout())

    expected = sum(one.num_examples * one.payload["base"]["w"] for one in updates) / 48
    found = mean.payload["base"]["w"]
    assert mean.num_examples == 48
    # Half a unit for each summand, and the rounding of the result to float32.
    np.testing.assert_allclose(
        found, expected, rtol=2e-7, atol=3 * 2.0 ** (-BITS - 1) / 48
    )
    steps = mean.payload["base"]["steps"]
    assert steps.dtype == np.int64
    assert steps == round((7 * 1 + 40 * 2 + 1 * 3) / 48)


def test_sums_are_not_divided_and_a_group_may_be_left_out():
    both = Layout.of({**update(0, 1).payload, "b": {"x": np.zeros(2)}}, weighted=False)
    more = update(1, 5, b={"x": np.array([-1.5, 2**20])})

    total = encode_fixed_point(update(0, 3), both, 2) + encode_fixed_point(
        more, both, 2
    )
    found = decode_fixed_point(total, both)

    assert found.num_examples == 8
    np.testing.assert_array_equal(found.payload["b"]["x"], [-1.5, 2**20])
    assert found.payload["base"]["steps"] == 3


def test_what_is_meta_stays_with_the_client():
    known = update(0, 2, meta={"data": np.asarray(7, np.uint64)})

    alike = encode_fixed_point(known, layout(), 3) == encode_fixed_point(
        update(0, 2), layout(), 3
    )

    assert alike.all()


@pytest.mark.parametrize("weighted", [True, False])
def test_a_layout_travels_among_tensors(weighted):
    assert Layout.from_array(layout(weighted).to_array()) == layout(weighted)
    assert layout(weighted).size == len(
        encode_fixed_point(update(0, 1), layout(weighted), 3)
    )


def test_a_value_that_does_not_fit_is_refused_on_the_client():
    def of(value):
        return Update(
            {"base": {"w": np.full((3, 4), value), "steps": np.asarray(0)}}, 1
        )

    message = (
        r"^federation.secure_aggregation: got True, expected false, as base/w reaches "
        r"5.36871e\+08 and the sum over 3 clients may reach 1.07374e\+09$"
    )
    with pytest.raises(ConfigError, match=message):
        encode_fixed_point(of(2.0**29), layout(), clients=3)

    three = encode_fixed_point(of(-(2.0**28)), layout(), 3) * np.uint64(3)
    found = decode_fixed_point(three, layout(weighted=False)).payload["base"]["w"]
    np.testing.assert_array_equal(found, -3 * 2.0**28)


def test_a_value_that_is_not_finite_is_refused():
    base = {"w": np.full((3, 4), np.nan, np.float32), "steps": np.asarray(0)}
    with pytest.raises(WireError, match="base/w: holds NaN"):
        encode_fixed_point(Update({"base": base}, 1), layout(), 3)


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"base": {"w": np.zeros((3, 4))}},
        {"base": {"w": np.zeros((4, 3)), "steps": np.asarray(0)}},
        {"base": {**update(0, 1).payload["base"], "other": np.zeros(1)}},
        {**update(0, 1).payload, "heads": {"w": np.zeros(1)}},
        {
            "base": {
                "w": SparseArray((3, 4), np.arange(1), np.zeros(1, np.float32)),
                "steps": np.asarray(0),
            }
        },
    ],
    ids=["nothing", "a part", "a shape", "more", "another group", "sparse"],
)
def test_an_update_of_another_layout_is_refused(payload):
    with pytest.raises(ContractError, match="expected"):
        encode_fixed_point(Update(payload, 1), layout(), 3)


@pytest.mark.parametrize("examples", [-3, 2.5])
def test_a_sum_over_no_number_of_examples_is_refused(examples):
    vector = encode_fixed_point(update(0, 1), layout(), 3)
    vector[2] = np.int64(examples * 2**BITS).view(np.uint64)

    with pytest.raises(WireError, match="expected a number of examples"):
        decode_fixed_point(vector, layout())
