"""Scores on the wire: what was sent comes back, and nothing impossible is believed."""

import pytest
from flwr.app import MetricRecord

from fcl_flower.core.errors import WireError
from fcl_flower.core.types import Evaluation
from fcl_flower.federation.messages import (
    decode_evaluation,
    encode_evaluation,
)

# Two tasks of three classes: of 5 samples 3 are right, of 2 none.
COUNTED = Evaluation(
    [0.6, 0.0],
    77,
    [[[2, 1, 0], [3, 2, 0], [3, 1, 1]], [[0, 0, 0], [0, 0, 2], [1, 1, 0]]],
)


def test_counts_come_back_as_they_were_sent():
    sent = encode_evaluation(COUNTED)

    assert sent["tested"] == [3, 2, 0, 0, 0, 2]
    assert decode_evaluation(sent, 2, classes=3) == COUNTED
    assert decode_evaluation(sent, 2) == Evaluation([0.6, 0.0], 77)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"right": None}, "right: expected 6 counts by class, got None"),
        ({"tested": 5}, "tested: expected 6 counts by class, got 5"),
        ({"answered": [1] * 5}, "answered: expected 6 counts by class, got 5 of them"),
        ({"answered": [1] * 7}, "answered: expected 6 counts by class, got 7 of them"),
        ({"tested": [3.0, 2.0, 0.0, 0.0, 0.0, 2.0]}, "tested: expected integers in"),
        ({"tested": [3, 2, 0, 0, -1, 3]}, "tested: expected integers in"),
        ({"tested": [2**31 + 1, 2, 0, 0, 0, 2]}, "tested: expected integers in"),
        ({"right": [4, 0, 0, 0, 0, 0]}, "right: expected at most as many"),
        (
            {"right": [1, 2, 0, 0, 0, 0]},
            "right: expected at most as many",
        ),  # answered 1
        (
            {"right": [3, 1, 0, 0, 0, 0]},
            r"right: expected the accuracies \[0\.6, 0",
        ),
        ({"answered": [3, 1, 2, 1, 1, 0]}, "answered: expected one answer to each of"),
        ({"answered": [3, 1, 1, 0, 1, 0]}, "answered: expected one answer to each of"),
        ({"right": [2, 0, 1, 0, 0, 0]}, "right: expected at most as many"),
        ({"answered": [3, 1, 2, 1, 0, 0]}, "answered: expected one answer to each of"),
        ({"accuracy": [0.6, 0.5]}, "right: expected the accuracies"),
        ({"accuracy": [0.6]}, "accuracy: expected 2 fractions, got 1 of them$"),
        ({"accuracy": [0.6] * 3}, "accuracy: expected 2 fractions, got 3 of them$"),
        ({"accuracy": 0.6}, r"accuracy: expected 2 fractions, got 0\.6$"),
    ],
)
def test_impossible_counts_are_refused_by_name(changed, why):
    honest = dict(encode_evaluation(COUNTED))
    sent = {**honest, **changed}
    record = MetricRecord(
        {key: found for key, found in sent.items() if found is not None}
    )

    with pytest.raises(WireError, match=why):
        decode_evaluation(record, 2, classes=3)
