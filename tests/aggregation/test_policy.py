"""Means of many updates, against other libraries and plain loops."""

import statistics
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.optimize import minimize
from scipy.stats import trim_mean

from fcl_flower.aggregation import robust
from fcl_flower.aggregation.policy import Aggregation, shares_counted
from fcl_flower.aggregation.robust import (
    count_hostile,
    geometric_median_weights,
    krum_weights,
)
from fcl_flower.core.types import SparseArray, Update

RULES = ("mean", "median", "trimmed-mean", "geometric-median", "krum")
ROBUST = RULES[1:]


def updates(count=9, seed=0):
    """Return clients with two tensors each, and where they started."""
    rng = np.random.default_rng(seed)
    start = {"a": rng.normal(size=(3, 4)).astype("f4"), "b": np.zeros(2, "f4")}
    sent = [
        {n: (t + rng.normal(size=t.shape)).astype("f4") for n, t in start.items()}
        for _ in range(count)
    ]
    return sent, start


def flat(tensors):
    return np.concatenate([np.asarray(t, float).reshape(-1) for t in tensors.values()])


def points(sent):
    return np.array([flat(one) for one in sent])


# ---- what a client's own number of examples is worth


@pytest.mark.parametrize(
    ("policy", "numbers", "expected"),
    [
        ({}, (0, 5, 2**31), [0, 5, 2**31]),
        ({"weighting": "uniform"}, (0, 5, 2**31), [0, 1, 1]),
        ({"examples_limit": 1.0}, (10, 20, 2**31), [10, 20, 20]),
        ({"examples_limit": 2.5}, (10, 20, 2**31), [10, 20, 50]),
        # Of two the lower one: the other may say what it likes.
        ({"examples_limit": 1.0}, (10, 2**31), [10, 10]),
        ({"examples_limit": 2.0}, (10, 2**31, 2**31, 12), [10, 24, 24, 12]),
        # Who has no examples is no measure.
        ({"examples_limit": 1.0}, (0, 0, 0, 7, 9), [0, 0, 0, 7, 7]),
        ({"examples_limit": 1.0}, (0, 0), [0, 0]),
        ({"examples_limit": 1.5}, (1, 3), [1, 1]),
    ],
)
def test_a_limit_is_a_multiple_of_the_median(policy, numbers, expected):
    sent = {3 + c: Update({}, n, {"loss": 1.0}) for c, n in enumerate(numbers)}
    found = Aggregation(**policy).count(sent)
    assert found.keys() == sent.keys()
    assert all(update.metrics == {"loss": 1.0} for update in found.values())
    assert [update.num_examples for update in found.values()] == expected


def test_of_sums_a_share_counts():
    counts = [10, 20, 30, 2**31]
    assert shares_counted(counts, 0.0) == [1, 1, 1, 1]
    assert shares_counted(counts, 1.0) == [1, 1, 2 / 3, 20 / 2**31]
    assert shares_counted([], 1.0) == []


# ---- the mean


@pytest.mark.parametrize(
    "weights", [[3, 1, 0, 2, 5, 1, 1, 0, 4], None, [0] * 9, np.zeros(9)]
)
def test_the_mean_is_numpys_weighted_average(weights):
    sent, start = updates()
    found = Aggregation().combine(sent, weights, start)
    known = weights if np.any(weights) else None
    expected = np.average(points(sent), axis=0, weights=known)
    np.testing.assert_allclose(flat(found), expected, atol=1e-6)


@pytest.mark.parametrize("shape", [(), (1, 5), (2**14,), (3, 2**13 + 1), (0, 2)])
def test_the_mean_is_bit_by_bit_that_of_whole_tensors_added_in_turn(shape):
    rng = np.random.default_rng(1)
    sent = [{"w": np.asarray(rng.normal(size=shape), "f4")} for _ in range(3)]
    sent[1]["w"] = np.asfortranarray(sent[1]["w"])
    weights = [3, 1, 7]

    found = Aggregation().combine(sent, weights, {"w": np.zeros(shape, "f4")})

    expected = np.zeros(shape)
    for one, weight in zip(sent, weights, strict=True):
        expected = expected + one["w"] * (weight / 11.0)
    assert np.asarray(found["w"]).shape == shape
    assert np.asarray(found["w"]).tobytes() == expected.astype("f4").tobytes()


def test_each_group_is_averaged_by_numbers_of_examples():
    before = {"base": {"w": np.zeros(2, "f4")}, "bias": {"b": np.zeros(1, "f4")}}
    sent = {
        client: Update(
            {"base": {"w": np.float32(w)}, "bias": {"b": np.float32([b])}}, n
        )
        for client, w, b, n in [(0, [1, 2], 8, 3), (4, [5, 6], 0, 1), (5, [9, 9], 9, 0)]
    }

    found = Aggregation().combine_groups(sent, before)

    assert found.keys() == before.keys()
    np.testing.assert_array_equal(found["base"]["w"], [2, 3])
    np.testing.assert_array_equal(found["bias"]["b"], [6])
    assert Aggregation().combine_groups({5: sent[5]}, before) is before


# ---- each robust rule against something else


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_the_median_is_pythons(count):
    sent, start = updates(count)
    found = Aggregation("median").combine(sent, None, start)
    expected = [statistics.median(column) for column in points(sent).T]
    np.testing.assert_allclose(flat(found), expected, rtol=1e-6)


@pytest.mark.parametrize(("count", "fraction"), [(10, 0.2), (5, 0.4), (20, 0.05)])
def test_the_trimmed_mean_is_scipys(count, fraction):
    sent, start = updates(count)
    found = Aggregation("trimmed-mean", fraction).combine(sent, None, start)
    expected = trim_mean(points(sent), fraction, axis=0)
    np.testing.assert_allclose(flat(found), expected, atol=1e-6)


def test_the_geometric_median_has_the_least_sum_of_distances():
    sent, start = updates(7, seed=4)
    sent[0] = {name: tensor + 50 for name, tensor in sent[0].items()}

    found = Aggregation("geometric-median").combine(sent, None, start)

    def cost(z):
        return np.linalg.norm(points(sent) - z, axis=1).sum()

    best = minimize(cost, points(sent).mean(0), method="BFGS", options={"gtol": 1e-8})
    np.testing.assert_allclose(flat(found), best.x, atol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e3])
def test_the_geometric_median_does_not_depend_on_the_unit(scale):
    points = scale * np.array([0.0, 1.0, 5.0])
    weights = geometric_median_weights(np.outer(points, points))
    assert weights @ points == pytest.approx(scale, rel=2e-3)


@pytest.mark.parametrize("points", [(0.0, 0.5, 1.0, 1.0), (-2.0, -2.0, 3.0, 3.0)])
def test_the_order_does_not_choose_between_two_middle_updates(points):
    """Each point between them has the least sum of distances; scores of Krum tie."""
    found = [
        geometric_median_weights(np.outer(order, order)) @ order
        for order in map(np.array, permutations(points))
    ]
    np.testing.assert_allclose(found, found[0], atol=1e-9)
    assert sorted(points)[1] <= found[0] <= sorted(points)[2]


def plain_krum(vectors, hostile):
    """Multi-Krum in loops: whom it selects."""
    scores = []
    for i, one in enumerate(vectors):
        apart = sorted(
            sum((a - b) ** 2 for a, b in zip(one, other, strict=True))
            for j, other in enumerate(vectors)
            if j != i
        )
        scores.append(sum(apart[: len(vectors) - hostile - 2]))
    ranked = sorted(range(len(vectors)), key=lambda i: scores[i])
    return sorted(ranked[: len(vectors) - hostile])


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize(("count", "hostile"), [(7, 2), (10, 2), (10, 3), (60, 12)])
def test_krums_scores_are_those_of_plain_loops(seed, count, hostile):
    rng = np.random.default_rng(seed)
    vectors = rng.standard_cauchy(size=(count, 2))
    if count == 60:  # of equal scores the earlier is selected
        vectors = rng.integers(0, 3, size=(60, 1)).astype(float)
    found = krum_weights(vectors @ vectors.T, hostile / count)
    assert np.flatnonzero(found).tolist() == plain_krum(vectors.tolist(), hostile)


def test_krum_is_the_mean_of_what_it_selects():
    sent, start = updates(10)
    sent[3] = {name: -5 * tensor for name, tensor in sent[3].items()}

    found = Aggregation("krum", 0.2).combine(sent, None, start)

    chosen = plain_krum(points(sent).tolist(), hostile=2)
    assert 3 not in chosen
    np.testing.assert_allclose(flat(found), points(sent)[chosen].mean(0), atol=1e-6)


def test_an_update_is_no_neighbour_of_its_own():
    """Two near each other, far from three: by the nearest other they would stay."""
    points = np.array([0.0, 0.1, 10.0, 10.5, 11.0])
    found = krum_weights(np.outer(points, points), 1 / 5)
    assert found.tolist() == [0, 1, 1, 1, 1]


def test_clipping_brings_long_changes_to_the_limit_and_leaves_the_rest():
    moves = np.array([[3, 4], [0, 1], [0, -2], [6, 8]])  # lengths 5, 1, 2, 10
    sent = [{"w": (1 + move).astype("f4")} for move in moves]
    policy = Aggregation(clip_to_median=2.0)
    found = policy.combine(sent, None, {"w": np.ones(2, "f4")})["w"]
    # The lower median is 2, the limit 4: 5 becomes 4, and so does 10.
    expected = np.array([[2.4, 3.2], [0, 1], [0, -2], [2.4, 3.2]]).mean(0) + 1
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_without_a_start_changes_are_those_from_the_median():
    sent = [{"w": np.array([x], "f4")} for x in (9.0, 10.0, 11.0, 10.0, 90.0)]
    found = Aggregation(clip_to_median=1.0).combine(sent)
    # From 10: -1, 0, 1, 0, 80; the median length is 1.
    np.testing.assert_allclose(found["w"], [10.2])


# ---- what was not sent


def sparse(values):
    """Return a tensor of the entries that are not None."""
    present = np.array([value is not None for value in values])
    dense = np.array([value or 0 for value in values], "f4")
    return SparseArray.of_mask(dense, present)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("mean", [4, 7, 2, 6]),
        ("median", [2, 7, 5, 5]),
        ("trimmed-mean", [2, 7, 5, 5]),
    ],
)
def test_those_who_sent_an_entry_decide_it(rule, expected):
    sent = [
        {"w": sparse([1, None, 1, None])},
        {"w": sparse([2, None, 3, None])},
        {"w": sparse([9, None, None, 6])},
        {},
    ]
    start = {"w": np.array([5, 7, 5, 5], "f4")}

    found = Aggregation(rule, hostile_fraction=0.2).combine(sent, None, start)

    # One of four may be hostile: with a rule against it an entry needs three senders.
    np.testing.assert_allclose(found["w"], expected)


@pytest.mark.parametrize("rule", ROBUST)
def test_what_the_hostile_alone_send_does_not_move(rule):
    sent = [{"w": sparse([1 + i / 10, None])} for i in range(8)]
    sent += [{"w": sparse([1, 1000])}] * 2

    found = Aggregation(rule).combine(sent, None, {"w": np.array([1, 3], "f4")})

    assert 1 <= found["w"][0] <= 1.8
    assert found["w"][1] == 3


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("least", [None, -100, -0.5], ids=["dense", "whole", "thinned"])
def test_pieces_and_the_form_of_a_tensor_make_no_difference(rule, least, monkeypatch):
    sent, start = updates()
    policy = Aggregation(rule, clip_to_median=1.0)
    dense = flat(policy.combine(sent, None, start))
    if least is not None:
        sent = [
            {n: SparseArray.of_mask(t, t > least) for n, t in one.items()}
            for one in sent
        ]
    whole = flat(policy.combine(sent, None, start))
    monkeypatch.setattr(robust, "_CELLS", 20)

    np.testing.assert_allclose(flat(policy.combine(sent, None, start)), whole)
    if least != -0.5:
        np.testing.assert_allclose(whole, dense, rtol=1e-6)


# ---- numbers


@pytest.mark.parametrize("rule", RULES)
def test_counters_are_rounded_and_move_no_update(rule):
    sent = [
        {"w": np.array([x], "f4"), "seen": np.array(seen)}
        for x, seen in ((1, 10), (2, 13), (3, 10**9))
    ]

    found = Aggregation(rule, clip_to_median=3.0).combine(sent)

    assert found["seen"].dtype == np.int64
    assert found["seen"].shape == ()
    assert 1.9 <= found["w"][0] <= 2.1 or rule == "krum"
    halves = [{"seen": np.array(seen)} for seen in (3, 4)]
    assert Aggregation("median").combine(halves)["seen"] == 4


@pytest.mark.parametrize("rule", ROBUST)
@pytest.mark.parametrize(("absurd", "dtype"), [(3e38, "f4"), (-3e307, "f8")])
def test_absurd_numbers_stay_without_effect(rule, absurd, dtype):
    rows = [np.array([x, 1], dtype) for x in (1, 2, 3, 4, 5, 6, 7, 8, absurd)]
    found = Aggregation(rule, clip_to_median=1.0).combine(
        [{"w": row} for row in rows], [1] * 9, {"w": np.zeros(2, dtype)}
    )
    assert 1 <= found["w"][0] <= 8
    np.testing.assert_allclose(found["w"][1], 1, rtol=0.5)


def test_how_many_are_hostile_is_rounded_up_and_a_minority():
    counts = {n: count_hostile(n, 0.2) for n in (0, 1, 2, 3, 5, 6, 10, 11)}
    assert counts == {0: 0, 1: 0, 2: 0, 3: 1, 5: 1, 6: 2, 10: 2, 11: 3}
    assert count_hostile(100, 0.07) == 7  # the product is a little more
    assert count_hostile(4, 0.49) == 1


# ---- properties

CLOUD = arrays.arrays(
    np.float64,
    st.tuples(st.integers(3, 9), st.integers(1, 4)),
    elements=st.floats(-10, 10, width=32),
)


def of_cloud(rule, cloud, **given):
    start = {"w": np.zeros(cloud.shape[1])}
    sent = [{"w": row} for row in cloud]
    return Aggregation(rule, **given).combine(sent, None, start)["w"]


@settings(max_examples=60, deadline=None)
@given(CLOUD, st.sampled_from([r for r in RULES if r != "krum"]), st.randoms())
def test_the_order_of_the_clients_says_nothing(cloud, rule, random):
    order = list(range(len(cloud)))
    random.shuffle(order)

    one, other = (of_cloud(rule, c, clip_to_median=2.0) for c in (cloud, cloud[order]))

    # Where all points lie on a line between two middle ones the minimum is not unique.
    atol = 1e-4 if rule == "geometric-median" else 1e-9
    np.testing.assert_allclose(one, other, atol=atol)


@settings(max_examples=60, deadline=None)
@given(CLOUD, st.sampled_from(ROBUST), st.floats(1e3, 1e30))
def test_a_minority_moves_nothing_out_of_the_others(cloud, rule, far):
    """The breakdown point: f hostile of n = 2 f + 3 are as far away as they like."""
    hostile = (len(cloud) - 3) // 2
    honest = cloud[hostile:].copy()
    cloud[:hostile] = far

    found = of_cloud(rule, cloud, hostile_fraction=hostile / len(cloud) + 0.01)

    radius = 10 * np.ptp(honest, axis=0).max() + 1e-5
    assert (found >= honest.min(0) - radius).all()
    assert (found <= honest.max(0) + radius).all()
