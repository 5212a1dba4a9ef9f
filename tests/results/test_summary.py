import numpy as np
import pytest
from pages import parsed, table_of

import fcl_flower as fcl
from fcl_flower.config.sections import TrainingSection
from fcl_flower.data.scenarios.registry import draw_scenario
from fcl_flower.results.history import Accuracies
from fcl_flower.results.summary import MEASURES, measures


def plan(tmp_path, tasks=2):
    return draw_scenario(
        "overlapped",
        datasets=["digits"],
        data_root=tmp_path,
        clients=2,
        tasks=tasks,
        classes_per_task=2,
        valid_fraction=0.2,
        seed=0,
    )


@pytest.mark.parametrize("tasks", [1, 2])
def test_nothing_is_said_of_a_run_in_which_no_client_was_evaluated(tmp_path, tasks):
    # One task that was evaluated forgets 0.0; one that was not is unknown.
    missing = np.full((2, tasks, tasks), np.nan)

    found = measures(plan(tmp_path, tasks), Accuracies(missing))

    assert {name: found[name] for name in MEASURES} == dict.fromkeys(MEASURES)


def test_what_was_evaluated_is_measured_though_a_client_is_missing(tmp_path):
    accuracy = np.full((2, 2, 2), np.nan)
    accuracy[0] = [[0.9, np.nan], [0.7, 0.8]]

    found = measures(plan(tmp_path), Accuracies(accuracy))

    assert found["average_accuracy"] == (0.7 + 0.8) / 2
    assert abs(found["forgetting"] - 0.2) < 1e-12


def test_the_settings_of_a_page_say_how_clients_trained(tmp_path):
    place = tmp_path / "run"
    result = fcl.simulate(
        "fedavg",
        **{"dataset": "digits", "clients": 1, "tasks": 1, "rounds": 1},
        training={"optimizer": "sgd", "learning_rate": 0.125, "momentum": 0.5},
        progress=False,
        output=place,
    )
    rows = dict(table_of(parsed(result.report()), "settings"))
    shown = {key for key in rows if key.startswith("training.")}
    set_ = {f"training.{key}" for key in TrainingSection.model_fields}

    assert rows["training.optimizer"] == "sgd"
    assert rows["training.momentum"] == "0.5"
    assert rows["training.learning_rate"] == "0.125"
    assert set_ - shown == {"training.device", "training.threads"}
    assert shown <= set_
