"""Clients are tested before the aggregation as well as after it."""

import pytest
from fakes import run_in_process, summary_of, tiny

pytestmark = pytest.mark.run

SHORT = {"tasks": 1, "clients": 3}


def run_of(folder, **values):
    run_in_process(tiny(folder, **values))
    return summary_of(folder)


# In the first round all start from the same model: what a client has trained by itself
# is what it has without any federation.
@pytest.mark.parametrize(
    ("strategy", "head", "asynchronous"),
    [("fedavg", "multi", False), ("fedavg", "single", True), ("ewc", "multi", True)],
)
def test_before_the_aggregation_a_client_has_what_it_learned_alone(
    tmp_path, strategy, head, asynchronous
):
    given = {**SHORT, "head": head, "asynchronous": asynchronous}
    alone = run_of(tmp_path / "alone", strategy="local", **SHORT, head=head)
    together = run_of(tmp_path / "together", strategy=strategy, **given)

    before = together["before_aggregation"]

    assert before["client_accuracy"] == alone["client_accuracy"]
    assert before["average_accuracy"] == alone["average_accuracy"]
    assert together["client_accuracy"] != before["client_accuracy"]


@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_of_a_strategy_that_keeps_its_model_both_are_the_same(tmp_path, fraction):
    found = run_of(tmp_path, strategy="fedweit", client_fraction=fraction)
    before = found["before_aggregation"]
    assert before["average_accuracy"] is not None
    assert before == {key: found[key] for key in before}


@pytest.mark.parametrize(
    "given",
    [
        {"strategy": "fedavg", "evaluate_before_aggregation": False},
        # The means before and after it would be over different clients.
        {"strategy": "fedavg", "client_fraction": 0.5},
        {"strategy": "fedavg", "quorum": 0.5},
        # Its update is one model of several, or no model at all.
        {"strategy": "concept-matching", "classes_per_task": 0},
        {"strategy": "analytic", "model": "small", "dataset": "digits"},
    ],
    ids=str,
)
def test_nothing_is_measured_where_that_is_not_wanted_or_says_nothing(tmp_path, given):
    found = run_of(tmp_path, **given)
    assert found["before_aggregation"]["average_accuracy"] is None
    assert found["average_accuracy"] is not None


def test_the_model_and_all_other_numbers_stay_as_they_are(tmp_path):
    measured = run_of(tmp_path / "a", strategy="fedavg")
    plain = run_of(tmp_path / "b", strategy="fedavg", evaluate_before_aggregation=False)
    differing = {key for key in measured if measured[key] != plain[key]}
    assert differing == {"before_aggregation", "bytes_up", "bytes_by_kind"}
