"""Tasks that are given: who gets which samples, and what a run makes of them."""

import numpy as np
import pytest
from plans import by_task, draw

import fcl_flower as fcl
from fcl_flower.data.registry import registered
from fcl_flower.data.scenarios.given import GivenTasks, TaskSamples
from fcl_flower.data.scenarios.registry import SCENARIOS

pytestmark = pytest.mark.usefixtures("one_thread")
RNG = np.random.default_rng(0)
CLASSES, PER_CLASS = 6, 12


def digits():
    """Return pictures whose class shows, 12 of each of 6 classes in both splits."""
    y = np.repeat(np.arange(CLASSES), PER_CLASS)
    x = RNG.uniform(0, 0.3, (len(y), 8, 8))
    x[np.arange(len(y)), y] += 0.7
    return fcl.datasets.from_arrays(x, y, x, y)


DATA = digits()


def given(groups, head="single", every=1):
    """Return tasks of groups of classes, of every n-th sample."""
    y = DATA.train.y
    rows = [np.flatnonzero(np.isin(y, group))[::every] for group in groups]
    return GivenTasks(DATA, tuple(TaskSamples(r, r) for r in rows), head)


PAIRS = [(4, 1), (0, 5), (2, 3)]
DOMAINS = [(0, 1, 2), (0, 1, 2)]


def drawn(tasks, *, clients=3, count=None, data=DATA, **others):
    usual = {"public_fraction": 0.0} if tasks.incremental else {}
    settings = {"seed": 1, "valid_fraction": 0.25, **usual, **others}
    number = count or len(tasks.tasks)
    with registered(data), SCENARIOS.registered("given-tasks", tasks.entry):
        return draw(
            "given-tasks",
            datasets=[data.name],
            clients=clients,
            tasks=number,
            **settings,
        )


@pytest.mark.parametrize("head", ["single", "multi"])
def test_all_clients_learn_the_given_tasks_in_order_each_its_share(head):
    tasks = given(PAIRS, head, every=2)

    plan = drawn(tasks)

    for number, pair in enumerate(PAIRS):
        dealt = []
        for client in range(3):
            task = plan.clients[client][number]
            assert task.classes == tuple(sorted(pair))
            assert task.class_names == tuple(map(str, sorted(pair)))
            assert task.group == number
            np.testing.assert_array_equal(task.test, tasks.tasks[number].test)
            # Two of six samples of a class, of which at least one is held out.
            for part in (task.train, task.valid):
                assert DATA.train.y[part].tolist() == sorted(pair)
            dealt += [*task.train, *task.valid]
        assert sorted(dealt) == tasks.tasks[number].train.tolist()
    assert plan.classes_per_task == 2


def test_another_seed_deals_other_samples_and_the_same_seed_the_same():
    def dealt(seed):
        return drawn(given(PAIRS), seed=seed).to_dict()["clients"]

    assert dealt(1) == dealt(1)
    assert dealt(1) != dealt(2)


def test_two_tasks_of_the_same_classes_are_two_groups():
    (first, second) = drawn(given(DOMAINS)).clients[0]

    assert (first.classes, first.group) == ((0, 1, 2), 0)
    assert (second.classes, second.group) == ((0, 1, 2), 1)


def test_classes_are_new_in_each_task_where_no_two_tasks_share_one():
    assert given(PAIRS).incremental
    assert not given(PAIRS, "multi").incremental
    assert not given(DOMAINS).incremental
    assert not given([(0, 1), (1, 2)]).incremental


def test_the_largest_task_says_how_many_classes_a_head_has():
    plan = drawn(given([(0, 1), (2, 3, 4)], "multi"))

    assert plan.classes_per_task == 3
    assert [len(task.classes) for task in plan.clients[0]] == [2, 3]


def test_tests_of_classes_that_a_task_does_not_train_are_left_out():
    train = np.flatnonzero(np.isin(DATA.train.y, (0, 1)))
    everything = np.arange(len(DATA.test.y))
    plan = drawn(GivenTasks(DATA, (TaskSamples(train, everything),), "single"))

    assert set(DATA.test.y[plan.clients[0][0].test].tolist()) == {0, 1}


def test_samples_of_a_class_are_capped_over_all_clients():
    plan = drawn(given(PAIRS), max_train_per_class=6, max_test_per_class=5)

    for number in range(3):
        tasks = [tasks[number] for tasks in plan.clients]
        assert sum(len(task.train) + len(task.valid) for task in tasks) == 12
        assert all(len(task.test) == 10 for task in tasks)


def test_shares_may_be_skewed_and_clients_without_a_class_learn_another_group():
    plan = drawn(given(PAIRS), split="dirichlet:0.1", clients=4)

    sizes = [len(tasks[0].train) for tasks in plan.clients]
    assert max(sizes) - min(sizes) > 2
    found = {}
    for tasks in plan.clients:
        for number, task in enumerate(tasks):
            assert set(DATA.train.y[task.train].tolist()) <= set(task.classes)
            found.setdefault(task.group, set()).add((number, task.classes))
    assert all(len(meanings) == 1 for meanings in found.values())
    assert len(found) > 3
    # Numbered task by task.
    first, *_, last = (sorted({t.group for t in ts}) for ts in by_task(plan))
    assert first[-1] < last[0]


def refusals():
    pairs, rare = given(PAIRS), given(PAIRS, every=6)
    untested = TaskSamples(np.array([0, 1, 12, 13]), np.array([30]))
    few = GivenTasks(DATA, (untested,), "single")
    return [
        (
            pairs,
            {"data": digits()},
            "datasets: got 'arrays', expected the data set that",
        ),
        (pairs, {"count": 4}, "tasks: got 4, expected at most the 3 given"),
        (
            pairs,
            {"classes_per_task": 3},
            "classes_per_task: got 3, expected none, or 2",
        ),
        (
            pairs,
            {"public_fraction": 0.2},
            "public_fraction: got 0.2, expected 0, as all",
        ),
        (
            pairs,
            {"split": "classes"},
            "scenario.split: got 'classes', expected iid or d",
        ),
        (
            pairs,
            {"class_order": "seed:1"},
            "scenario.class_order: got 'seed:1', expected none, as the tasks are given",
        ),
        (
            pairs,
            {"first_task_classes": 3},
            "scenario.first_task_classes: got 3, expected 0, as the tasks are given",
        ),
        (
            given(PAIRS, "multi", every=6),
            {},
            "clients: got 3 clients that learn class '1",
        ),
        (rare, {"clients": 5}, "clients: got 5, expected at most 4"),
        (few, {"clients": 1}, "test samples: got 0, expected one or more of the cla"),
    ]


@pytest.mark.parametrize(("tasks", "settings", "message"), refusals())
def test_what_the_tasks_do_not_allow_is_refused(tasks, settings, message):
    with pytest.raises(fcl.ConfigError, match=f"^{message}"):
        drawn(tasks, **settings)


SMALL = {"clients": 2, "rounds": 1, "progress": False, "model": {"name": "small"}}


@pytest.mark.run
def test_a_run_takes_data_with_its_tasks_in_place_of_a_scenario():
    result = fcl.simulate("icarl", data=given(PAIRS), epochs=20, **SMALL)

    assert result.config.scenario.name == "given-tasks"
    assert result.config.model.head == "single"
    assert result.accuracy.shape == (2, 3, 3)
    assert result.average_accuracy > 0.5
    data = given(DOMAINS, "multi")
    short = fcl.compare(["fedavg"], data=data, tasks=1, counterparts=False, **SMALL)
    assert short.results[0].accuracy.shape == (2, 1, 1)
    assert short.results[0].config.model.head == "multi"
    assert "given-tasks" not in SCENARIOS


@pytest.mark.run
def test_a_head_may_grow_with_new_classes():
    model = {"name": "small", "growing_head": True}
    settings = {**SMALL, "model": model}

    assert fcl.simulate("fedavg", data=given(PAIRS), **settings).rounds
    with pytest.raises(fcl.ConfigError, match=r"^model.growing_head: got true"):
        fcl.simulate("fedavg", data=given(DOMAINS), **settings)


def test_a_scenario_beside_given_tasks_is_refused():
    message = "^scenario: got 'classes', expected none, as data has its tasks$"
    with pytest.raises(fcl.ConfigError, match=message):
        fcl.simulate("fedavg", data=given(PAIRS), scenario="classes", **SMALL)
    assert "given-tasks" not in SCENARIOS
