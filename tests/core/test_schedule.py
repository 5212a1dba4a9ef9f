import numpy as np
import pytest

from fcl_flower.core.schedule import Schedule
from fcl_flower.core.types import TaskStage


def schedule(clients=5, tasks=3, rounds=4, fraction=0.5, seed=0):
    return Schedule(clients, tasks, rounds, fraction, seed)


def test_rounds_become_tasks():
    plan = schedule(tasks=3, rounds=2)
    assert plan.num_rounds == 6
    assert [plan.task(r) for r in range(1, 7)] == [0, 0, 1, 1, 2, 2]
    assert [r for r in range(1, 7) if plan.evaluates(r)] == [2, 4, 6]
    assert [plan.evaluated(r, 0) for r in (2, 4, 6)] == [1, 2, 3]


def test_evaluations_may_come_more_often():
    plan = Schedule(5, 2, 5, 1.0, 0, evaluate_every=3)
    assert [r for r in range(1, 11) if plan.evaluates(r)] == [3, 5, 6, 9, 10]


def test_hidden_concepts_make_every_round_an_experience_of_its_own():
    plan = Schedule(5, 1, 6, 0.5, 0, evaluate_every=4, concepts=3)
    assert plan.num_rounds == 6
    assert [r for r in range(1, 7) if plan.evaluates(r)] == [4, 6]
    assert [plan.evaluated(r, 0) for r in (4, 6)] == [3, 3]
    for client in (None, 0, 4):
        assert [plan.stage(r, client) for r in (1, 6)] == [
            TaskStage(1, 0, starts_task=True, ends_task=True),
            TaskStage(6, 0, starts_task=True, ends_task=True),
        ]


def test_a_client_that_is_told_its_concept_has_it_for_a_task():
    met = {0: [2, 0, 2, 2, 0, 1], 1: [0, 0, 0, 0, 0, 0]}
    plan = Schedule(2, 1, 6, 1.0, 0, concepts=3, concept_at=lambda c, r: met[c][r - 1])
    stages = [plan.stage(number, 0) for number in range(1, 7)]
    assert [stage.task for stage in stages] == met[0]
    assert [stage.starts_task for stage in stages] == [
        True,
        True,
        False,
        False,
        False,
        True,
    ]
    assert [stage.round for stage in stages] == [1, 2, 3, 4, 5, 6]
    assert [plan.stage(r, 1).starts_task for r in range(1, 7)] == [True] + [False] * 5
    assert all(plan.stage(r, c).ends_task for r in range(1, 7) for c in (0, 1))
    assert plan.stage(4) == TaskStage(4, 0, starts_task=True, ends_task=True), (
        "the round has no task"
    )
    assert [plan.task(r) for r in (1, 6)] == [0, 0]


@pytest.mark.parametrize("seed", range(3))
def test_a_concept_is_met_first_in_a_round_in_which_the_client_takes_part(seed):
    def concept_at(client, number):
        return (client + number // 2) % 3

    plan = Schedule(6, 1, 20, 0.4, seed, concepts=3, concept_at=concept_at)
    for client in range(6):
        seen = set()
        for number in range(1, 21):
            now = plan.stage(number, client)
            assert now.starts_task == (now.task not in seen)
            if client in plan.participants(number):
                seen.add(now.task)


@pytest.mark.parametrize("number", [0, -1, 7])
def test_a_round_outside_the_run_is_refused(number):
    with pytest.raises(ValueError, match=r"1\.\.6"):
        schedule(tasks=3, rounds=2).task(number)


@pytest.mark.parametrize(
    ("clients", "fraction", "count"),
    [(4, 1.0, 4), (4, 0.5, 2), (10, 0.3, 3), (4, 0.01, 1), (1, 0.5, 1), (3, 0.99, 3)],
)
def test_the_given_share_of_clients_takes_part_and_at_least_one(
    clients, fraction, count
):
    plan = schedule(clients=clients, fraction=fraction)
    for number in range(1, plan.num_rounds + 1):
        chosen = plan.participants(number)
        assert len(set(chosen)) == len(chosen) == count
        assert list(chosen) == sorted(chosen)
        assert set(chosen) <= set(range(clients))


def test_participants_depend_on_the_seed_and_the_round_and_nothing_else():
    plan = schedule(clients=20, rounds=10)
    drawn = [plan.participants(r) for r in range(1, 31)]
    backwards = [
        schedule(clients=20, rounds=10).participants(r) for r in range(30, 0, -1)
    ]
    assert drawn == backwards[::-1]
    assert len(set(drawn)) > 25
    assert drawn != [
        schedule(clients=20, rounds=10, seed=1).participants(r) for r in range(1, 31)
    ]


def test_every_client_has_its_turn():
    plan = schedule(clients=10, tasks=10, rounds=20, fraction=0.3)
    counts = np.bincount(
        [c for r in range(1, 201) for c in plan.participants(r)], minlength=10
    )
    assert counts.min() > 35  # of 60 expected
    assert counts.max() < 85


def test_a_client_that_always_takes_part_has_the_rounds_stages():
    plan = schedule(fraction=1.0, tasks=2, rounds=3)
    for number in range(1, 7):
        assert plan.stage(number, 2) == plan.stage(number)
    assert plan.stage(1) == TaskStage(
        round=1, task=0, starts_task=True, ends_task=False
    )
    assert plan.stage(2) == TaskStage(
        round=2, task=0, starts_task=False, ends_task=False
    )
    assert plan.stage(3) == TaskStage(
        round=3, task=0, starts_task=False, ends_task=True
    )
    assert plan.stage(4) == TaskStage(
        round=4, task=1, starts_task=True, ends_task=False
    )


def test_a_single_round_is_first_and_last():
    stage = schedule(rounds=1, fraction=1.0).stage(2, 0)
    assert stage == TaskStage(round=2, task=1, starts_task=True, ends_task=True)


@pytest.mark.parametrize("seed", range(5))
def test_first_and_last_speak_of_the_rounds_in_which_a_client_takes_part(seed):
    plan = schedule(seed=seed)
    for task in range(3):
        rounds = range(task * 4 + 1, task * 4 + 5)
        for client in range(5):
            mine = [r for r in rounds if client in plan.participants(r)]
            for number in mine:
                stage = plan.stage(number, client)
                assert stage.task == task
                assert stage.round == number
                assert stage.starts_task == (number == min(mine))
                assert stage.ends_task == (number == max(mine))


def test_a_client_that_sits_out_a_task_never_finished_it():
    plan = schedule(clients=10, rounds=1, fraction=0.1)
    absent = next(c for c in range(10) if c not in plan.participants(1))
    assert plan.stage(1, absent) == TaskStage(
        round=1, task=0, starts_task=True, ends_task=False
    )


# ---------------------------------------------------------------- tasks sat out


def test_a_client_counts_its_own_tasks_without_those_that_it_sat_out():
    plan = Schedule(3, 4, 2, 1.0, 0, sat_out=frozenset({(1, 1), (2, 0), (2, 3)}))

    assert [plan.own_tasks(client) for client in range(3)] == [
        (0, 1, 2, 3),
        (0, 2, 3),
        (1, 2),
    ]
    assert plan.own_tasks(1, until=2) == (0, 2)
    there = [plan.participants(number) for number in (1, 3, 5, 7)]
    assert there == [(0, 1), (0, 2), (0, 1, 2), (0, 1)]
    # Rounds of tasks 0 to 3; who sits one out is tested on those before.
    assert [plan.evaluated(number, 1) for number in (2, 4, 6, 8)] == [1, 1, 2, 3]
    assert [plan.evaluated(number, 2) for number in (2, 4, 6, 8)] == [0, 1, 2, 2]
    assert [plan.stage(number, 1).task for number in (2, 4, 6, 8)] == [0, 0, 1, 2]
    assert [plan.stage(number).task for number in (2, 4, 6, 8)] == [0, 1, 2, 3]
    assert plan.stage(5, 1) == TaskStage(5, 1, starts_task=True, ends_task=False)


def test_a_share_of_the_clients_is_drawn_among_those_with_data():
    plan = Schedule(4, 1, 9, 0.5, 0, sat_out=frozenset({(0, 0), (2, 0)}))
    drawn = {plan.participants(number) for number in range(1, 10)}
    assert drawn == {(1,), (3,)}
