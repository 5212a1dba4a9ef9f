"""What a reply has to tell of costs and of test samples, beside its tensors."""

import pytest

from fcl_flower.core.errors import WireError
from fcl_flower.core.types import Evaluation
from fcl_flower.rounds.replies import ReplyReader


def reader(**settings):
    return ReplyReader(None, None, max_update_norm=0, **settings)


@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        ({"epsilon": -1.0}, "metrics/epsilon: expected at least 0, got -1"),
        ({"label_epsilon": -1.0}, "metrics/label_epsilon: expected at least 0"),
        ({}, "metrics/multiply_adds: expected a count, got None"),
        ({"multiply_adds": -1.0}, "metrics/multiply_adds: expected a count, got -1"),
    ],
)
def test_costs_that_cannot_be_recorded_are_refused(metrics, sentence):
    counts = reader(counts_multiply_adds=True)
    counts._check_metrics({"epsilon": 0.0, "multiply_adds": 0.0})
    reader()._check_metrics({})
    with pytest.raises(WireError, match=sentence):
        counts._check_metrics(metrics)


def test_counts_of_other_samples_than_the_clients_are_refused():
    check = reader(classes=2, samples=[[3, 3]] * 3)._check_samples
    honest = [[[3, 0], [3, 0], [3, 0]]] * 2
    check(1, Evaluation([1.0, 1.0], 9, honest))
    check(1, Evaluation([1.0], 9, honest[:1]))
    more = Evaluation([1.0, 1.0], 9, [honest[0], [[4, 0]] * 3])
    sentence = r"tested: expected \[3, 3\] samples, got \[3, 4\]"
    with pytest.raises(WireError, match=sentence):
        check(1, more)
    for settings in (
        {"classes": 2},  # as of local data, of which the server knows no sizes
        {"samples": [[3, 3]] * 3},  # where nobody counts by class
    ):
        reader(**settings)._check_samples(1, more)
