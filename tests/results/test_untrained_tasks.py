"""How many tasks of clients were tested without training is said, and never hidden."""

import pytest
from fakes import failure, rounds_of, run_in_process, summary_of, tiny
from pages import parsed, words

from fcl_flower.core.schedule import Schedule


def untrained(folder, **values):
    run_in_process(tiny(folder, **values))
    return summary_of(folder)["untrained_client_tasks"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_every_task_is_trained_where_all_clients_take_part(tmp_path, asynchronous):
    assert untrained(tmp_path, strategy="local", asynchronous=asynchronous) == 0
    assert "never trained" not in words(parsed(tmp_path / "report.html"))


def test_tasks_that_no_round_brought_to_a_client_are_counted(tmp_path):
    given = {"clients": 4, "tasks": 2, "client_fraction": 0.5, "rounds": 2}
    found = untrained(tmp_path, strategy="local", **given)
    plan = Schedule(clients=4, tasks=2, rounds_per_task=2, fraction=0.5, seed=0)
    trained = {(c, plan.task(r)) for r in range(1, 5) for c in plan.participants(r)}
    assert found == 8 - len(trained) > 0
    sentence = f"{found} of 8 client-tasks were never trained on, as their clients"
    assert sentence in words(parsed(tmp_path / "report.html"))


def test_an_update_that_is_left_out_trains_nothing(tmp_path):
    def absent(who, message, reply):
        trains = message.metadata.message_type == "train"
        return failure(message, "absent") if who and trains else reply

    run_in_process(tiny(tmp_path, strategy="fedavg"), tamper=absent)
    assert summary_of(tmp_path)["untrained_client_tasks"] == 2
    assert len(rounds_of(tmp_path)) == 2


def test_whoever_trains_on_all_tasks_at_once_has_trained_on_each(tmp_path):
    given = {"strategy": "fedavg", "joint": True, "head": "single"}
    given |= {"clients": 4, "client_fraction": 0.25, "seed": 1}
    found = untrained(tmp_path, **given)
    plan = Schedule(clients=4, tasks=2, rounds_per_task=1, fraction=0.25, seed=1)
    assert plan.participants(1) != plan.participants(2)
    assert found == (4 - 2) * 2


def test_hidden_concepts_are_met_by_chance_and_not_counted(tmp_path):
    given = {"scenario": "concepts", "classes_per_task": 0}
    assert untrained(tmp_path, strategy="fedavg", **given) is None
