"""AF-FCL in whole runs: what replay does to forgetting, and what goes with it."""

import pytest
from fakes import rounds_of, run_in_process, summary_of, tiny
from resuming import check_resumed

from fcl_flower.federation.transport.state_store import ContextStateStore


def run(folder, **values):
    given = {"strategy": "af-fcl", "rounds": 2, "scenario.split": "iid"}
    given |= {"max_train_per_class": 20, "growing_head": True, "public_fraction": 0.0}
    given |= {"strategy.flow_hidden": 8}
    return tiny(folder, **{**given, **values})


def test_replayed_features_hold_forgetting_back(tmp_path):
    more = {"epochs": 10, "classes_per_task": 5, "learning_rate": 0.003}
    more |= {"strategy.flow_hidden": 32, "max_train_per_class": 40}
    found = {}
    for replay in (0.0, 2.0):
        config = run(tmp_path / str(replay), **more, **{"strategy.replay": replay})
        grid = run_in_process(config)
        found[replay] = summary_of(tmp_path / str(replay))
    assert found[2.0]["forgetting"] < found[0.0]["forgetting"] - 0.25
    assert found[2.0]["average_accuracy"] > found[0.0]["average_accuracy"] + 0.1
    # Of 64 features, 10 classes and a width of 32, from two clients in four rounds.
    layer = 32 * 43 + 2 * (2 * 32 * 33 + 32 * 11) + 64 * 33
    nominal = 2 * 4 * 4 * 4 * layer
    for one in found.values():
        assert nominal < one["bytes_by_kind"]["up"]["flow"] < 1.1 * nominal
    for context in grid.contexts.values():
        assert "flow" not in ContextStateStore(context).load(before=99).payload
    assert not any(row["failed"] for row in rounds_of(tmp_path / "2.0"))


def test_a_run_that_was_ended_and_resumed_ends_as_if_it_had_not_been(tmp_path):
    # In the second round of the second task, with an old model and an old flow.
    check_resumed(tmp_path, run, 4)


@pytest.mark.parametrize(
    "more",
    [
        {"federation.secure_aggregation": True, "clients": 3},
        {"privacy.unit": "client", "privacy.noise_multiplier": 0.01},
        {"federation.wire_dtype": "int8"},
        {"asynchronous": True},
        {"federation.aggregation": "median", "clients": 3},
        {"local_only": True, "growing_head": False},
    ],
    ids=lambda more: next(iter(more)),
)
def test_the_flow_goes_with_what_the_model_goes_with(tmp_path, more):
    run_in_process(run(tmp_path, **more))
    assert summary_of(tmp_path)["average_accuracy"] > 0
    assert not any(row["failed"] for row in rounds_of(tmp_path))
