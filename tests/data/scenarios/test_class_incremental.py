"""Class-incremental streams: classes, samples, the server's share, and what is one."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import run_in_process, summary_of, tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from text_sets import write_text_set

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError, ContractError
from fcl_flower.data.examples import InputSpec, public_examples, task_data
from fcl_flower.data.registry import load_dataset
from fcl_flower.data.scenarios import registry
from fcl_flower.data.scenarios.concepts import ConceptsParams
from fcl_flower.data.scenarios.incremental import ClassIncrementalParams
from fcl_flower.data.scenarios.registry import draw_scenario
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve

NOWHERE = Path("no-such-folder")


@pytest.fixture(autouse=True)
def fresh_cache():
    load_dataset.cache_clear()


def build(root=NOWHERE, incremental=None, **changes):
    values = {
        "datasets": ["digits"],
        "clients": 4,
        "tasks": 3,
        "classes_per_task": None,
        "valid_fraction": 0.15,
        "seed": 7,
    }
    given = {**values, **(incremental or {}), **changes}
    params = {
        key: given.pop(key)
        for key in ClassIncrementalParams.model_fields
        if key in given
    }
    return draw_scenario(
        "class-incremental",
        data_root=root,
        params=ClassIncrementalParams(**params),
        **given,
    )


def by_task(plan):
    return list(zip(*plan.clients, strict=True))


def learned(task):
    return np.concatenate([task.train, task.valid]).tolist()


def write_images(root, name, classes, per_class=20, names=None, first=0):
    """Write a set each of whose images is one grey level, another for each sample."""
    y = np.tile(np.arange(classes), per_class)
    x = np.zeros((len(y), 8, 8), np.uint8) + np.arange(
        first, first + len(y), dtype=np.uint8
    ).reshape(-1, 1, 1)
    names = {} if names is None else {"class_names": np.array(names)}
    np.savez(root / f"{name}.npz", x_train=x, y_train=y, x_test=x, y_test=y, **names)


@pytest.fixture
def reviews(tmp_path):
    """Two sets of stars with three names in common, and one of something else."""
    write_images(tmp_path, "food", 3, names=["1", "2", "3"])
    write_images(tmp_path, "books", 4, names=["2", "1", "4", "3"], first=100)
    write_images(tmp_path, "pets", 2, names=["cat", "dog"])
    return tmp_path


# ---------------------------------------------------------------- whose samples


@settings(max_examples=25, deadline=None)
@given(
    clients=st.integers(1, 12),
    tasks=st.integers(1, 10),
    class_fraction=st.floats(0.05, 1),
    public_fraction=st.sampled_from([0.0, 0.01, 0.1, 0.5]),
    max_train_per_class=st.sampled_from([0, 40]),
    max_test_per_class=st.sampled_from([0, 15]),
    seed=st.integers(0, 2**32),
)
def test_every_sample_is_one_clients_or_the_servers(
    clients,
    tasks,
    class_fraction,
    public_fraction,
    max_train_per_class,
    max_test_per_class,
    seed,
):
    plan = build(
        clients=clients,
        tasks=tasks,
        seed=seed,
        incremental={
            "class_fraction": class_fraction,
            "public_fraction": public_fraction,
            "max_train_per_class": max_train_per_class,
            "max_test_per_class": max_test_per_class,
        },
    )
    source = load_dataset("digits", NOWHERE)
    of_clients = [i for tasks in plan.clients for task in tasks for i in learned(task)]
    of_server = [i for task in plan.public for i in task.train.tolist()]
    used = of_clients + of_server
    tested = [i for tasks in plan.clients for task in tasks for i in task.test.tolist()]
    assert len(set(used)) == len(used)
    assert len(set(tested)) == len(tested)
    assert np.bincount(source.train.y[used]).tolist() == [
        min(max_train_per_class or n, n) for n in np.bincount(source.train.y).tolist()
    ]
    assert np.bincount(source.test.y[tested]).tolist() == [
        min(max_test_per_class or n, n) for n in np.bincount(source.test.y).tolist()
    ]
    for stream in plan.clients:
        for task in stream:
            assert set(source.train.y[learned(task)].tolist()) == set(task.classes)


def test_parts_of_a_class_are_nearly_equal_and_each_sharer_validates():
    plan = build(clients=5, incremental={"class_fraction": 1.0, "public_fraction": 0.0})
    y = load_dataset("digits", NOWHERE).train.y
    for tasks in by_task(plan):
        for label in tasks[0].classes:
            counts = [np.count_nonzero(y[learned(task)] == label) for task in tasks]
            assert max(counts) - min(counts) <= 1
            for task in tasks:
                held = np.count_nonzero(y[task.valid] == label)
                total = np.count_nonzero(y[learned(task)] == label)
                assert held == round(0.15 * total)


def test_what_is_left_over_of_classes_goes_to_different_clients(tmp_path):
    write_images(tmp_path, "many", 30, per_class=5)
    plan = build(
        tmp_path,
        datasets=["many"],
        tasks=1,
        incremental={"class_fraction": 1.0, "public_fraction": 0.0},
    )
    y = load_dataset("many", tmp_path).train.y
    counts = np.array([np.bincount(y[learned(t)]) for t in by_task(plan)[0]])
    assert (np.sort(counts, axis=0).T == [1, 1, 1, 2]).all()
    # With 30 classes dealt in the same order, somebody would get 30 of them.
    assert (counts == 2).sum(axis=1).max() < 20


def test_each_client_is_tested_on_all_classes_of_a_task_and_a_fair_share_of_samples():
    plan = build(incremental={"class_fraction": 0.1})
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


def test_too_few_samples_for_the_clients_are_refused(tmp_path):
    write_images(tmp_path, "few", 2, per_class=4)
    settings = {"datasets": ["few"], "tasks": 1, "clients": 5}
    whole = {"class_fraction": 1.0, "public_fraction": 0.0}
    with pytest.raises(
        ConfigError,
        match=r"clients: got 5 clients that learn class '0' of few, "
        r"expected at most one for each of its 4 training",
    ):
        build(tmp_path, whole, **settings)
    with pytest.raises(
        ConfigError, match=r"clients: got 5, expected at most 4, since task 'few/0'"
    ):
        build(tmp_path, {"class_fraction": 0.5, "max_test_per_class": 2}, **settings)


# ---------------------------------------------------------------- which classes


def test_all_clients_learn_the_tasks_in_one_order():
    plan = build()
    for number, tasks in enumerate(by_task(plan)):
        assert {task.name for task in tasks} == {f"digits/{number}"}


def test_classes_of_one_set_are_shared_out_in_an_order_that_the_seed_draws():
    plan = build(tasks=3, incremental={"class_fraction": 1.0})
    groups = [tasks[0].classes for tasks in by_task(plan)]
    assert [len(group) for group in groups] == [4, 3, 3]
    assert sorted(label for group in groups for label in group) == list(range(10))
    assert plan.classes_per_task == 4
    other = build(tasks=3, seed=8, incremental={"class_fraction": 1.0})
    assert groups != [tasks[0].classes for tasks in by_task(other)]
    pairs = build(tasks=3, classes_per_task=2, incremental={"class_fraction": 1.0})
    assert [tasks[0].classes for tasks in by_task(pairs)] == [
        tuple(sorted(group))
        for group in np.array(_order(groups_of_ten(seed=7)))[:6].reshape(3, 2).tolist()
    ]
    assert pairs.num_labels == 6


def groups_of_ten(seed):
    """Return the classes one a task, which shows the order that they are drawn in."""
    plan = build(tasks=10, seed=seed, clients=1)
    return [tasks[0].classes for tasks in by_task(plan)]


def _order(groups):
    return [label for (label,) in groups]


def test_several_sets_are_tasks_in_the_order_given(reviews):
    plan = build(
        reviews, datasets=["pets", "books", "food"], incremental={"class_fraction": 1.0}
    )
    assert [tasks[0].name for tasks in by_task(plan)] == ["pets", "books", "food"]
    assert [len(tasks[0].classes) for tasks in by_task(plan)] == [2, 4, 3]
    assert plan.classes_per_task == 4
    assert plan.num_labels == 9


@pytest.mark.parametrize(("share", "count"), [(0.6, 3), (0.01, 1), (0.3, 2), (1, 5)])
def test_a_client_draws_its_share_of_each_tasks_classes(share, count):
    plan = build(tasks=2, clients=6, incremental={"class_fraction": share})
    for tasks in by_task(plan):
        # 6 clients leave hardly a class to hand on, which would add one to somebody.
        sizes = sorted(len(task.classes) for task in tasks)
        assert sizes[0] == count
        assert set(sizes) <= {count, count + 1}
    drawn = [tuple(task.classes for task in stream) for stream in plan.clients]
    assert (len(set(drawn)) > 1) == (share < 1)


def test_a_class_that_nobody_drew_goes_to_somebody():
    plan = build(tasks=1, clients=3, incremental={"class_fraction": 0.01})
    sizes = [len(task.classes) for task in by_task(plan)[0]]
    # Each draws one of ten; the seven or more that are left are handed on in turn.
    assert {label for task in by_task(plan)[0] for label in task.classes} == {
        *range(10)
    }
    assert max(sizes) - min(sizes) <= 1


def test_clients_that_drew_the_same_classes_learn_the_same():
    plan = build(tasks=2, clients=12, incremental={"class_fraction": 0.2})
    found = {}
    for stream in plan.clients:
        for task in stream:
            assert found.setdefault(task.group, (task.name, task.classes)) == (
                task.name,
                task.classes,
            )
    assert len(found) == len(set(found.values()))


def test_the_same_seed_gives_the_same_plan_and_another_one_another():
    first = build().to_dict()
    registry._build.cache_clear()
    assert build().to_dict() == first
    assert build(seed=8).to_dict()["clients"] != build().to_dict()["clients"]


def test_fewer_samples_are_some_of_more():
    few, many = (
        build(incremental={"max_train_per_class": n, "public_fraction": 0.0})
        for n in (20, 50)
    )
    of_few, of_many = (
        {i for tasks in plan.clients for task in tasks for i in learned(task)}
        for plan in (few, many)
    )
    assert of_few < of_many
    assert len(of_few) == 200


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tasks": 11}, r"tasks: got 11, expected at most 10, since digits has 10 cl"),
        (
            {"tasks": 4, "classes_per_task": 3},
            r"tasks: got 4, expected at most 3, since",
        ),
        ({"classes_per_task": 1}, r"classes_per_task: got 1, expected at least 2"),
        ({"classes_per_task": 0}, r"classes_per_task: got 0, expected at least 2"),
        ({"datasets": ["digits", "pets"]}, r"tasks: got 3, expected 2, since each of"),
        (
            {"datasets": ["digits", "pets"], "tasks": 2, "classes_per_task": 2},
            r"classes_per_task: got 2, expected none, since each of 2 data sets",
        ),
    ],
)
def test_tasks_that_the_classes_do_not_give_are_refused(reviews, changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        build(reviews, **changes)


# ---------------------------------------------------------------- the server's data


def test_the_server_has_its_share_of_every_class_that_is_learned():
    plan = build(tasks=2, classes_per_task=3, incremental={"public_fraction": 0.1})
    (public,) = plan.public
    y = load_dataset("digits", NOWHERE).train.y
    assert public.dataset == "digits"
    assert public.classes == tuple(label for _, label in plan.labels)
    assert len(public.valid) == len(public.test) == 0
    assert public.train.tolist() == sorted(public.train.tolist())
    for label in range(10):
        count = np.count_nonzero(y[public.train] == label)
        whole = np.count_nonzero(y == label)
        assert count == (round(0.1 * whole) if label in public.classes else 0)


def test_the_server_has_at_least_one_sample_of_each_class_or_none_at_all():
    (public,) = build(incremental={"public_fraction": 0.0001}).public
    assert len(public.train) == 10
    assert build(incremental={"public_fraction": 0.0}).public == ()


def test_the_server_has_samples_of_each_data_set(reviews):
    plan = build(reviews, datasets=["pets", "books"], tasks=2)
    assert [(t.dataset, len(t.train)) for t in plan.public] == [
        ("pets", 4),
        ("books", 8),
    ]


def test_a_data_set_of_the_servers_own_leaves_the_clients_theirs(reviews):
    plan = build(
        reviews,
        datasets=["pets"],
        tasks=1,
        incremental={"public_dataset": "food", "public_fraction": 0.5},
    )
    (public,) = plan.public
    assert (public.dataset, public.classes) == ("food", (0, 1, 2))
    assert public.train.tolist() == list(range(60))
    assert sum(len(learned(task)) for task in by_task(plan)[0]) == 40
    assert plan.num_labels == 2


def test_a_data_set_that_clients_learn_is_not_the_servers(reviews):
    with pytest.raises(ConfigError, match=r"public_dataset: got 'pets', expected a da"):
        build(reviews, {"public_dataset": "pets"}, datasets=["pets"], tasks=1)


def test_public_samples_come_with_their_place_in_the_head_and_a_class_of_their_own(
    reviews,
):
    """Grey levels tell which sample is which."""
    same = {"merge_labels": "food=books", "class_fraction": 1.0, "public_fraction": 0.1}
    plan = build(reviews, same, datasets=["food", "books"], tasks=2, clients=1)
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
    settings = {"datasets": ["food"], "tasks": 1, "clients": 2}
    form = InputSpec((1, 8, 8), True)
    apart = build(reviews, {"public_dataset": "books"}, **settings)
    assert set(public_examples(apart, form).y.tolist()) == {-1}
    one = {"public_dataset": "books", "merge_labels": "books=food"}
    shared = public_examples(build(reviews, one, **settings), form)
    # Books call their classes 2, 1, 4, 3.
    pairs = set(zip(shared.classes.tolist(), shared.y.tolist(), strict=True))
    plan = build(reviews, one, **settings)
    assert plan.labels == (("books", 0), ("books", 1), ("books", 3))
    assert pairs == {(0, 0), (1, 1), (2, -1), (3, 2)}


def test_public_texts_are_numbered_as_the_clients_are(tmp_path):
    rows = [("a", "one two"), ("b", "three")] * 8
    long = [("c", "four five six seven"), ("d", "one")] * 8
    write_text_set(tmp_path, rows, rows[:4], "near")
    write_text_set(tmp_path, long, long[:4], "far")
    text = "1 2\n" + "".join(f"w{n} 1 2\n" for n in range(1)).replace("w0", "one")
    (tmp_path / "known.vec").write_text(text)
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
    words = run.word_vectors
    found = public_examples(run.scenario, InputSpec((-1,), True, words))
    assert [*run.scenario.sources] == ["near", "far"]
    assert found.x.shape == (16, 4)
    assert found.x[1].tolist() == [words.numbers["one"], 0, 0, 0]


def test_without_public_samples_there_are_none_to_load():
    plan = build(incremental={"public_fraction": 0.0})
    found = public_examples(plan, InputSpec((1, 8, 8), True))
    assert [len(part) for part in found] == [0, 0, 0]
    assert found.y.dtype == found.classes.dtype == torch.int64


# ---------------------------------------------------------------- what is one class


def test_classes_of_one_name_are_one_class_of_the_head(reviews):
    plan = build(
        reviews,
        {"merge_labels": "food = books", "class_fraction": 1.0},
        datasets=["books", "pets", "food"],
    )
    assert plan.labels == (
        ("books", 2),
        ("food", 0),
        ("food", 1),
        ("food", 2),
        ("pets", 0),
        ("pets", 1),
    )
    assert [plan.label_index("books", label) for label in range(4)] == [2, 1, 0, 3]
    assert plan.label_index("food", 1) == 2
    assert plan.label_index("elsewhere", 0) == -1


def test_three_sets_share_what_any_two_of_them_have(reviews):
    write_images(reviews, "films", 2, names=["5", "4"])
    plan = build(
        reviews,
        {"merge_labels": "food=books=films", "public_fraction": 0.0},
        datasets=["food", "books", "films"],
    )
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
        build(reviews, {"merge_labels": text}, datasets=["food", "books", "pets"])


def max_test_per_class_are_labelled_by_their_place_in_the_head(reviews):
    plan = build(
        reviews,
        {"merge_labels": "food=books", "class_fraction": 0.1, "public_fraction": 0.0},
        datasets=["food", "books"],
        tasks=2,
        clients=2,
    )
    form = InputSpec((1, 8, 8), single_head=True)
    for client in range(2):
        for number, name in enumerate(("food", "books")):
            data = task_data(plan, client, number, form)
            task = plan.clients[client][number]
            assert data.classes == 4
            source = load_dataset(name, reviews)
            names = {"1": 1, "2": 2, "3": 3, "4": 0}  # ("books", 2) sorts first
            for split, y, of in (
                (task.train, data.train.y, source.train),
                (task.test, data.test.y, source.test),
            ):
                expected = [names[source.class_names[label]] for label in of.y[split]]
                assert y.tolist() == expected
            # The test has classes that the client never met.
            assert len(set(data.test.y.tolist())) > len(task.classes)


# ---------------------------------------------------------------- as a run


def test_a_head_a_task_is_refused():
    config = RunConfig.from_settings(
        scenario="class-incremental", dataset="digits", head="multi"
    )
    with pytest.raises(
        ConfigError,
        match=r"model.head: got 'multi', expected 'single' for scenario "
        r"class-incremental, where a sample's task is unknown",
    ):
        resolve(config)


def test_what_suits_the_scenario_is_filled_in():
    config = RunConfig.from_settings(scenario="class-incremental", dataset="digits")
    found = resolve(config)
    assert (found.config.scenario.clients, found.config.model.head) == (4, "single")
    assert found.config.federation.rounds_per_task == 2


@pytest.mark.parametrize(
    "setting",
    [{"public_dataset": "pets"}, {"public_fraction": 0.2}],
)
def test_other_scenarios_refuse_what_they_would_not_use(setting):
    ((key, value),) = setting.items()
    with pytest.raises(
        ConfigError, match=f"{key}: got {value!r}, expected none for sc"
    ):
        draw_scenario(
            "overlapped",
            datasets=["digits"],
            data_root=NOWHERE,
            clients=2,
            tasks=2,
            classes_per_task=2,
            valid_fraction=0.15,
            seed=0,
            **setting,
        )


@pytest.mark.parametrize("name", ["overlapped", "class-incremental"])
def test_settings_of_another_scenario_are_refused(name):
    with pytest.raises(ContractError, match=f"scenario {name}: got ConceptsParams, ex"):
        draw_scenario(
            name,
            datasets=["digits"],
            data_root=NOWHERE,
            clients=2,
            tasks=2,
            classes_per_task=2,
            valid_fraction=0.15,
            seed=0,
            params=ConceptsParams(),
        )


def test_public_data_of_another_kind_are_refused():
    config = RunConfig.from_settings(
        scenario="class-incremental", dataset="digits", public_dataset="stdlib-docs"
    )
    with pytest.raises(
        ConfigError,
        match=r"data.datasets: got 'digits,stdlib-docs', expected .* images and t",
    ):
        resolve(config)


def test_a_run_records_what_the_server_had_and_how_well_all_classes_are_known(tmp_path):
    config = tiny(
        tmp_path,
        scenario="class-incremental",
        strategy="fedavg",
        dataset="digits",
        clients=3,
        max_test_per_class=10,
        max_train_per_class=20,
        public_fraction=0.1,
        **{"scenario.class_fraction": 0.5},
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
