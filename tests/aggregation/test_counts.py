"""What a client's own number of examples is worth."""

import pytest

from fcl_flower.aggregation.policy import Aggregation, shares_counted
from fcl_flower.core.types import Update


def counts(policy, *numbers):
    sent = {
        3 + c: Update({"base": {}}, n, {"loss": 1.0}) for c, n in enumerate(numbers)
    }
    found = policy.count(sent)
    assert found.keys() == sent.keys()
    assert all(update.metrics == {"loss": 1.0} for update in found.values())
    return [update.num_examples for update in found.values()]


def test_by_default_every_number_counts_as_it_is():
    assert counts(Aggregation(), 0, 5, 2**31) == [0, 5, 2**31]


@pytest.mark.parametrize(
    ("limit", "numbers", "expected"),
    [
        (1.0, (10, 20, 2**31), [10, 20, 20]),
        (2.5, (10, 20, 2**31), [10, 20, 50]),
        # Of two the lower one: the other may say what it likes.
        (1.0, (10, 2**31), [10, 10]),
        (2.0, (10, 2**31, 2**31, 12), [10, 24, 24, 12]),
        # Who has no examples is no measure.
        (1.0, (0, 0, 0, 7, 9), [0, 0, 0, 7, 7]),
        (1.0, (0, 0), [0, 0]),
        (1.5, (1, 3), [1, 1]),
    ],
)
def test_a_limit_is_a_multiple_of_the_median(limit, numbers, expected):
    assert counts(Aggregation(examples_limit=limit), *numbers) == expected


def test_uniform_weights_leave_out_who_has_nothing():
    assert counts(Aggregation(weighting="uniform"), 0, 5, 2**31) == [0, 1, 1]
    assert counts(Aggregation(weighting="uniform"), 0, 0) == [0, 0]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (0.0, [1, 1, 1, 1]),
        (1.0, [1, 1, 2 / 3, 20 / 2**31]),
        (2.0, [1, 1, 1, 40 / 2**31]),
    ],
)
def test_of_sums_a_share_counts(limit, expected):
    assert shares_counted([10, 20, 30, 2**31], limit) == expected
    assert shares_counted([], limit) == []
