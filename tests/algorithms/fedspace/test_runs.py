"""Whole runs of FedSpace on digits: what prototypes hold back, and what goes along."""

import pytest
from fakes import rounds_of, run_in_process, summary_of, tiny
from resuming import check_resumed

from fcl_flower.core.errors import ConfigError
from fcl_flower.federation.transport.state_store import ContextStateStore


def run(folder, **values):
    given = {"strategy": "fedspace", "rounds": 2, "scenario.split": "iid"}
    given |= {"max_train_per_class": 20, "growing_head": True, "public_fraction": 0.0}
    return tiny(folder, **{**given, **values})


def test_replayed_prototypes_hold_forgetting_back(tmp_path):
    more = {"epochs": 5, "rounds": 3, "max_train_per_class": 40}
    found = {}
    for weight in (0.0, 1.0):
        given = {**more, "strategy.prototype_weight": weight}
        grid = run_in_process(run(tmp_path / str(weight), **given))
        found[weight] = summary_of(tmp_path / str(weight))
    assert found[1.0]["forgetting"] < found[0.0]["forgetting"] - 0.25
    assert found[1.0]["average_accuracy"] > found[0.0]["average_accuracy"] + 0.1
    for context in grid.contexts.values():
        kept = ContextStateStore(context).load(before=99).payload
        assert "prototypes" not in kept
    assert not any(row["failed"] for row in rounds_of(tmp_path / "1.0"))


def test_a_run_that_was_ended_and_resumed_ends_as_if_it_had_not_been(tmp_path):
    # In the second round of the second task, when there are prototypes of the first.
    check_resumed(tmp_path, run, 4)


@pytest.mark.parametrize(
    "more",
    [
        {"federation.secure_aggregation": True, "clients": 3},
        {"federation.wire_dtype": "int8"},
        {"asynchronous": True},
        {"federation.aggregation": "median", "clients": 3},
        {"local_only": True, "growing_head": False},
        {"strategy.rotations": False, "strategy.absent_classes": "dropped"},
        {"scenario.split": "classes", "clients": 3},
    ],
    ids=lambda more: next(iter(more)),
)
def test_prototypes_go_with_what_the_model_goes_with(tmp_path, more):
    run_in_process(run(tmp_path, **more))
    assert summary_of(tmp_path)["average_accuracy"] > 0
    assert not any(row["failed"] for row in rounds_of(tmp_path))


def test_masks_change_no_more_than_the_last_digits(tmp_path):
    found = []
    for masked in (False, True):
        given = {"federation.secure_aggregation": masked, "clients": 3}
        run_in_process(run(tmp_path / str(masked), **given))
        found.append(summary_of(tmp_path / str(masked)))
    plain, secure = (one["average_accuracy"] for one in found)
    assert secure == pytest.approx(plain, abs=0.02)


def test_clients_that_meet_classes_in_orders_of_their_own(tmp_path):
    given = {"strategy": "fedspace", "scenario": "concepts", "rounds": 4}
    given |= {"scenario.reveal_ids": True, "classes_per_task": 0}
    run_in_process(tiny(tmp_path, **given))
    assert summary_of(tmp_path)["average_accuracy"] > 0
    assert not any(row["failed"] for row in rounds_of(tmp_path))


@pytest.mark.parametrize("unit", ["client", "example"])
def test_noise_is_refused_as_prototypes_tell_of_single_classes(tmp_path, unit):
    given = {"privacy.unit": unit, "privacy.noise_multiplier": 1.0}
    with pytest.raises(ConfigError, match=rf"privacy\.unit: got '{unit}', expected 'n"):
        run_in_process(run(tmp_path, **given))
