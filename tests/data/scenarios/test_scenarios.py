"""Who learns what, from which samples, and how it becomes tensors."""

import json
import os
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from text_sets import write_text_set

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.examples import (
    Examples,
    InputSpec,
    batches,
    task_data,
    task_examples,
)
from fcl_flower.data.images import to_tensor
from fcl_flower.data.registry import load_dataset
from fcl_flower.data.scenarios import registry
from fcl_flower.data.scenarios.registry import SCENARIOS, draw_scenario

NOWHERE = Path("no-such-folder")


def build(name="overlapped", root=NOWHERE, **changes):
    if name in SCENARIOS and SCENARIOS[name].hidden:
        changes = {"classes_per_task": None, **changes}
    settings = {
        "datasets": ["digits"],
        "data_root": root,
        "clients": 3,
        "tasks": 4,
        "classes_per_task": 2,
        "valid_fraction": 0.15,
        "seed": 7,
    }
    return draw_scenario(name, **{**settings, **changes})


def write_set(folder, name, classes, per_class=6, shape=(4, 4)):
    """Write a set whose images hold their own row number."""
    y = np.tile(np.arange(classes), per_class)
    x = np.zeros((len(y), *shape), np.uint8)
    x[:, 0, 0] = (np.arange(len(y)) % 256).reshape(-1, *[1] * (len(shape) - 2))
    np.savez(folder / f"{name}.npz", x_train=x, y_train=y, x_test=x, y_test=y)


def all_tasks(scenario):
    return [task for tasks in scenario.clients for task in tasks]


def check_samples(scenario, root):
    """Check what holds in every scenario, from the sources and the indices alone."""
    given_away = {}
    for task in all_tasks(scenario):
        source = load_dataset(task.dataset, root)
        assert len(task.classes) == scenario.classes_per_task
        assert list(task.classes) == sorted(set(task.classes))
        assert task.class_names == tuple(source.class_names[c] for c in task.classes)
        for index in np.concatenate([task.train, task.valid]).tolist():
            key = (task.dataset, index)
            assert key not in given_away, "a training sample was given away twice"
            given_away[key] = task
            assert source.train.y[index] in task.classes
        whole = [i for i, y in enumerate(source.test.y.tolist()) if y in task.classes]
        assert task.test.tolist() == whole
        for label in task.classes:
            train = np.count_nonzero(source.train.y[task.train] == label)
            valid = np.count_nonzero(source.train.y[task.valid] == label)
            assert train >= 1
            assert valid == (0 if train + valid == 1 else max(valid, 1))
    # Nothing of a class that is learnt lies idle.
    for dataset in scenario.datasets:
        y = load_dataset(dataset, root).train.y
        learnt = {c for d, c in scenario.labels if d == dataset}
        for index in np.flatnonzero(np.isin(y, list(learnt))).tolist():
            assert (dataset, index) in given_away


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(["overlapped", "classes"]),
    clients=st.integers(1, 8),
    tasks=st.integers(1, 5),
    valid_fraction=st.floats(0.01, 0.9),
    seed=st.integers(0, 2**32),
)
def test_no_sample_is_shared_and_every_test_set_is_whole(
    name, clients, tasks, valid_fraction, seed
):
    scenario = build(
        name, clients=clients, tasks=tasks, valid_fraction=valid_fraction, seed=seed
    )
    assert [len(stream) for stream in scenario.clients] == [tasks] * clients
    for stream in scenario.clients:
        assert len({task.group for task in stream}) == tasks
    check_samples(scenario, NOWHERE)


def test_a_shared_group_is_cut_evenly_in_every_class():
    scenario = build(clients=5, tasks=5)
    y = load_dataset("digits", NOWHERE).train.y
    groups = {}
    for task in all_tasks(scenario):
        groups.setdefault(task.group, []).append(task)
    assert {len(sharers) for sharers in groups.values()} == {5}
    for sharers in groups.values():
        assert len({task.classes for task in sharers}) == 1
        for label in sharers[0].classes:
            counts = [
                np.count_nonzero(y[np.concatenate([task.train, task.valid])] == label)
                for task in sharers
            ]
            assert max(counts) - min(counts) <= 1


def test_a_group_that_one_client_learns_is_not_cut():
    scenario = build(clients=1, tasks=5)
    y = load_dataset("digits", NOWHERE).train.y
    for task in all_tasks(scenario):
        expected = np.flatnonzero(np.isin(y, task.classes))
        np.testing.assert_array_equal(
            np.sort(np.concatenate([task.train, task.valid])), expected
        )


def test_validation_takes_its_share_of_every_class():
    y = load_dataset("digits", NOWHERE).train.y
    for task in all_tasks(build(valid_fraction=0.3)):
        for label in task.classes:
            train = np.count_nonzero(y[task.train] == label)
            valid = np.count_nonzero(y[task.valid] == label)
            assert valid == pytest.approx(0.3 * (train + valid), abs=0.5)


@pytest.mark.parametrize("name", sorted({*SCENARIOS} - {"local-data"}))
def test_without_validation_a_client_trains_on_all_that_it_has(name):
    pairs = zip(
        all_tasks(build(name, clients=1, valid_fraction=0.0)),
        all_tasks(build(name, clients=1, valid_fraction=0.3)),
        strict=True,
    )
    for whole, split in pairs:
        both = np.sort(np.concatenate([split.train, split.valid]))
        np.testing.assert_array_equal(whole.train, both)
        assert len(split.valid) > 0
        assert len(whole.valid) == 0


@pytest.mark.parametrize("name", sorted({*SCENARIOS} - {"local-data"}))
def test_the_same_seed_gives_the_same_plan_and_another_seed_another(name):
    first = build(name, clients=1, seed=1).to_dict()
    assert build(name, clients=1, seed=1) is build(name, clients=1, seed=1)
    # One more argument the plan does not depend on, so that it is drawn anew.
    again = build(name, clients=1, seed=1, root=Path("also-no-such-folder")).to_dict()
    other = build(name, clients=1, seed=2).to_dict()
    assert first == again
    assert first["clients"] != other["clients"]


@pytest.mark.parametrize("name", ["overlapped", "classes"])
def test_clients_go_through_their_tasks_in_different_orders(name):
    scenario = build(name, clients=6, tasks=5)
    orders = {tuple(task.group for task in stream) for stream in scenario.clients}
    assert len(orders) >= 4


def test_classes_gives_every_client_the_same_groups():
    scenario = build("classes", clients=4, tasks=3)
    groups = [{task.group for task in stream} for stream in scenario.clients]
    assert groups == [groups[0]] * 4


def test_classes_chooses_among_official_groups_by_the_seed(tmp_path):
    write_set(tmp_path, "cifar100", 100)
    chosen = {
        frozenset(
            task.name
            for task in build(
                "classes",
                tmp_path,
                datasets=["cifar100"],
                tasks=10,
                classes_per_task=5,
                seed=seed,
            ).clients[0]
        )
        for seed in range(3)
    }
    assert len(chosen) == 3


def test_the_seed_decides_which_classes_belong_together():
    groups = {
        frozenset(task.classes for task in build("classes", tasks=5, seed=s).clients[0])
        for s in range(3)
    }
    assert len(groups) == 3


def test_overlapped_lets_clients_choose_different_groups():
    scenario = build(clients=6, tasks=2)
    choices = {frozenset(task.group for task in s) for s in scenario.clients}
    assert len(choices) > 1


def test_mixed_deals_tasks_of_all_sets_without_repetition(tmp_path):
    write_set(tmp_path, "letters", 6)
    write_set(tmp_path, "signs", 7, shape=(5, 5, 3))
    names = ["letters", "signs", "digits"]
    scenario = build("mixed", tmp_path, datasets=names, clients=2, tasks=5)
    tasks = all_tasks(scenario)
    assert len({task.group for task in tasks}) == 10
    for one, other in combinations(tasks, 2):
        same = one.dataset == other.dataset
        assert not (same and set(one.classes) & set(other.classes))
    check_samples(scenario, tmp_path)
    everything = build("mixed", tmp_path, datasets=names, clients=1, tasks=11)
    assert {task.dataset for task in all_tasks(everything)} == set(names)
    # 6 + 7 + 10 classes; one of the seven finds no partner.
    assert everything.num_labels == 22


@pytest.mark.parametrize(
    ("classes", "expected"), [(24, 2), (25, 5)], ids=["few", "many"]
)
def test_tasks_have_5_classes_where_there_are_25_otherwise_2(
    tmp_path, classes, expected
):
    write_set(tmp_path, "letters", classes)
    scenario = build(
        "classes", tmp_path, datasets=["letters"], tasks=1, classes_per_task=None
    )
    assert scenario.classes_per_task == expected


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (
            "sideways",
            {},
            "scenario: got 'sideways', expected one of ",
        ),
        ("overlapped", {"tasks": 6}, "tasks: got 6, expected at most the 5 groups"),
        ("classes", {"tasks": 6}, "tasks: got 6, expected at most the 5 groups"),
        ("mixed", {"tasks": 2}, "tasks: got 2 for each of 3 clients, expected at most"),
        ("overlapped", {"classes_per_task": 1}, "classes_per_task: got 1, expected at"),
        ("overlapped", {"classes_per_task": 11}, "at most the 0 groups"),
        ("mixed", {"classes_per_task": 11}, "classes_per_task: got 11, expected at"),
        ("classes", {"datasets": []}, "datasets: got"),
        ("mixed", {"datasets": ["digits", "digits"]}, "expected one or more different"),
        ("overlapped", {"clients": 0}, "clients: got 0, expected at least 1"),
        ("overlapped", {"tasks": 0}, "tasks: got 0, expected at least 1"),
        ("overlapped", {"valid_fraction": -0.1}, "valid_fraction: got -0.1"),
        ("overlapped", {"valid_fraction": 1.0}, "valid_fraction: got 1.0"),
        ("overlapped", {"valid_fraction": float("nan")}, "valid_fraction: got nan"),
        ("overlapped", {"clients": 140, "tasks": 5}, "clients: got 140 clients that"),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_key_and_value(name, change, words):
    with pytest.raises(ConfigError, match=words):
        build(name, **change)


@pytest.mark.parametrize("name", ["overlapped", "classes"])
def test_several_data_sets_are_refused_where_one_is_cut(tmp_path, name):
    write_set(tmp_path, "letters", 6)
    with pytest.raises(ConfigError, match=f"expected one data set for scenario {name}"):
        build(name, tmp_path, datasets=["letters", "digits"])


def test_as_many_clients_as_samples_of_a_class_is_the_limit(tmp_path):
    write_set(tmp_path, "letters", 4, per_class=3)
    changes = {"datasets": ["letters"], "tasks": 2}
    fits = build("classes", tmp_path, clients=3, **changes)
    check_samples(fits, tmp_path)
    with pytest.raises(ConfigError, match="each of its 3 training samples"):
        build("classes", tmp_path, clients=4, **changes)


def test_the_plan_reads_as_a_table():
    scenario = build(clients=2, tasks=5)
    lines = scenario.describe().splitlines()
    assert "overlapped on digits, seed 7: 2 clients, 5 tasks of 2 classes" in lines[0]
    assert len(lines) == 2 + 10
    task = scenario.clients[1][3]
    counts = [str(len(x)) for x in (task.train, task.valid, task.test)]
    assert lines[2 + 5 + 3].split()[:7] == ["1", "3", task.name, "2", *counts]
    assert lines[2 + 5 + 3].endswith(", ".join(task.class_names))


def test_the_saved_plan_tells_any_change_of_samples(tmp_path):
    scenario = build()
    scenario.save(tmp_path / "plan.json")
    saved = json.loads((tmp_path / "plan.json").read_text())
    assert saved == scenario.to_dict()
    task = scenario.clients[2][1]
    entry = saved["clients"][2][1]
    assert entry["classes"] == list(task.classes)
    assert [entry[s] for s in ("train", "valid", "test")] == [
        len(task.train),
        len(task.valid),
        len(task.test),
    ]
    sums = {e["sha256"] for stream in saved["clients"] for e in stream}
    assert len(sums) == 12
    swapped = replace(
        task,
        train=np.append(task.train[1:], task.valid[0]),
        valid=np.append(task.valid[1:], task.train[0]),
    )
    assert {**swapped.to_dict(), "sha256": entry["sha256"]} == entry
    assert swapped.to_dict() != entry


@pytest.fixture(scope="module")
def stored():
    root = Path(os.environ.get("FCL_DATA", NOWHERE))
    if not (root / "images" / "cifar100.npz").is_file():
        pytest.skip("needs the image sets under FCL_DATA")
    return root


def test_overlapped_cifar100_is_that_of_the_paper(stored):
    scenario = build(
        root=stored, datasets=["cifar100"], clients=5, tasks=10, classes_per_task=None
    )
    tasks = all_tasks(scenario)
    assert len(tasks) == 50
    assert {len(task.classes) for task in tasks} == {5}
    by_name = {task.name: set(task.class_names) for task in tasks}
    assert by_name["cifar100/people"] == {"baby", "boy", "girl", "man", "woman"}
    check_samples(scenario, stored)


def test_another_size_than_5_cuts_cifar100_at_random(stored):
    scenario = build(
        root=stored, datasets=["cifar100"], clients=1, tasks=10, classes_per_task=10
    )
    assert scenario.num_labels == 100


def test_non_iid_50_has_50_different_tasks(stored):
    names = ["cifar100", "mnist", "gtsrb", "notmnist", "fashion_mnist", "cifar10"]
    names += ["orl_faces32", "tinyimagenet32_100c"]
    scenario = build(
        "mixed", stored, datasets=names, clients=5, tasks=10, classes_per_task=5
    )
    assert len({task.group for task in all_tasks(scenario)}) == 50
    assert scenario.num_labels == 250


def examples_of(scenario, client, task, single_head=False, shape=(1, 8, 8)):
    return task_data(scenario, client, task, InputSpec(shape, single_head))


def test_a_task_becomes_the_right_images_with_labels_from_0():
    scenario = build()
    source = load_dataset("digits", NOWHERE)
    plan = scenario.clients[2][1]
    data = examples_of(scenario, 2, 1)
    assert data.classes == 2
    pairs = [
        (data.train, source.train, plan.train),
        (data.valid, source.train, plan.valid),
        (data.test, source.test, plan.test),
    ]
    for examples, split, indices in pairs:
        assert examples.x.dtype == torch.float32
        expected = (split.x[indices] / 255 - 0.5) / 0.25
        np.testing.assert_allclose(examples.x[:, 0], expected, atol=1e-6)
        labels = [plan.classes[y] for y in examples.y.tolist()]
        assert labels == split.y[indices].tolist()


def test_a_single_head_labels_every_class_of_the_scenario_once(tmp_path):
    write_set(tmp_path, "letters", 6)
    scenario = build(
        "mixed", tmp_path, datasets=["letters", "digits"], clients=2, tasks=4
    )
    assert scenario.num_labels == 16
    expected = sorted(
        [("digits", c) for c in range(10)] + [("letters", c) for c in range(6)]
    )
    assert list(scenario.labels) == expected
    for client, stream in enumerate(scenario.clients):
        for number, plan in enumerate(stream):
            data = examples_of(scenario, client, number, single_head=True)
            assert data.classes == 16
            y = load_dataset(plan.dataset, tmp_path).test.y[plan.test].tolist()
            found = [expected[label] for label in data.test.y.tolist()]
            assert found == [(plan.dataset, label) for label in y]


def test_one_split_alone_is_that_of_the_whole():
    scenario = build()
    data = examples_of(scenario, 0, 3)
    alone = task_examples(scenario, 0, 3, "test", InputSpec((1, 8, 8), False))
    assert torch.equal(alone.x, data.test.x)
    assert torch.equal(alone.y, data.test.y)


@pytest.mark.parametrize("size", [(28, 28), (16, 16), (8, 8), (32, 32, 3), (9, 7, 3)])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 28, 28), (3, 10, 12)])
def test_any_image_comes_to_any_shape(size, shape):
    x = np.full((2, *size), 51, np.uint8)
    out = to_tensor(x, shape)
    assert out.shape == (2, *shape)
    assert out.dtype == torch.float32
    assert out.is_contiguous()
    # 51 / 255 = 0.2; (0.2 - 0.5) / 0.25 = -1.2
    torch.testing.assert_close(out, torch.full_like(out, -1.2), rtol=0, atol=1e-5)
    assert to_tensor(x[:0], shape).shape == (0, *shape)


def test_grey_is_repeated_and_colour_is_averaged():
    grey = np.array([[[0, 255]]], np.uint8)
    out = to_tensor(grey, (3, 1, 2))
    assert out[0].tolist() == [[[-2.0, 2.0]]] * 3
    colour = np.array([[[[30, 60, 165]]]], np.uint8)
    assert to_tensor(colour, (1, 1, 1)).item() == pytest.approx((85 / 255 - 0.5) / 0.25)
    kept = to_tensor(colour, (3, 1, 1)).reshape(-1).tolist()
    assert kept == pytest.approx([(v / 255 - 0.5) / 0.25 for v in (30, 60, 165)])


def test_shrinking_averages_what_bilinear_alone_would_skip():
    stripes = np.zeros((1, 32, 32), np.uint8)
    stripes[:, :, ::4] = 255
    small = to_tensor(stripes, (1, 8, 8))
    # A quarter of the pixels is white, so every pixel is a quarter grey.
    inner = small[0, 0, :, 1:-1]
    torch.testing.assert_close(inner, torch.full_like(inner, -1.0), rtol=0, atol=0.25)


@pytest.mark.parametrize("shape", [(2, 8, 8), (300,)])
def test_a_model_that_takes_no_such_images_is_named(shape):
    with pytest.raises(ConfigError, match="model: got input shape"):
        to_tensor(np.zeros((1, 8, 8, 3), np.uint8), shape)


def test_batches_give_everything_once_and_keep_the_small_last_one():
    examples = Examples(torch.arange(7.0)[:, None], torch.arange(7))
    plain = list(batches(examples, 3))
    assert [batch.y.tolist() for batch in plain] == [[0, 1, 2], [3, 4, 5], [6]]
    shuffled = list(batches(examples, 3, seed=1))
    order = torch.cat([batch.y for batch in shuffled]).tolist()
    assert sorted(order) == list(range(7))
    assert order != list(range(7))
    for batch in shuffled:
        assert batch.x[:, 0].tolist() == batch.y.tolist()
    assert list(batches(Examples(torch.zeros(0, 1), torch.arange(0)), 3, seed=1)) == []


def test_the_seed_alone_decides_the_order_of_batches():
    examples = Examples(torch.arange(50.0)[:, None], torch.arange(50))

    def order(seed):
        return torch.cat([batch.y for batch in batches(examples, 8, seed)]).tolist()

    before = torch.random.get_rng_state()
    first = order(3)
    torch.rand(5)
    assert order(3) == first
    assert order(4) != first
    torch.random.set_rng_state(before)
    order(3)
    assert torch.equal(torch.random.get_rng_state(), before)


# ---- the pool of tasks for text


def text_root(folder, train=(40, 41, 42, 43, 44, 45), test=(5, 6, 7, 8, 9, 10)):
    """Write a set with so many documents of each label."""
    splits = [
        [
            (f"label{label}", f"word{label} number{number}")
            for label, count in enumerate(counts)
            for number in range(count)
        ]
        for counts in (train, test)
    ]
    write_text_set(folder, *splits)
    return folder


def pool(root, **changes):
    given = {"datasets": ["tiny"], "classes_per_task": None, **changes}
    return build("text", root, **given)


def numbered(scenario):
    return sorted(json.dumps(task.to_dict()) for task in all_tasks(scenario))


@pytest.mark.parametrize(("labels", "expected"), [(6, 4), (4, 4), (3, 3), (2, 2)])
def test_a_task_draws_four_labels_or_all_there_are(tmp_path, labels, expected):
    root = text_root(tmp_path, (60,) * labels, (5,) * labels)
    scenario = pool(root)
    assert scenario.classes_per_task == expected
    assert {len(set(task.classes)) for task in all_tasks(scenario)} == {expected}
    check_samples(scenario, root)
    if labels == 6:
        drawn = {task.classes for task in all_tasks(scenario)}
        assert len(drawn) > 4
        assert {label for classes in drawn for label in classes} == set(range(6))
    else:
        assert {task.group for task in all_tasks(scenario)} == {0}


@pytest.mark.parametrize("clients", [1, 3])
def test_a_label_that_n_tasks_drew_is_cut_into_n_parts(tmp_path, clients):
    root = text_root(tmp_path)
    scenario = pool(root, clients=clients, tasks=5)
    check_samples(scenario, root)  # disjoint, whole, and whole test sets
    y = load_dataset("tiny", root).train.y
    for label in range(6):
        parts = [
            [i for i in (*task.train, *task.valid) if y[i] == label]
            for task in all_tasks(scenario)
            if label in task.classes
        ]
        sizes = [len(part) for part in parts]
        assert sum(sizes) in (0, np.count_nonzero(y == label))
        assert not sizes or max(sizes) - min(sizes) <= 1


def test_which_documents_a_task_gets_is_drawn(tmp_path):
    scenario = pool(text_root(tmp_path), clients=1, tasks=2)
    task = scenario.clients[0][0]
    mine = np.sort(np.concatenate([task.train, task.valid]))
    assert (np.diff(mine) > 1).sum() > 4, "no runs of the file"


def test_another_seed_is_another_order_of_the_same_pool(tmp_path):
    root = text_root(tmp_path)
    plans = [pool(root, seed=seed) for seed in range(4)]
    assert all(numbered(plan) == numbered(plans[0]) for plan in plans)
    orders = {json.dumps(plan.to_dict()["clients"]) for plan in plans}
    assert len(orders) == 4
    firsts = {
        json.dumps(sorted(task.to_dict()["sha256"] for task in plan.clients[0]))
        for plan in plans
    }
    assert len(firsts) == 4, "clients keep their tasks and change the order only"


def test_tasks_of_the_same_labels_are_a_group_and_others_are_not(tmp_path):
    scenario = pool(text_root(tmp_path), clients=5, tasks=5, classes_per_task=2)
    for one, other in combinations(all_tasks(scenario), 2):
        assert (one.group == other.group) == (one.classes == other.classes)


def test_labels_without_test_documents_are_drawn_beside_others(tmp_path):
    root = text_root(tmp_path, (60,) * 6, (0, 0, 0, 4, 0, 0))
    scenario = pool(root, classes_per_task=2, clients=3, tasks=4)
    check_samples(scenario, root)
    for task in all_tasks(scenario):
        assert 3 in task.classes
        assert len(task.test) == 4
    assert len({task.classes for task in all_tasks(scenario)}) > 1


def test_as_many_tasks_as_documents_of_a_label_is_the_limit(tmp_path):
    root = text_root(tmp_path, (12, 13), (3, 3))
    check_samples(pool(root, clients=3, tasks=4), root)
    with pytest.raises(ConfigError) as error:
        pool(root, clients=13, tasks=1)
    assert str(error.value) == (
        "tasks: got 13 that drew label 'label0' of tiny, expected at most one for each "
        "of its 12 training documents: take fewer clients, tasks or classes per task"
    )


def test_more_labels_than_there_are_cannot_be_drawn(tmp_path):
    root = text_root(tmp_path, (9, 9, 9), (3, 3, 3))
    with pytest.raises(ConfigError) as error:
        pool(root, classes_per_task=4)
    assert str(error.value) == (
        "classes_per_task: got 4, expected at most the 3 classes of tiny"
    )


def test_one_set_is_drawn_from_at_a_time(tmp_path):
    write_set(tmp_path, "letters", 6)
    with pytest.raises(ConfigError, match="expected one data set for scenario text"):
        build("text", tmp_path, datasets=["letters", "digits"])


def test_images_are_drawn_alike():
    scenario = build("text", classes_per_task=None, clients=3, tasks=5)
    assert scenario.classes_per_task == 4
    check_samples(scenario, NOWHERE)
    data = examples_of(scenario, 2, 4)
    assert set(data.train.y.tolist()) == set(range(4))


def test_clients_that_meet_the_same_labels_twice_count_once(tmp_path):
    lines = pool(text_root(tmp_path, (60, 60), (5, 5))).describe().splitlines()
    assert {line.split()[3] for line in lines[2:]} == {"3"}


# ---- fewer samples of each class


def used(scenario, split):
    """Return the samples of one split that some client has, ascending."""
    parts = [
        np.concatenate([task.train, task.valid]) if split == "train" else task.test
        for task in all_tasks(scenario)
    ]
    return np.unique(np.concatenate(parts))


SIX = {"clients": 2, "tasks": 2, "classes_per_task": 2}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("overlapped", SIX),
        ("classes", SIX),
        ("mixed", {**SIX, "clients": 1, "tasks": 3}),
        ("text", {**SIX, "tasks": 6}),
        ("concepts", {"clients": 3, "tasks": 3}),
        ("class-incremental", {"clients": 2, "tasks": 3, "public_fraction": 0.0}),
    ],
)
def test_a_cap_leaves_so_many_samples_of_each_class(tmp_path, name, settings):
    # 20 training samples and as many test samples of each of 6 classes.
    write_set(tmp_path, "letters", 6, per_class=20)
    source = load_dataset("letters", tmp_path)

    def capped(**changes):
        given = {"datasets": ["letters"], "classes_per_task": None, **settings}
        return build(name, tmp_path, **{**given, **changes})

    few = capped(max_train_per_class=12, max_test_per_class=7)
    learned = {label for task in all_tasks(few) for label in task.classes}
    for split, most in (("train", 12), ("test", 7)):
        y = getattr(source, split).y[used(few, split)]
        assert np.bincount(y, minlength=6).tolist() == [
            most if label in learned else 0 for label in range(6)
        ]
    # Drawn by the seed, some of more, and nothing but the samples changes.
    registry._build.cache_clear()
    again = capped(max_train_per_class=12, max_test_per_class=7)
    assert again.to_dict() == few.to_dict()
    more = capped(max_train_per_class=15, max_test_per_class=9)
    assert set(used(few, "train")) < set(used(more, "train"))
    assert set(used(few, "test")) < set(used(more, "test"))
    whole = capped()
    assert [t.classes for t in all_tasks(whole)] == [t.classes for t in all_tasks(few)]
    assert capped(max_train_per_class=20, max_test_per_class=20).labels == whole.labels
    assert len(used(capped(max_train_per_class=99), "train")) == 20 * len(learned)


def test_which_samples_a_cap_leaves_is_drawn(tmp_path):
    write_set(tmp_path, "letters", 6, per_class=20)
    one, other = (
        build(
            "classes",
            tmp_path,
            datasets=["letters"],
            tasks=3,
            max_train_per_class=5,
            seed=n,
        )
        for n in (1, 2)
    )
    assert used(one, "train").tolist() != used(other, "train").tolist()
    # No runs of the file, whose samples of a class are 6 apart.
    assert (np.diff(used(one, "train")) > 6).any()


def test_a_capped_pool_of_texts_is_the_same_for_every_seed(tmp_path):
    root = text_root(tmp_path)
    plans = [
        pool(root, seed=seed, max_train_per_class=30, max_test_per_class=4)
        for seed in range(3)
    ]
    assert numbered(plans[0]) == numbered(plans[1]) == numbered(plans[2])


def test_a_cap_below_the_number_of_sharers_is_refused(tmp_path):
    write_set(tmp_path, "letters", 6, per_class=20)
    with pytest.raises(ConfigError, match=r"clients: got 4 .* of its 3 training samp"):
        build(
            "classes",
            tmp_path,
            datasets=["letters"],
            clients=4,
            tasks=3,
            max_train_per_class=3,
        )
