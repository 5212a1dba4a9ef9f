"""Reasons as the record has them, and the class of each."""

import pytest

from fcl_flower.core.failures import Failure


@pytest.mark.parametrize(
    ("why", "cause"),
    [
        ("the client failed: task 2 is not there yet", "failed"),
        ("evaluation: the client failed: gone", "failed"),
        ("is not connected", "unreachable"),
        ("could not be reached", "unreachable"),
        ("keys: could not be reached", "unreachable"),
        ("no reply in time", "late"),
        ("query: no reply in time", "late"),
        ("was late: the round had its quorum", "late"),
        ("was late 3 times in a row, and is asked again in round 8", "late"),
        ("is still busy with an earlier round", "late"),
        ("has lost its state and starts anew when asked next", "state-lost"),
        ("base/w: holds NaN or infinity", "refused"),
        ("its reply cannot be opened: ValueError('is not connected')", "refused"),
        ("KeyError('no reply in time')", "refused"),
        ("", "refused"),
    ],
)
def test_a_reason_has_the_class_of_its_sentence(why, cause):
    assert Failure.of(why) == cause
