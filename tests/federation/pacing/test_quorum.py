"""When a round is closed, by hand."""

import math

import pytest

from fcl_flower.federation.pacing import Quorum


@pytest.mark.parametrize(
    ("rule", "times", "asked", "closes"),
    [
        (Quorum(), [], 3, math.inf),
        (Quorum(), [1, 2], 3, math.inf),
        (Quorum(), [1, 5, 2], 3, 5),
        (Quorum(0.5), [3], 4, math.inf),
        (Quorum(0.5), [3, 1], 4, 3),
        (Quorum(0.5), [3, 1, 9], 4, 3),  # who comes later moves nothing
        (Quorum(0.5, 2.5), [3, 1, 9], 4, 7.5),
        (Quorum(0.5, 0.2), [3, 1], 4, 3),  # not before its quorum
        (Quorum(0.51), [3, 1], 4, math.inf),
        (Quorum(0.5, least=3), [3, 1], 4, math.inf),
        (Quorum(0.5, least=3), [3, 1, 4], 4, 4),
        (Quorum(0.28), [1] * 7, 25, 1),  # 0.28 * 25 = 7.000000000000001
        (Quorum(0.5), [], 0, math.inf),
    ],
)
def test_the_quorum_and_its_time_close_a_round(rule, times, asked, closes):
    assert rule.closes_at(times, asked) == closes
