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
from plans import NOWHERE, all_tasks, draw, images_in_turn, learned
from text_sets import write_text_set

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.examples import (
    Examples,
    InputSpec,
    batches,
    task_data,
)
from fcl_flower.data.images import to_tensor
from fcl_flower.data.registry import load_dataset
from fcl_flower.data.scenarios import registry
from fcl_flower.data.scenarios.registry import SCENARIOS

DRAWN = sorted({*SCENARIOS} - {"local-data"})


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
    scenario = draw(
        name, clients=clients, tasks=tasks, valid_fraction=valid_fraction, seed=seed
    )
    assert [len(stream) for stream in scenario.clients] == [tasks] * clients
    for stream in scenario.clients:
        assert len({task.group for task in stream}) == tasks
    check_samples(scenario, NOWHERE)


def test_a_shared_group_is_cut_evenly_in_every_class():
    y = load_dataset("digits", NOWHERE).train.y
    groups = {}
    for task in all_tasks(draw(clients=5, tasks=5)):
        groups.setdefault((task.group, task.classes), []).append(task)
    assert {len(sharers) for sharers in groups.values()} == {5}
    for (_, classes), sharers in groups.items():
        counts = [np.bincount(y[learned(task)], minlength=10) for task in sharers]
        assert np.ptp(counts, axis=0)[[*classes]].max() <= 1


@pytest.mark.parametrize("name", DRAWN)
def test_without_validation_a_client_trains_on_all_that_it_has(name):
    whole, cut = (
        all_tasks(draw(name, clients=1, valid_fraction=f)) for f in (0.0, 0.3)
    )
    for one, other in zip(whole, cut, strict=True):
        assert one.train.tolist() == sorted(learned(other))
        assert len(other.valid) > len(one.valid) == 0


@pytest.mark.parametrize("name", DRAWN)
def test_the_same_seed_gives_the_same_plan_and_another_seed_another(name):
    first = draw(name, clients=1, seed=1)
    assert draw(name, clients=1, seed=1) is first
    registry._build.cache_clear()
    again, other = (draw(name, clients=1, seed=seed).to_dict() for seed in (1, 2))
    assert first.to_dict() == again
    assert again["clients"] != other["clients"]


@pytest.mark.parametrize(("name", "same"), [("overlapped", False), ("classes", True)])
def test_clients_have_orders_of_their_own_and_in_classes_the_same_groups(name, same):
    plan = draw(name, clients=6, tasks=3)
    orders = {tuple(task.group for task in stream) for stream in plan.clients}
    assert len(orders) >= 3
    assert (len(set(map(frozenset, orders))) == 1) == same


def test_the_seed_decides_which_classes_belong_together():
    groups = {
        frozenset(task.classes for task in draw("classes", tasks=5, seed=s).clients[0])
        for s in range(3)
    }
    assert len(groups) == 3


def test_mixed_deals_tasks_of_all_sets_without_repetition(tmp_path):
    images_in_turn(tmp_path, "letters", 6)
    images_in_turn(tmp_path, "signs", 7, shape=(5, 5, 3))
    names = ["letters", "signs", "digits"]
    scenario = draw("mixed", tmp_path, datasets=names, clients=2, tasks=5)
    tasks = all_tasks(scenario)
    assert len({task.group for task in tasks}) == 10
    for one, other in combinations(tasks, 2):
        same = one.dataset == other.dataset
        assert not (same and set(one.classes) & set(other.classes))
    check_samples(scenario, tmp_path)
    everything = draw("mixed", tmp_path, datasets=names, clients=1, tasks=11)
    assert {task.dataset for task in all_tasks(everything)} == set(names)
    # 6 + 7 + 10 classes; one of the seven finds no partner.
    assert everything.num_labels == 22


@pytest.mark.parametrize(("classes", "expected"), [(24, 2), (25, 5)])
def test_tasks_have_5_classes_where_there_are_25_otherwise_2(
    tmp_path, classes, expected
):
    images_in_turn(tmp_path, "letters", classes)
    plan = draw("classes", tmp_path, datasets=["letters"], tasks=1)
    assert plan.classes_per_task == expected


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("sideways", {}, "scenario: got 'sideways', expected one of "),
        ("concept", {}, r"scenario: got 'concept', .* 'concepts'\?"),
        ("overlapped", {"tasks": 6}, "tasks: got 6, expected at most the 5 groups"),
        ("classes", {"tasks": 6}, "tasks: got 6, expected at most the 5 groups"),
        ("mixed", {"tasks": 2}, "tasks: got 2 for each of 3 clients, expected at most"),
        ("overlapped", {"classes_per_task": 1}, "classes_per_task: got 1, expected at"),
        ("overlapped", {"classes_per_task": 11}, "at most the 10 classes"),
        ("mixed", {"classes_per_task": 11}, "classes_per_task: got 11, expected at"),
        (
            "text",
            {"classes_per_task": 11},
            "got 11, expected at most the 10 classes of",
        ),
        ("classes", {"datasets": []}, "datasets: got"),
        ("mixed", {"datasets": ["digits", "digits"]}, "expected one or more different"),
        *(
            (name, {"datasets": ["digits", "letters"]}, f"one data set for sc.* {name}")
            for name in ("overlapped", "classes", "text")
        ),
        ("overlapped", {"clients": 140, "tasks": 5}, "clients: got 140 clients that"),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_key_and_value(
    tmp_path, name, change, words
):
    images_in_turn(tmp_path, "letters", 6)
    with pytest.raises(ConfigError, match=words):
        draw(name, tmp_path, **change)


def test_as_many_clients_as_samples_of_a_class_is_the_limit(tmp_path):
    images_in_turn(tmp_path, "letters", 4, per_class=3)
    changes = {"datasets": ["letters"], "tasks": 2}
    check_samples(draw("classes", tmp_path, clients=3, **changes), tmp_path)
    with pytest.raises(ConfigError, match="each of its 3 training samples"):
        draw("classes", tmp_path, clients=4, **changes)


def test_the_plan_reads_as_a_table():
    scenario = draw(clients=2, tasks=5)
    lines = scenario.describe().splitlines()
    assert "overlapped on digits, seed 7: 2 clients, 5 tasks of 2 classes" in lines[0]
    assert len(lines) == 2 + 10
    task = scenario.clients[1][3]
    counts = [str(len(x)) for x in (task.train, task.valid, task.test)]
    assert lines[2 + 5 + 3].split()[:7] == ["1", "3", task.name, "2", *counts]
    assert lines[2 + 5 + 3].endswith(", ".join(task.class_names))


def test_the_saved_plan_tells_any_change_of_samples(tmp_path):
    plan = draw()
    plan.save(tmp_path / "plan.json")
    saved = json.loads((tmp_path / "plan.json").read_text())
    assert saved == plan.to_dict()
    task, entry = plan.clients[2][1], saved["clients"][2][1]
    assert entry["classes"] == list(task.classes)
    counts = [len(task.train), len(task.valid), len(task.test)]
    assert [entry[s] for s in ("train", "valid", "test")] == counts
    assert len({e["sha256"] for stream in saved["clients"] for e in stream}) == 12
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
    scenario = draw(root=stored, datasets=["cifar100"], clients=5, tasks=10)
    tasks = all_tasks(scenario)
    assert len(tasks) == 50
    assert {len(task.classes) for task in tasks} == {5}
    by_name = {task.name: set(task.class_names) for task in tasks}
    assert by_name["cifar100/people"] == {"baby", "boy", "girl", "man", "woman"}
    check_samples(scenario, stored)


def test_non_iid_50_has_50_different_tasks(stored):
    names = ["cifar100", "mnist", "gtsrb", "notmnist", "fashion_mnist", "cifar10"]
    names += ["orl_faces32", "tinyimagenet32_100c"]
    scenario = draw(
        "mixed", stored, datasets=names, clients=5, tasks=10, classes_per_task=5
    )
    assert len({task.group for task in all_tasks(scenario)}) == 50
    assert scenario.num_labels == 250


def test_a_task_becomes_the_right_images_with_labels_from_0():
    plan, source = draw(), load_dataset("digits", NOWHERE)
    task = plan.clients[2][1]
    data = task_data(plan, 2, 1, InputSpec((1, 8, 8), False))
    assert data.classes == 2
    for examples, split, indices in (
        (data.train, source.train, task.train),
        (data.valid, source.train, task.valid),
        (data.test, source.test, task.test),
    ):
        assert examples.x.dtype == torch.float32
        expected = (split.x[indices] / 255 - 0.5) / 0.25
        np.testing.assert_allclose(examples.x[:, 0], expected, atol=1e-6)
        labels = [task.classes[y] for y in examples.y.tolist()]
        assert labels == split.y[indices].tolist()


def test_a_single_head_labels_every_class_of_the_scenario_once(tmp_path):
    images_in_turn(tmp_path, "letters", 6)
    names = ["letters", "digits"]
    plan = draw("mixed", tmp_path, datasets=names, clients=2)
    expected = [("digits", c) for c in range(10)] + [("letters", c) for c in range(6)]
    assert list(plan.labels) == expected
    for client, stream in enumerate(plan.clients):
        for number, task in enumerate(stream):
            data = task_data(plan, client, number, InputSpec((1, 8, 8), True))
            assert data.classes == plan.num_labels == 16
            y = load_dataset(task.dataset, tmp_path).test.y[task.test].tolist()
            found = [expected[label] for label in data.test.y.tolist()]
            assert found == [(task.dataset, label) for label in y]


@pytest.mark.parametrize("size", [(28, 28), (8, 8), (9, 7, 3)])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 10, 12)])
def test_any_image_comes_to_any_shape(size, shape):
    x = np.full((2, *size), 51, np.uint8)
    out = to_tensor(x, shape)
    assert out.dtype == torch.float32
    assert out.is_contiguous()
    # 51 / 255 = 0.2; (0.2 - 0.5) / 0.25 = -1.2
    expected = torch.full((2, *shape), -1.2)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)
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
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(5)
    assert order(3) == first != order(4)


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
    return draw("text", root, datasets=["tiny"], **changes)


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


def test_a_label_that_n_tasks_drew_is_cut_into_n_parts(tmp_path):
    root = text_root(tmp_path)
    plan = pool(root, tasks=5)
    check_samples(plan, root)
    y = load_dataset("tiny", root).train.y
    for label in range(6):
        tasks = [task for task in all_tasks(plan) if label in task.classes]
        sizes = [np.count_nonzero(y[learned(task)] == label) for task in tasks]
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


def test_clients_that_meet_the_same_labels_twice_count_once(tmp_path):
    lines = pool(text_root(tmp_path, (60, 60), (5, 5))).describe().splitlines()
    assert {line.split()[3] for line in lines[2:]} == {"3"}


# ---- fewer samples of each class


def used(plan, split):
    parts = [learned(t) if split == "train" else t.test for t in all_tasks(plan)]
    return np.unique(np.concatenate(parts))


SIX = {"clients": 2, "tasks": 2, "classes_per_task": 2}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("overlapped", SIX),
        ("classes", SIX),
        ("mixed", {**SIX, "clients": 1, "tasks": 3}),
        ("text", {"clients": 2, "tasks": 6}),
        ("concepts", {"clients": 3, "tasks": 3}),
        ("class-incremental", {"clients": 2, "tasks": 3, "public_fraction": 0.0}),
    ],
)
def test_a_cap_leaves_so_many_samples_of_each_class(tmp_path, name, settings):
    # 20 training samples and as many test samples of each of 6 classes.
    images_in_turn(tmp_path, "letters", 6, per_class=20)
    source = load_dataset("letters", tmp_path)

    def capped(train=0, test=0):
        caps = {"max_train_per_class": train, "max_test_per_class": test}
        return draw(name, tmp_path, datasets=["letters"], **settings, **caps)

    few, more, whole = capped(12, 7), capped(15, 9), capped()
    labels = {label for task in all_tasks(few) for label in task.classes}
    for split, most in (("train", 12), ("test", 7)):
        y = getattr(source, split).y[used(few, split)]
        expected = [most if label in labels else 0 for label in range(6)]
        assert np.bincount(y, minlength=6).tolist() == expected
        # Drawn by the seed, some of more, and nothing but the samples changes.
        assert set(used(few, split)) < set(used(more, split))
    assert [t.classes for t in all_tasks(whole)] == [t.classes for t in all_tasks(few)]
    assert len(used(capped(99), "train")) == 20 * len(labels)


def test_which_samples_a_cap_leaves_is_drawn(tmp_path):
    images_in_turn(tmp_path, "letters", 6, per_class=20)
    given = {"datasets": ["letters"], "tasks": 3, "max_train_per_class": 5}
    one, other = (draw("classes", tmp_path, seed=n, **given) for n in (1, 2))
    assert used(one, "train").tolist() != used(other, "train").tolist()
    # No runs of the file, whose samples of a class are 6 apart.
    assert (np.diff(used(one, "train")) > 6).any()


def test_a_capped_pool_of_texts_is_the_same_for_every_seed(tmp_path):
    caps = {"max_train_per_class": 30, "max_test_per_class": 4}
    root = text_root(tmp_path)
    one, other = (pool(root, seed=seed, **caps) for seed in (0, 1))
    assert numbered(one) == numbered(other)
