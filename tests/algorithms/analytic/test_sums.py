"""The sums of samples: forms that lose nothing, forms that do, and forgeries."""

import numpy as np
import pytest
from analytic_cases import CLASSES, WIDTH, samples
from hypothesis import given, settings
from hypothesis import strategies as st

from fcl_flower.core.errors import WireError
from strategies.analytic import AnalyticParams
from strategies.analytic.server import check
from strategies.analytic.sums import (
    add_up,
    class_sums,
    exact,
    gram,
    low_rank,
    samples_in,
)


def by_hand(h, y, classes=CLASSES):
    """Return Gram matrix and class sums, sample by sample."""
    total = np.zeros((h.shape[1],) * 2)
    cross = np.zeros((classes, h.shape[1] + 1))
    for one, label in zip(h, y, strict=True):
        total += np.outer(one, one)
        cross[label] += np.append(one, 1)
    return total, cross


def encoded(form, h, y):
    return {
        "exact": lambda: exact(h, y, CLASSES),
        "gram": lambda: gram(h, y, CLASSES),
        "low-rank": lambda: low_rank(h, y, CLASSES, 3),
        "class-sums": lambda: class_sums(h, y, CLASSES, 5, np.random.default_rng(0)),
    }[form]()


@pytest.mark.parametrize("form", ["exact", "gram"])
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=40, deadline=None)
def test_whatever_the_split_the_sums_are_those_of_all_samples(form, sizes, seed):
    h, y = samples(sum(sizes), seed)
    cuts = np.cumsum(sizes)[:-1]
    parts = zip(np.split(h, cuts), np.split(y, cuts), strict=True)
    found = add_up([encoded(form, *part) for part in parts], CLASSES, WIDTH)
    total, cross = by_hand(h, y)
    np.testing.assert_allclose(found.gram, total, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.cross, cross, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", ["exact", "gram", "low-rank", "class-sums"])
def test_sums_that_count_in_part_are_added_up_in_part(form):
    few, many = (encoded(form, *samples(count, seed=count)) for count in (9, 300))
    one, other = (add_up([sent], CLASSES, WIDTH) for sent in (few, many))
    found = add_up([few, many], CLASSES, WIDTH, [1.0, 0.1])
    np.testing.assert_allclose(found.gram, one.gram + 0.1 * other.gram)
    np.testing.assert_allclose(found.cross, one.cross + 0.1 * other.cross)
    assert [samples_in(sent) for sent in (few, many)] == [9, 300]


def test_the_means_of_less_than_one_sample_are_those_of_all():
    h, y = samples(40)
    whole, part = (
        add_up([gram(h, y, CLASSES)], CLASSES, WIDTH, [s]) for s in (1, 0.01)
    )
    assert part.counts.max() < 1
    np.testing.assert_allclose(part.means, whole.means)
    np.testing.assert_allclose(part.within, 0.01 * whole.within, atol=1e-12)


def test_few_samples_travel_as_a_factor_and_many_as_a_triangle():
    assert exact(*samples(WIDTH // 2), CLASSES).keys() == {"cross", "within"}
    assert exact(*samples(WIDTH // 2 + 1), CLASSES).keys() == {"cross", "gram"}


def test_the_smaller_form_is_chosen_and_the_triangle_has_its_size():
    few, many = exact(*samples(3), CLASSES), exact(*samples(50), CLASSES)
    assert few["within"].size <= WIDTH * (WIDTH + 1) // 2
    assert many["gram"].shape == (WIDTH * (WIDTH + 1) // 2,)


def test_the_scatter_within_classes_is_that_about_their_means():
    h, y = samples(40)
    found = add_up([gram(h, y, CLASSES)], CLASSES, WIDTH)
    expected = sum(
        np.cov(h[y == label].T, bias=True) * (y == label).sum()
        for label in range(CLASSES)
    )
    np.testing.assert_allclose(found.within, expected, atol=1e-12)


def test_a_factor_of_full_rank_loses_nothing():
    h, y = samples(40)
    total, _ = by_hand(h, y)
    found = add_up([low_rank(h, y, CLASSES, WIDTH)], CLASSES, WIDTH)
    np.testing.assert_allclose(found.gram, total, atol=1e-12)


def test_a_factor_of_low_rank_keeps_the_largest_eigenvalues_of_the_scatter():
    h, y = samples(200)
    sent = low_rank(h, y, CLASSES, 2)
    whole = add_up([gram(h, y, CLASSES)], CLASSES, WIDTH)
    assert sent["within"].shape == (2, WIDTH)
    values, vectors = np.linalg.eigh(whole.within)
    best = (vectors[:, -2:] * values[-2:]) @ vectors[:, -2:].T
    np.testing.assert_allclose(sent["within"].T @ sent["within"], best, atol=1e-12)
    # The means of the classes are exact, whatever the rank.
    np.testing.assert_allclose(sent["cross"], whole.cross)


def test_samples_that_do_not_differ_within_a_class_have_a_factor_without_rows():
    h = np.eye(CLASSES, WIDTH)[[0, 1, 1, 2]]
    sent = low_rank(h, np.array([0, 1, 1, 2]), CLASSES, 3)
    assert sent["within"].shape == (0, WIDTH)
    found = add_up([sent], CLASSES, WIDTH)
    np.testing.assert_allclose(found.gram, np.diag([1, 2, 1, 0, 0, 0]), atol=1e-15)


# ---------------------------------------------------------------- class sums


def test_subsets_of_one_sample_each_are_exact():
    h, y = samples(5)
    y[:] = 1
    sent = class_sums(h, y, CLASSES, 5, np.random.default_rng(0))
    found = add_up([sent], CLASSES, WIDTH)
    total, cross = by_hand(h, y)
    np.testing.assert_allclose(found.gram, total, atol=1e-12)
    np.testing.assert_allclose(found.cross, cross, atol=1e-12)


def test_the_estimate_is_unbiased_where_clients_have_random_samples():
    h, y = samples(60)
    total, cross = by_hand(h, y)
    found = []
    for seed in range(400):
        rng = np.random.default_rng(seed)
        of_clients = np.array_split(rng.permutation(len(y)), 2)
        parts = [class_sums(h[i], y[i], CLASSES, 4, rng) for i in of_clients]
        found.append(add_up(parts, CLASSES, WIDTH))
        np.testing.assert_allclose(found[-1].cross, cross, atol=1e-12)
    grams = np.stack([one.gram for one in found])
    error = grams.std(0) / np.sqrt(len(grams))
    assert (np.abs(grams.mean(0) - total) < 5 * error + 1e-12).all()
    # An estimate: a single deal is off by far more.
    assert np.abs(grams[0] - total).max() > 10 * error.max()


def test_it_is_the_printed_formula():
    h, y = samples(30)
    parts = class_sums(h, y, CLASSES, 3, np.random.default_rng(1))["parts"]
    expected = np.zeros((WIDTH, WIDTH))
    for label in range(CLASSES):
        s, m = parts[:, label, :-1], parts[:, label, -1]
        s, m = s[m > 0], m[m > 0]
        subsets, count, whole = len(m), m.sum(), s.sum(0)
        for one, number in zip(s, m, strict=True):
            scale = (count - 1) / (subsets - 1)
            expected += scale * np.outer(one, one) / number
        loss = (count - subsets) / ((subsets - 1) * count)
        expected -= loss * np.outer(whole, whole)
    found = add_up([{"parts": parts}], CLASSES, WIDTH)
    np.testing.assert_allclose(found.gram, expected, atol=1e-12)


def test_a_class_in_one_subset_is_known_by_its_mean_alone():
    h = np.eye(2, WIDTH)
    parts = np.zeros((1, CLASSES, WIDTH + 1))
    parts[0, 2] = [*h.sum(0), 2]
    found = add_up([{"parts": parts}], CLASSES, WIDTH)
    np.testing.assert_allclose(found.gram, np.outer(h.sum(0), h.sum(0)) / 2)


def test_subsets_are_of_nearly_equal_size_in_each_class():
    h, y = samples(50)
    parts = class_sums(h, y, CLASSES, 4, np.random.default_rng(0))["parts"]
    counts = parts[:, :, -1]
    assert (counts.max(0) - counts.min(0) <= 1).all()
    np.testing.assert_array_equal(counts.sum(0), np.bincount(y, minlength=CLASSES))


# ---------------------------------------------------------------- what is refused


FORMS = {"exact": {}, "gram": {}, "low-rank": {"rank": 3}, "class-sums": {"subsets": 5}}


def judged(form, arrays):
    params = AnalyticParams(form=form, **FORMS[form])
    check("sums", arrays, params, CLASSES, WIDTH)


@pytest.mark.parametrize("form", FORMS)
@given(count=st.integers(1, 30), seed=st.integers(0, 2**16))
@settings(max_examples=30, deadline=None)
def test_what_samples_have_made_is_let_in(form, count, seed):
    judged(form, encoded(form, *samples(count, seed)))


@pytest.mark.parametrize("form", FORMS)
def test_features_rounded_to_single_precision_are_let_in(form):
    h, y = samples(30)
    judged(form, encoded(form, h.astype(np.float32).astype(np.float64), y))


def forged(form, **changes):
    arrays = dict(encoded(form, *samples(20)))
    for name, change in changes.items():
        arrays[name] = change(arrays[name].copy())
    return arrays


def put(where, value):
    def change(array):
        array[where] = value
        return array

    return change


@pytest.mark.parametrize(
    ("form", "changes", "complaint"),
    [
        ("gram", {"gram": put(1, np.nan)}, "NaN or infinite"),
        ("gram", {"gram": put(0, 1e300)}, "length 1 at most"),
        ("gram", {"gram": put(1, 5.0)}, "no samples have"),
        ("gram", {"gram": lambda a: a * 0}, "no samples have"),
        ("gram", {"cross": put((0, -1), -1)}, "numbers of samples"),
        ("gram", {"cross": put((0, -1), 2.5)}, "numbers of samples"),
        ("gram", {"cross": put((0, -1), 1e300)}, "numbers of samples"),
        ("gram", {"cross": put((0, 0), np.inf)}, "NaN or infinite"),
        ("gram", {"cross": put((0, 0), 1e9)}, "length 1 at most"),
        ("gram", {"cross": lambda a: a * 0}, "numbers of samples"),
        ("low-rank", {"within": lambda a: a * 100}, "length 1 at most"),
        ("low-rank", {"within": lambda a: a * 1e200}, "length 1 at most"),
        ("low-rank", {"within": put((0, 0), np.nan)}, "length 1 at most"),
        ("low-rank", {"within": lambda a: np.zeros((4, WIDTH))}, "of shape (3, 6)"),
        ("class-sums", {"parts": put((1, 1, 2), 9.0)}, "length 1 at most"),
    ],
)
def test_what_no_samples_can_have_made_is_refused(form, changes, complaint):
    with pytest.raises(WireError, match="sums") as error:
        judged(form, forged(form, **changes))
    assert complaint in str(error.value)


def test_an_exact_factor_longer_than_half_the_width_is_refused():
    long = low_rank(*samples(30), CLASSES, WIDTH)
    assert len(long["within"]) > WIDTH // 2
    with pytest.raises(WireError, match="expected float64 of shape"):
        judged("exact", long)
