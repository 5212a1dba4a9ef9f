"""The paired test against SciPy's, and Holm's steps worked out by hand."""

import numpy as np
import pytest
from scipy import stats

from fcl_flower.exports.sheets import Paired, adjusted, paired


@pytest.mark.parametrize("seeds", [2, 3, 10])
def test_it_is_scipys_paired_t_test_over_the_seeds_of_both(seeds):
    rng = np.random.default_rng(seeds)
    a, b = rng.normal(0.7, 0.05, seeds), rng.normal(0.65, 0.05, seeds)
    method = dict(enumerate(a)) | {98: 0.0}
    reference = dict(reversed([*enumerate(b)])) | {99: 1.0}

    found = paired(method, reference)

    assert found.pairs == seeds
    assert found.p == pytest.approx(stats.ttest_rel(a, b).pvalue, rel=1e-9)
    assert found.difference == pytest.approx((a - b).mean())
    assert found.deviation == pytest.approx((a - b).std(ddof=1))
    assert paired(reference, method).difference == -found.difference
    assert paired(reference, method).p == found.p
    interval = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert found.difference - found.margin == pytest.approx(interval.low)
    assert found.difference + found.margin == pytest.approx(interval.high)


def test_one_seed_says_nothing_of_chance():
    assert paired({1: 0.75}, {1: 0.5, 2: 0.4}) == Paired(0.25, None, 1, None, None)


def test_differences_that_are_all_the_same_have_no_p():
    found = paired({1: 0.5, 2: 0.75}, {1: 0.25, 2: 0.5})
    assert found == Paired(0.25, 0.0, 2, None, 0.0)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),  # 3 * 0.01, 2 * 0.03, then no less
        ([0.04, None, 0.001], [0.04, None, 0.002]),
        ([0.6, 0.7], [1.0, 1.0]),
        ([None], [None]),
        ([], []),
    ],
)
def test_the_more_tests_the_less_each_counts(given, wanted):
    assert adjusted(given) == pytest.approx(wanted)
