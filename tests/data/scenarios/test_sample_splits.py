"""A task's samples dealt to all clients, evenly or by a Dirichlet distribution."""

from pathlib import Path

import numpy as np
import pytest
from fakes import run_in_process, summary_of, tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from text_sets import write_text_set

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.data.partition import split_dirichlet
from fcl_flower.data.registry import load_dataset
from fcl_flower.data.scenarios import registry
from fcl_flower.data.scenarios.incremental import ClassIncrementalParams
from fcl_flower.data.scenarios.registry import draw_scenario
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve

NOWHERE = Path("no-such-folder")


@pytest.fixture(autouse=True)
def fresh_cache():
    load_dataset.cache_clear()


def build(split, root=NOWHERE, **changes):
    values = {
        "datasets": ["digits"],
        "clients": 4,
        "tasks": 2,
        "classes_per_task": None,
        "valid_fraction": 0.15,
        "seed": 7,
        "public_fraction": 0.0,
    }
    return draw_scenario(
        "class-incremental",
        data_root=root,
        params=ClassIncrementalParams(split=split),
        **{**values, **changes},
    )


def by_task(plan):
    return list(zip(*plan.clients, strict=True))


def learned(task):
    return np.concatenate([task.train, task.valid]).tolist()


def counts(tasks, source):
    """Return how many samples of each class each client has, shape (clients, 10)."""
    y = source.train.y
    return np.array([np.bincount(y[learned(t)], minlength=10) for t in tasks])


def write_images(root, name, y):
    y = np.array(y)
    x = np.zeros((len(y), 8, 8), np.uint8)
    np.savez(root / f"{name}.npz", x_train=x, y_train=y, x_test=x, y_test=y)


# ---------------------------------------------------------------- the cut itself


@settings(max_examples=50, deadline=None)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    parts=st.integers(1, 8),
    beta=st.sampled_from([1e-300, 1e-3, 0.1, 0.5, 1.0, 30.0, 1e6]),
    seed=st.integers(0, 2**32),
)
def test_parts_of_a_dirichlet_cut_are_disjoint_and_cover_all(labels, parts, beta, seed):
    y = np.array(labels)
    found = split_dirichlet(y, parts, beta, np.random.default_rng(seed))
    assert len(found) == parts
    assert sorted(np.concatenate(found).tolist()) == list(range(len(y)))
    assert all(part.tolist() == sorted(part.tolist()) for part in found)


@settings(max_examples=30, deadline=None)
@given(beta=st.sampled_from([0.05, 0.5, 2.0]), seed=st.integers(0, 2**32))
def test_a_part_with_its_even_share_gets_none_of_the_classes_that_follow(beta, seed):
    y = np.repeat(np.arange(6), 50)
    found = split_dirichlet(y, 5, beta, np.random.default_rng(seed))
    table = np.array([np.bincount(y[part], minlength=6) for part in found])
    for label in range(1, 6):
        full = table[:, :label].sum(axis=1) >= 300 / 5
        assert not table[full, label].any()


@pytest.mark.parametrize("beta", [0.1, 0.5, 1.0, 20.0])
def test_shares_of_a_class_are_as_uneven_as_the_distribution_says(beta):
    rng = np.random.default_rng(0)
    sums = []
    for _ in range(1500):
        parts = split_dirichlet(np.zeros(2000, np.int64), 5, beta, rng)
        sums.append(sum((len(part) / 2000) ** 2 for part in parts))
    # The second moment of a symmetric Dirichlet distribution over n: n E[p^2].
    assert np.mean(sums) == pytest.approx((1 + beta) / (1 + 5 * beta), abs=0.02)


def test_no_part_has_more_than_another_on_average():
    # Of three samples, cut always in the same order, the middle parts get more.
    rng = np.random.default_rng(0)
    y = np.zeros(3, np.int64)
    sizes = np.array(
        [[len(part) for part in split_dirichlet(y, 4, 1.0, rng)] for _ in range(4000)]
    )
    assert sizes.mean(axis=0) == pytest.approx([0.75] * 4, abs=0.04)


# ---------------------------------------------------------------- the plan


@settings(max_examples=30, deadline=None)
@given(
    split=st.sampled_from(["iid", "dirichlet:0.1", "dirichlet:0.5", "dirichlet:1"]),
    clients=st.integers(1, 6),
    tasks=st.integers(1, 5),
    public_fraction=st.sampled_from([0.0, 0.1]),
    max_train_per_class=st.sampled_from([0, 40]),
    seed=st.integers(0, 2**32),
)
def test_every_sample_is_one_clients_or_the_servers_and_each_client_has_some(
    split, clients, tasks, public_fraction, max_train_per_class, seed
):
    plan = build(
        split,
        clients=clients,
        tasks=tasks,
        public_fraction=public_fraction,
        max_train_per_class=max_train_per_class,
        seed=seed,
    )
    y = load_dataset("digits", NOWHERE).train.y
    of_clients = [i for tasks in plan.clients for task in tasks for i in learned(task)]
    used = of_clients + [i for task in plan.public for i in task.train.tolist()]
    assert len(set(used)) == len(used)
    assert np.bincount(y[used]).tolist() == [
        min(max_train_per_class or n, n) for n in np.bincount(y).tolist()
    ]
    for stream in plan.clients:
        for task in stream:
            assert len(task.train)
            assert set(y[learned(task)].tolist()) == set(task.classes)
            # A class with one sample keeps it for training.
            assert set(y[task.train].tolist()) == set(task.classes)


@pytest.mark.parametrize("split", ["iid", "dirichlet:0.1"])
def test_tasks_and_test_samples_are_those_that_there_are_where_classes_are_drawn(split):
    usual, plan = build("classes"), build(split)
    assert plan.labels == usual.labels
    for mine, theirs in zip(by_task(plan), by_task(usual), strict=True):
        assert {task.name for task in mine} == {task.name for task in theirs}
        for a, b in zip(mine, theirs, strict=True):
            assert a.test.tolist() == b.test.tolist()


def test_even_shares_differ_by_at_most_one_sample_of_a_class_and_in_all():
    source = load_dataset("digits", NOWHERE)
    for seed in range(5):
        for tasks in by_task(build("iid", clients=7, seed=seed)):
            table = counts(tasks, source)
            assert (np.ptp(table, axis=0) <= 1).all()
            assert np.ptp(table.sum(axis=1)) <= 1


def test_what_is_left_over_of_tasks_goes_to_different_clients(tmp_path):
    write_images(tmp_path, "odd", np.repeat(np.arange(20), 5))
    plan = build("iid", tmp_path, datasets=["odd"], tasks=20)
    sizes = np.array([[len(learned(task)) for task in ts] for ts in by_task(plan)])
    assert (np.sort(sizes) == [1, 1, 1, 2]).all()
    assert (sizes == 2).sum(axis=0).max() < 12


def test_with_a_large_beta_shares_are_nearly_even():
    source = load_dataset("digits", NOWHERE)
    for tasks in by_task(build("dirichlet:1e6")):
        assert (np.ptp(counts(tasks, source), axis=0) <= 2).all()


def test_the_smaller_beta_the_fewer_clients_have_most_of_a_class():
    source = load_dataset("digits", NOWHERE)
    largest = {}
    for beta in ("0.1", "1", "100"):
        shares = []
        for seed in range(20):
            for tasks in by_task(build(f"dirichlet:{beta}", seed=seed)):
                table = counts(tasks, source)
                table = table[:, table.any(axis=0)]
                shares += (table.max(axis=0) / table.sum(axis=0)).tolist()
        largest[beta] = np.mean(shares)
    assert largest["0.1"] > 0.75 > 0.65 > largest["1"] > 0.45 > largest["100"]


@pytest.mark.parametrize("split", ["iid", "dirichlet:0.5"])
def test_the_same_seed_gives_the_same_shares_and_another_one_others(split):
    first = build(split).to_dict()
    registry._build.cache_clear()
    assert build(split).to_dict() == first
    assert build(split, seed=8).to_dict()["clients"] != first["clients"]


def test_shares_are_drawn_for_each_task_anew():
    source = load_dataset("digits", NOWHERE)
    first, second = (counts(ts, source) for ts in by_task(build("dirichlet:0.1")))
    sizes = [
        [sorted(table[:, label].tolist()) for label in np.flatnonzero(table.any(0))]
        for table in (first, second)
    ]
    assert sizes[0] != sizes[1]


def test_clients_with_the_same_classes_learn_the_same():
    plan = build("iid")
    assert [[task.group for task in stream] for stream in plan.clients] == [[0, 1]] * 4
    skewed = build("dirichlet:0.1", clients=5)
    found = {}
    for stream in skewed.clients:
        for task in stream:
            assert found.setdefault(task.group, task.classes) == task.classes
    assert len(found) > 2


def test_each_of_several_data_sets_is_a_task(tmp_path):
    write_images(tmp_path, "one", np.tile([0, 1], 20))
    write_images(tmp_path, "two", np.tile([0, 1, 2], 20))
    plan = build("dirichlet:0.5", tmp_path, datasets=["one", "two"])
    for tasks, size in zip(by_task(plan), (40, 60), strict=True):
        assert sorted(i for task in tasks for i in learned(task)) == list(range(size))


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "value",
    [
        *("", "class", "iid:1", "dirichlet", "dirichlet:", "dirichlet:0"),
        *("dirichlet:-1", "dirichlet:nan", "dirichlet:inf", "dirichlet:2e6", "beta:1"),
    ],
)
def test_an_unknown_split_is_refused(value):
    config = RunConfig.from_settings(
        scenario={"name": "class-incremental", "split": value}, dataset="digits"
    )
    with pytest.raises(ConfigError) as problem:
        resolve(config)
    assert str(problem.value) == (
        f"scenario.split: got {value!r}, expected 'classes', 'iid' or 'dirichlet:BETA' "
        "with BETA above 0 and at most 1e+06"
    )


def test_a_share_of_classes_is_refused_where_none_are_drawn():
    scenario = {"name": "class-incremental", "split": "iid", "class_fraction": 0.5}
    with pytest.raises(
        ConfigError,
        match=r"^scenario.class_fraction: got 0.5, expected none with scenario.split "
        r"'iid', by which no classes are drawn$",
    ):
        resolve(RunConfig.from_settings(scenario=scenario, dataset="digits"))


@pytest.mark.parametrize("split", ["iid", "dirichlet:1"])
def test_more_clients_than_samples_of_a_task_are_refused(tmp_path, split):
    write_images(tmp_path, "few", [0, 0, 1])
    with pytest.raises(
        ConfigError, match=r"clients: got 4, expected at most 3, since task 'few/0' has"
    ):
        build(split, tmp_path, datasets=["few"], tasks=1)


def test_a_beta_that_leaves_clients_without_samples_is_refused():
    with pytest.raises(
        ConfigError,
        match=r"scenario.split: got 'dirichlet:0.0001', expected a larger BETA or "
        r"fewer clients than 12, since in 1000 draws somebody always had no",
    ):
        build("dirichlet:0.0001", clients=12)


def test_a_class_of_which_the_server_has_all_is_refused(tmp_path):
    write_images(tmp_path, "rare", [0] * 20 + [1])
    with pytest.raises(ConfigError, match=r"class '1' of rare, .* of its 0 training"):
        build(
            "iid", tmp_path, datasets=["rare"], tasks=1, clients=1, public_fraction=0.1
        )


# ---------------------------------------------------------------- as a run


@pytest.mark.parametrize("split", ["iid", "dirichlet:0.1"])
@pytest.mark.parametrize("joint", [False, True])
def test_clients_learn_what_they_were_dealt(tmp_path, split, joint):
    config = tiny(
        tmp_path,
        scenario={"name": "class-incremental", "split": split, "joint": joint},
        strategy="fedavg",
        dataset="digits",
        clients=4,
        max_train_per_class=20,
        max_test_per_class=10,
        public_fraction=0.0,
    )
    run_in_process(config)
    summary = summary_of(tmp_path)
    assert len(summary["sample_accuracy"]) == 2
    plan = Built(resolve(config)).scenario
    assert sum(len(learned(t)) for tasks in plan.clients for t in tasks) == 80


def test_texts_are_dealt_as_images_are(tmp_path):
    rows = [("a", "one two"), ("b", "three"), ("c", "four"), ("d", "one")] * 10
    write_text_set(tmp_path, rows, rows[:8], "notes")
    (tmp_path / "known.vec").write_text("1 2\none 1 2\n")
    config = tiny(
        tmp_path / "run",
        scenario={"name": "class-incremental", "split": "dirichlet:0.1"},
        strategy="replay",
        dataset="notes",
        data_root=str(tmp_path),
        word_vectors="known.vec",
        model="kim-cnn",
        clients=3,
        public_fraction=0.0,
    )
    run_in_process(config)
    assert len(summary_of(tmp_path / "run")["sample_accuracy"]) == 2


def test_the_table_of_a_plan_shows_who_has_how_many_samples_of_which_classes():
    config = RunConfig.from_settings(
        scenario={"name": "class-incremental", "split": "dirichlet:0.1"},
        dataset="digits",
        clients=3,
        tasks=2,
    )
    plan = Built(resolve(config)).scenario
    _, _, *rows, server = plan.describe().splitlines()
    tasks = [task for stream in plan.clients for task in stream]
    for row, task in zip(rows, tasks, strict=True):
        client, _, name, _, train, valid, _, *names = row.replace(",", "").split()
        assert task in plan.clients[int(client)]
        assert (name, int(train), int(valid)) == (
            task.name,
            len(task.train),
            len(task.valid),
        )
        assert names == [str(label) for label in task.classes]
    assert server.split()[0] == "server"
