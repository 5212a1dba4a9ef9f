"""Class-incremental streams: classes, samples, the server's share, and what is one."""

import json

import numpy as np
import pytest
import torch
from fakes import run_in_process, summary_of, tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import NOWHERE, all_tasks, by_task, draw, images_in_turn, learned
from text_sets import write_text_set

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.data.examples import InputSpec, public_examples, task_data
from fcl_flower.data.registry import load_dataset
from fcl_flower.exports.sheets import finished_runs, run_sheets
from fcl_flower.results import tables
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve


def build(root=NOWHERE, **changes):
    return draw("class-incremental", root, **{"clients": 4, "tasks": 3, **changes})


@pytest.fixture
def reviews(tmp_path):
    """Two sets of stars with three names in common, and one of something else."""
    images_in_turn(tmp_path, "food", 3, 20, names=["1", "2", "3"])
    images_in_turn(tmp_path, "books", 4, 20, names=["2", "1", "4", "3"], first=100)
    images_in_turn(tmp_path, "pets", 2, 20, names=["cat", "dog"])
    return tmp_path


# ---- whose samples


@settings(max_examples=25, deadline=None)
@given(
    split=st.sampled_from(
        ["classes", "classes", "iid", "dirichlet:0.1", "dirichlet:1"]
    ),
    clients=st.integers(1, 8),
    tasks=st.integers(1, 5),
    class_fraction=st.floats(0.05, 1),
    public_fraction=st.sampled_from([0.0, 0.01, 0.1, 0.5]),
    max_train_per_class=st.sampled_from([0, 60]),
    max_test_per_class=st.sampled_from([0, 15]),
    seed=st.integers(0, 2**32),
)
def test_every_sample_is_one_clients_or_the_servers(split, class_fraction, **changes):
    drawn = {"class_fraction": class_fraction} if split == "classes" else {}
    plan = build(split=split, **drawn, **changes)
    source = load_dataset("digits", NOWHERE)
    of_clients = [i for task in all_tasks(plan) for i in learned(task)]
    used = of_clients + [i for task in plan.public for i in task.train.tolist()]
    tested = [i for task in all_tasks(plan) for i in task.test.tolist()]
    for y, rows, most in (
        (source.train.y, used, changes["max_train_per_class"]),
        (source.test.y, tested, changes["max_test_per_class"]),
    ):
        assert len(set(rows)) == len(rows)
        counts = [min(most or n, n) for n in np.bincount(y).tolist()]
        assert np.bincount(y[rows]).tolist() == counts
    for task in all_tasks(plan):
        # A class with one sample keeps it for training.
        assert set(source.train.y[task.train].tolist()) == set(task.classes)
        assert set(source.train.y[learned(task)].tolist()) == set(task.classes)


def test_parts_of_a_class_are_nearly_equal_and_each_sharer_validates():
    plan = build(clients=5, class_fraction=1.0, public_fraction=0.0)
    y = load_dataset("digits", NOWHERE).train.y
    for tasks in by_task(plan):
        labels = [*tasks[0].classes]
        total = np.array([np.bincount(y[learned(t)], minlength=10) for t in tasks])
        held = np.array([np.bincount(y[t.valid], minlength=10) for t in tasks])
        assert np.ptp(total[:, labels], axis=0).max() <= 1
        np.testing.assert_array_equal(held, np.rint(0.15 * total))


def test_what_is_left_over_of_classes_goes_to_different_clients(tmp_path):
    images_in_turn(tmp_path, "many", 30, per_class=5)
    whole = {"class_fraction": 1.0, "public_fraction": 0.0}
    plan = build(tmp_path, datasets=["many"], tasks=1, **whole)
    y = load_dataset("many", tmp_path).train.y
    counts = np.array([np.bincount(y[learned(t)]) for t in by_task(plan)[0]])
    assert (np.sort(counts, axis=0).T == [1, 1, 1, 2]).all()
    # With 30 classes dealt in the same order, somebody would get 30 of them.
    assert (counts == 2).sum(axis=1).max() < 20


def test_each_client_is_tested_on_all_classes_of_a_task_and_a_fair_share_of_samples():
    plan = build(class_fraction=0.1)
    y = load_dataset("digits", NOWHERE).test.y
    for tasks in by_task(plan):
        classes = {label for task in tasks for label in task.classes}
        assert all(len(task.classes) < len(classes) for task in tasks)
        shares = [
            np.bincount(y[task.test], minlength=10)[sorted(classes)] for task in tasks
        ]
        assert (np.ptp(shares, axis=0) <= 1).all()
        assert np.ptp(np.sum(shares, axis=1)) <= 1
        assert (np.sum(shares, axis=0) == np.bincount(y)[sorted(classes)]).all()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"class_fraction": 1.0, "public_fraction": 0.0},
            r"clients: got 5 clients that learn class '0' of few, expected at most one "
            "for each of its 4 training",
        ),
        (
            {"class_fraction": 0.5, "max_test_per_class": 2},
            "clients: got 5, expected at most 4, since task 'few/0' has that many test",
        ),
        *(
            (
                {"split": split, "max_train_per_class": 2, "public_fraction": 0.0},
                "clients: got 5, expected at most 4, since task 'few/0' has that many",
            )
            for split in ("iid", "dirichlet:1")
        ),
        (
            {"split": "iid", "max_train_per_class": 1, "public_fraction": 0.1},
            "class '0' of few, .* of its 0 training",
        ),
        (
            {"split": "dirichlet:0.0001", "public_fraction": 0.0},
            "scenario.split: got 'dirichlet:0.0001', expected a larger BETA or fewer "
            "clients than 5, since in 1000 draws a client always had no",
        ),
    ],
)
def test_too_few_samples_for_the_clients_are_refused(tmp_path, changes, sentence):
    images_in_turn(tmp_path, "few", 2, per_class=4)
    with pytest.raises(ConfigError, match=sentence):
        build(tmp_path, datasets=["few"], tasks=1, clients=5, **changes)


# ---- which classes


def test_classes_of_one_set_are_shared_out_in_an_order_that_the_seed_draws():
    def groups(**changes):
        return [
            tasks[0].classes for tasks in by_task(build(class_fraction=1, **changes))
        ]

    found = groups()
    assert [len(group) for group in found] == [4, 3, 3]
    assert sorted(label for group in found for label in group) == list(range(10))
    assert build().classes_per_task == 4
    assert groups(seed=8) != found
    # Ten tasks of a class show the order in which classes are drawn.
    order = np.ravel(groups(tasks=10))
    pairs = np.sort(order[:6].reshape(3, 2)).tolist()
    assert [[*group] for group in groups(classes_per_task=2)] == pairs


@pytest.fixture(scope="module")
def hundred(tmp_path_factory):
    """Return a folder with a set of 100 classes."""
    folder = tmp_path_factory.mktemp("hundred")
    images_in_turn(folder, "hundred", 100, 8)
    return folder


ONE_SET = {"datasets": ["hundred"], "clients": 2, "split": "iid"}


def of_tasks(plan):
    """Return the classes of each task, over all clients."""
    return [{n for one in tasks for n in one.classes} for tasks in by_task(plan)]


def test_the_order_of_seed_1993_is_that_of_the_published_codes(hundred):
    """As printed by iCaRL and those after it: 68, 56, 78, 8, 23, 84, 90, ..."""
    settings = {**ONE_SET, "tasks": 10, "class_order": "seed:1993"}
    plan = build(hundred, **settings)
    assert of_tasks(plan)[0] == {68, 56, 78, 8, 23, 84, 90, 65, 74, 76}
    legacy = np.random.RandomState(1993)
    order = np.arange(100)
    legacy.shuffle(order)  # how some of them draw it
    expected = [set(part.tolist()) for part in order.reshape(10, 10)]
    assert of_tasks(plan) == expected
    assert of_tasks(build(hundred, **settings, seed=5)) == expected, "whatever run.seed"


def test_an_order_may_be_listed():
    plan = build(tasks=3, class_order="9, 0,8,1,7,2,6,3,5,4", classes_per_task=3)
    assert of_tasks(plan) == [{9, 0, 8}, {1, 7, 2}, {6, 3, 5}]


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({"tasks": 6}, [50, 10, 10, 10, 10, 10]),  # B50, 5 steps
        ({"tasks": 11}, [50, *[5] * 10]),
        ({"tasks": 3, "classes_per_task": 10}, [50, 10, 10]),
        ({"tasks": 4}, [50, 17, 17, 16]),
        ({"tasks": 1}, [50]),
    ],
)
def test_a_first_task_may_have_more_classes(hundred, settings, sizes):
    order = {"class_order": "seed:1993", "first_task_classes": 50}
    found = of_tasks(build(hundred, **ONE_SET, **order, **settings))
    assert list(map(len, found)) == sizes
    places = np.random.RandomState(1993).permutation(100).tolist()
    assert found[0] == {*places[:50]}
    assert set().union(*found) == {*places[: sum(sizes)]}


def test_several_sets_are_tasks_in_the_order_given(reviews):
    plan = build(reviews, datasets=["pets", "books", "food"], class_fraction=1.0)
    found = [(tasks[0].name, len(tasks[0].classes)) for tasks in by_task(plan)]
    assert found == [("pets", 2), ("books", 4), ("food", 3)]
    assert (plan.classes_per_task, plan.num_labels) == (4, 9)


@pytest.mark.parametrize(("share", "count"), [(0.6, 3), (0.01, 1), (0.3, 2), (1, 5)])
def test_a_client_draws_its_share_of_each_tasks_classes(share, count):
    plan = build(tasks=2, clients=6, class_fraction=share)
    for tasks in by_task(plan):
        # 6 clients leave hardly a class to hand on, which would add one to somebody.
        sizes = sorted(len(task.classes) for task in tasks)
        assert sizes[0] == count
        assert set(sizes) <= {count, count + 1}
    drawn = [tuple(task.classes for task in stream) for stream in plan.clients]
    assert (len(set(drawn)) > 1) == (share < 1)


def test_a_class_that_nobody_drew_goes_to_somebody():
    plan = build(tasks=1, clients=3, class_fraction=0.01)
    sizes = [len(task.classes) for task in by_task(plan)[0]]
    # Each draws one of ten; the seven or more that are left are handed on in turn.
    assert {label for task in by_task(plan)[0] for label in task.classes} == {
        *range(10)
    }
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    "drawn", [{"class_fraction": 0.2}, {"split": "iid"}, {"split": "dirichlet:0.1"}]
)
def test_clients_that_drew_the_same_classes_learn_the_same(drawn):
    found, plan = {}, build(tasks=2, clients=8, **drawn)
    assert [task.group for task in plan.clients[0]] == [0, 1]
    for task in all_tasks(plan):
        meaning = (task.name, task.classes)
        assert found.setdefault(task.group, meaning) == meaning
    assert len(found) == len(set(found.values())) >= 2


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tasks": 11}, "tasks: got 11, expected at most 10, since digits has 10 cl"),
        (
            {"tasks": 4, "classes_per_task": 3},
            "tasks: got 4, expected at most 3, since",
        ),
        (
            {"classes_per_task": 1},
            "classes_per_task: got 1, expected at least 2, or model.head 'single'",
        ),
        (
            {"classes_per_task": 11},
            "classes_per_task: got 11, expected at most the 10 classes of digits",
        ),
        ({"datasets": ["digits", "pets"]}, "tasks: got 3, expected 2, since each of"),
        (
            {"tasks": 4, "classes_per_task": 2, "first_task_classes": 5},
            "tasks: got 4, expected at most 3, since digits has 10 classes, of which "
            "the first task takes 5 and each later one 2",
        ),
        (
            {"first_task_classes": 11},
            "scenario.first_task_classes: got 11, expected at most the 10 classes of d",
        ),
        (
            {"class_order": "0,1,2"},
            "scenario.class_order: got '0,1,2', expected each of the 10 classes of d",
        ),
        (
            {"class_order": "0,1,2,3,4,5,6,7,8,8"},
            "scenario.class_order: got '0,1,2,3,4,5,6,7,8,8', expected each of the 10",
        ),
        (
            {"datasets": ["food", "pets"], "tasks": 2, "class_order": "seed:1"},
            "scenario.class_order: got 'seed:1', expected none with 2 data sets",
        ),
        (
            {"datasets": ["food", "pets"], "tasks": 2, "first_task_classes": 2},
            "scenario.first_task_classes: got 2, expected none with 2 data sets",
        ),
        (
            {"datasets": ["digits", "pets"], "tasks": 2, "classes_per_task": 2},
            "classes_per_task: got 2, expected none, since each of 2 data sets",
        ),
    ],
)
def test_tasks_that_the_classes_do_not_give_are_refused(reviews, changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        build(reviews, **changes)


# ---- the server's data


def test_the_server_has_its_share_of_every_class_that_is_learned():
    plan = build(tasks=2, classes_per_task=3, public_fraction=0.1)
    (public,) = plan.public
    y = load_dataset("digits", NOWHERE).train.y
    assert (public.dataset, public.classes) == (
        "digits",
        tuple(label for _, label in plan.labels),
    )
    assert len(public.valid) == len(public.test) == 0
    assert public.train.tolist() == sorted(public.train.tolist())
    for label, whole in enumerate(np.bincount(y)):
        count = np.count_nonzero(y[public.train] == label)
        assert count == (round(0.1 * whole) if label in public.classes else 0)


def test_the_server_has_at_least_one_sample_of_each_class_or_none_at_all():
    (public,) = build(public_fraction=0.0001).public
    assert len(public.train) == 10
    assert build(public_fraction=0.0).public == ()


def test_the_server_has_samples_of_each_data_set(reviews):
    plan = build(reviews, datasets=["pets", "books"], tasks=2)
    assert [(t.dataset, len(t.train)) for t in plan.public] == [
        ("pets", 4),
        ("books", 8),
    ]


def test_a_data_set_of_the_servers_own_leaves_the_clients_theirs(reviews):
    own = {"public_dataset": "food", "public_fraction": 0.5}
    plan = build(reviews, datasets=["pets"], tasks=1, **own)
    (public,) = plan.public
    assert (public.dataset, public.classes) == ("food", (0, 1, 2))
    assert public.train.tolist() == list(range(60))
    assert sum(len(learned(task)) for task in by_task(plan)[0]) == 40
    assert plan.num_labels == 2


def test_public_samples_come_with_their_place_in_the_head_and_a_class_of_their_own(
    reviews,
):
    """Grey levels tell which sample is which."""
    same = {"merge_labels": "food=books", "class_fraction": 1.0}
    plan = build(reviews, datasets=["food", "books"], tasks=2, clients=1, **same)
    found = public_examples(plan, InputSpec((1, 8, 8), True))
    levels = ((found.x[:, 0, 0, 0] / 4 + 0.5) * 255).round().long()
    assert len(levels) == 6 + 8
    expected = []
    for level in levels.tolist():
        if level < 100:  # of food: classes 1, 2, 3
            expected.append((level % 3 + 1, level % 3))
        else:  # of books, whose classes 2, 1, 4, 3 come in the head as 2, 1, none, 3
            label = (level - 100) % 4
            pairs = {0: ("food", 1), 1: ("food", 0), 2: ("books", 2), 3: ("food", 2)}
            place = plan.labels.index(pairs[label])
            expected.append((place, 3 + label))
    assert list(zip(found.y.tolist(), found.classes.tolist(), strict=True)) == expected
    assert sorted(set(found.classes.tolist())) == list(range(7))


def test_classes_of_the_servers_own_that_nobody_learns_have_no_place(reviews):
    own = {"datasets": ["food"], "tasks": 1, "clients": 2, "public_dataset": "books"}
    form = InputSpec((1, 8, 8), True)
    assert set(public_examples(build(reviews, **own), form).y.tolist()) == {-1}
    plan = build(reviews, **own, merge_labels="books=food")
    found = public_examples(plan, form)
    # Books call their classes 2, 1, 4, 3.
    assert plan.labels == (("books", 0), ("books", 1), ("books", 3))
    pairs = set(zip(found.classes.tolist(), found.y.tolist(), strict=True))
    assert pairs == {(0, 0), (1, 1), (2, -1), (3, 2)}


def test_public_texts_are_numbered_as_the_clients_are(tmp_path):
    rows = [("a", "one two"), ("b", "three")] * 8
    long = [("c", "four five six seven"), ("d", "one")] * 8
    write_text_set(tmp_path, rows, rows[:4], "near")
    write_text_set(tmp_path, long, long[:4], "far")
    (tmp_path / "known.vec").write_text("1 2\none 1 2\n")
    config = RunConfig.from_settings(
        scenario="class-incremental",
        dataset="near",
        data_root=str(tmp_path),
        word_vectors="known.vec",
        clients=2,
        tasks=1,
        public_dataset="far",
    )
    run = Built(resolve(config))
    found = public_examples(run.scenario, InputSpec((-1,), True, run.word_vectors))
    assert [*run.scenario.sources] == ["near", "far"]
    assert found.x.shape == (16, 4)
    assert found.x[1].tolist() == [run.word_vectors.numbers["one"], 0, 0, 0]


def test_without_public_samples_there_are_none_to_load():
    plan = build(public_fraction=0.0)
    found = public_examples(plan, InputSpec((1, 8, 8), True))
    assert [len(part) for part in found] == [0, 0, 0]
    assert found.y.dtype == found.classes.dtype == torch.int64


# ---- what is one class


def test_classes_of_one_name_are_one_class_of_the_head(reviews):
    sets = ["books", "pets", "food"]
    plan = build(
        reviews, merge_labels="food = books", class_fraction=1.0, datasets=sets
    )
    food = [("food", label) for label in range(3)]
    assert plan.labels == (("books", 2), *food, ("pets", 0), ("pets", 1))
    assert [plan.label_index("books", label) for label in range(4)] == [2, 1, 0, 3]
    assert plan.label_index("food", 1) == 2
    assert plan.label_index("elsewhere", 0) == -1


def test_three_sets_share_what_any_two_of_them_have(reviews):
    images_in_turn(reviews, "films", 2, 20, names=["5", "4"])
    sets = ["food", "books", "films"]
    plan = build(reviews, merge_labels="=".join(sets), datasets=sets)
    # Stars 1 to 3 are food's, 4 is that of books, and 5 that of films.
    assert plan.num_labels == 5
    assert plan.label_index("films", 1) == plan.label_index("books", 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("food=nobody", "data sets of the run, not 'nobody': food, books, pets"),
        ("food", "groups of two or more names, each of them once"),
        ("food=food", "groups of two or more names, each of them once"),
        ("food=books,books=pets", "groups of two or more names, each of them once"),
        ("food=books=pets", "a class name that 'pets' has in common with those bef"),
    ],
)
def test_labels_that_cannot_be_the_same_are_refused(reviews, text, expected):
    with pytest.raises(ConfigError, match=rf"merge_labels: got '{text}', .*{expected}"):
        build(reviews, merge_labels=text, datasets=["food", "books", "pets"])


def test_samples_are_labelled_by_their_place_in_the_head(reviews):
    sets = {"food": (1, 2, 3), "books": (2, 1, 0, 3)}  # ("books", 2) sorts first
    merged = {"merge_labels": "food=books", "class_fraction": 0.1}
    plan = build(reviews, datasets=[*sets], tasks=2, clients=2, **merged)
    for number, (name, places) in enumerate(sets.items()):
        data = task_data(plan, 1, number, InputSpec((1, 8, 8), True))
        task, source = plan.clients[1][number], load_dataset(name, reviews)
        assert data.train.y.tolist() == [places[y] for y in source.train.y[task.train]]
        assert data.test.y.tolist() == [places[y] for y in source.test.y[task.test]]
        # The test has classes that the client never met.
        assert len(set(data.test.y.tolist())) > len(task.classes)


# ---- as a run


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"head": "multi"},
            "model.head: got 'multi', expected 'single' for scenario class-incremental"
            ", where a sample's task is unknown",
        ),
        (
            {"scenario": "concepts", "head": "multi"},
            "model.head: got 'multi', expected 'single' for scenario concepts, whose",
        ),
        (
            {"public_dataset": "stdlib-docs"},
            "data.datasets: got 'digits,stdlib-docs', expected .* images and t",
        ),
        *(
            (
                {"scenario": {"name": "class-incremental", "split": split}},
                f"^scenario.split: got {split!r}, expected 'classes', 'iid' or "
                r"'dirichlet:BETA' with BETA above 0 and at most 1e\+06$",
            )
            for split in ("", "iid:1", "dirichlet:", "dirichlet:0", "dirichlet:nan")
        ),
        (
            {
                "scenario": {
                    "name": "class-incremental",
                    "split": "iid",
                    "class_fraction": 0.5,
                }
            },
            "^scenario.class_fraction: got 0.5, expected none with scenario.split 'iid'"
            ", by which no classes are drawn$",
        ),
    ],
)
def test_what_the_scenario_has_no_use_for_is_refused(settings, sentence):
    usual = {"scenario": "class-incremental", "dataset": "digits"}
    with pytest.raises(ConfigError, match=sentence):
        resolve(RunConfig.from_settings(**{**usual, **settings}))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ("overlapped", "multi", 4, 5, 0)),
        ({"strategy": "concept-matching"}, ("concepts", "single", 12, 40, 2)),
        ({"scenario": "class-incremental"}, ("class-incremental", "single", 4, 2, 0)),
    ],
)
def test_what_suits_the_scenario_is_filled_in(settings, expected):
    found = resolve(RunConfig.from_settings(**settings)).config
    scenario, rounds = found.scenario, found.federation
    filled = (rounds.rounds_per_task, rounds.evaluate_every)
    assert (scenario.name, found.model.head, scenario.clients, *filled) == expected


@pytest.mark.run
@pytest.mark.parametrize("split", [{"class_fraction": 0.5}, {"split": "dirichlet:0.1"}])
def test_a_run_records_what_the_server_had_and_how_well_all_classes_are_known(
    tmp_path, split
):
    config = tiny(
        tmp_path,
        scenario={"name": "class-incremental", **split},
        strategy="fedavg",
        dataset="digits",
        clients=3,
        max_test_per_class=10,
        max_train_per_class=20,
        public_fraction=0.1,
    )
    run_in_process(config)
    plan = Built(resolve(config)).scenario
    found = json.loads((tmp_path / "scenario.json").read_text())
    assert found["public"] == [plan.public[0].to_dict()]
    assert found["public"][0]["train"] == 8
    assert plan.describe().splitlines()[-1].split() == [
        *("server", "digits/public", "8", "0", "0", "4", "classes")
    ]
    summary = summary_of(tmp_path)
    after = np.array(summary["client_accuracy"], float)
    counts = np.array([[len(t.test) for t in tasks] for tasks in plan.clients])
    right = [(after[:, t, : t + 1] * counts[:, : t + 1]).sum() for t in range(2)]
    assert counts.sum(axis=0).tolist() == [20, 20]
    assert summary["sample_accuracy"] == pytest.approx([right[0] / 20, right[1] / 40])
    average = (right[0] / 20 + right[1] / 40) / 2
    assert summary["average_incremental_accuracy"] == pytest.approx(average)


@pytest.mark.run
def test_a_first_task_of_more_classes_counts_by_its_samples_wherever_it_is_told(
    tmp_path,
):
    config = tiny(
        tmp_path,
        scenario={
            "name": "class-incremental",
            "first_task_classes": 6,
            "class_order": "9,8,7,6,5,4,3,2,1,0",
        },
        strategy="fedavg",
        dataset="digits",
        clients=2,
        tasks=3,
        max_test_per_class=4,
        max_train_per_class=10,
        classes_per_task=2,
    )
    run_in_process(config)
    plan = Built(resolve(config)).scenario
    summary = summary_of(tmp_path)

    assert [len(plan.labels_until(task)) for task in range(3)] == [6, 8, 10]
    after = np.array(summary["client_accuracy"], float)
    counts = np.array([[len(t.test) for t in tasks] for tasks in plan.clients])
    assert counts.sum(axis=0).tolist() == [24, 8, 8]
    seen = [
        (after[:, t, : t + 1] * counts[:, : t + 1]).sum() / (24 + 8 * t)
        for t in range(3)
    ]
    assert summary["average_incremental_accuracy"] == pytest.approx(np.mean(seen))
    (row,) = tables.rows([summary | {"seconds": 1.0, "peak_memory": 1}])
    known = row["average_incremental_accuracy"]["mean"]
    assert known == pytest.approx(np.mean(seen))
    runs = {sheet.name: sheet for sheet in run_sheets(finished_runs([tmp_path]))}
    (line,) = runs["runs"].rows
    assert line["average_incremental_accuracy"] == pytest.approx(np.mean(seen))
    page = (tmp_path / "report.html").read_text()
    assert "Average incremental accuracy" in page
    assert f"{np.mean(seen):.3f}" in page


@pytest.mark.run
def test_a_growing_head_knows_the_classes_of_a_large_first_task(tmp_path):
    config = tiny(
        tmp_path,
        scenario={"name": "class-incremental", "first_task_classes": 6},
        strategy="icarl",
        dataset="digits",
        growing_head=True,
        tasks=3,
        classes_per_task=2,
        max_train_per_class=10,
        max_test_per_class=4,
    )
    run_in_process(config)
    network = Built(resolve(config)).model()
    opened = [Built(resolve(config)).labels_until(task) for task in range(3)]

    assert network.classes == 10
    assert [len(labels) for labels in opened] == [6, 8, 10]
    assert set(opened[0]) < set(opened[1]) < set(opened[2])
    assert None not in summary_of(tmp_path)["sample_accuracy"]


def test_a_model_has_one_output_for_each_class(reviews):
    config = RunConfig.from_settings(
        scenario="class-incremental",
        dataset="food,books",
        data_root=str(reviews),
        model="small",
        tasks=2,
        clients=2,
        **{"scenario.merge_labels": "food=books"},
    )
    network = Built(resolve(config)).model()
    assert network(torch.zeros(5, *network.input_shape), 1).shape == (5, 4)
