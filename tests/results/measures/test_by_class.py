"""Counts by class against scikit-learn, from a client's answers to a report."""

import warnings

import numpy as np
import pytest
import torch
from pages import head_of, headings, parsed, table_of
from run_folders import edit, make_run, summary_of
from sklearn.metrics import (
    balanced_accuracy_score,
    f1_score,
    precision_recall_fscore_support,
)

import fcl_flower as fcl
from fcl_flower.core.errors import ConfigError, WireError
from fcl_flower.core.types import Evaluation
from fcl_flower.data.scenarios.plan import Scenario, Task
from fcl_flower.data.scenarios.registry import draw_scenario
from fcl_flower.exports.sheets import run_sheets
from fcl_flower.results import tables
from fcl_flower.results.measures import by_class
from fcl_flower.results.measures.by_class import ClassMeasures
from fcl_flower.results.report import wording
from fcl_flower.results.report.comparison import write_comparison
from fcl_flower.results.report.run_page import write_report
from fcl_flower.results.result import Result
from fcl_flower.training.loop import ClassCounts

CLASSES = 4
# Class 2 has no samples, class 3 is never answered, class 0 is common.
LABELS = np.array([0] * 12 + [1] * 4 + [3] * 2)
GIVEN = np.array([0] * 9 + [1, 2, 2] + [1, 1, 0, 0] + [0, 1])


def counted(labels, given):
    """Return what `ClassCounts` counts, of a network that answers as given."""
    answers = ClassCounts(lambda x: torch.nn.functional.one_hot(x, CLASSES).float())
    for at in range(0, len(given), 5):
        answers(torch.tensor(given[at : at + 5]))
    return answers.by_class(torch.tensor(labels), CLASSES)


def test_answers_are_counted_batch_by_batch():
    assert counted(LABELS, GIVEN) == [[9, 2, 0, 0], [12, 4, 0, 2], [12, 4, 2, 0]]
    assert counted(LABELS[:0], GIVEN[:0]) == [[0] * CLASSES] * 3


def test_each_class_is_measured_as_scikit_learn_does():
    theirs = precision_recall_fscore_support(
        LABELS, GIVEN, labels=range(CLASSES), zero_division=np.nan
    )
    counts = np.array(counted(LABELS, GIVEN))

    np.testing.assert_allclose(by_class.precision(counts), theirs[0])
    np.testing.assert_allclose(by_class.recall(counts), theirs[1])
    there = theirs[3] > 0  # they call F1 of a class without samples 0
    np.testing.assert_allclose(by_class.f1(counts)[there], theirs[2][there])
    assert np.isnan(by_class.f1(counts)[~there]).all()


def plan(tmp_path, tasks=2, clients=2):
    return draw_scenario(
        "overlapped",
        datasets=["digits"],
        data_root=tmp_path,
        clients=clients,
        tasks=tasks,
        classes_per_task=2,
        valid_fraction=0.2,
        seed=0,
    )


def evaluation(*by_task):
    accuracy = [sum(right) / sum(tested) for right, tested, _ in by_task]
    return Evaluation(accuracy, 9, [*by_task])


def test_measures_are_means_over_classes_then_tasks_then_clients(tmp_path):
    measures = ClassMeasures(plan(tmp_path), 2, single_head=False)
    first = evaluation([[8, 1], [10, 2], [9, 3]], [[3, 3], [3, 3], [3, 3]])
    second = evaluation([[0, 4], [4, 4], [0, 8]], [[1, 0], [1, 0], [1, 0]])
    measures.add(1, {0: first, 1: second})

    found = measures.summary()

    by_client = [((0.8 + 0.5) / 2 + 1) / 2, ((0 + 1) / 2 + 1) / 2]
    assert found["balanced_accuracy"] == pytest.approx(sum(by_client) / 2)
    f1 = [((16 / 19 + 2 / 5) / 2 + 1) / 2, ((0 + 8 / 12) / 2 + 1) / 2]
    assert found["macro_f1"] == pytest.approx(sum(f1) / 2)


def test_who_was_gone_after_the_last_task_counts_for_nothing(tmp_path):
    measures = ClassMeasures(plan(tmp_path), 2, single_head=False)
    measures.add(0, {0: evaluation([[4, 4], [4, 4], [4, 4]]), 1: right_half()})
    assert measures.summary() == {
        "balanced_accuracy": None,
        "macro_f1": None,
        "per_class": [],
    }
    measures.add(1, {1: evaluation(*[[[1, 0], [1, 1], [2, 0]]] * 2)})
    assert measures.summary()["balanced_accuracy"] == 0.5


def right_half():
    return evaluation([[2, 2], [4, 4], [4, 4]])


def test_classes_of_one_name_are_added_up_over_clients_and_tasks(tmp_path):
    scenario = plan(tmp_path)
    names = [[task.class_names for task in tasks] for tasks in scenario.clients]
    measures = ClassMeasures(scenario, 2, single_head=False)
    measures.add(1, {c: evaluation(*[[[1, 2], [4, 2], [3, 3]]] * 2) for c in (0, 1)})

    found = {one["name"]: one for one in measures.summary()["per_class"]}

    everything = [name for tasks in names for task in tasks for name in task]
    assert set(found) == set(everything)
    total = {name: [0, 0, 0] for name in everything}
    for tasks in names:
        for first, second in tasks:
            for name, counts in ((first, (1, 4, 3)), (second, (2, 2, 3))):
                total[name] = [a + b for a, b in zip(total[name], counts, strict=True)]
    for name, (right, tested, answered) in total.items():
        assert found[name]["tested"] == tested
        assert found[name]["recall"] == pytest.approx(right / tested)
        assert found[name]["precision"] == pytest.approx(right / answered)
        f1 = 2 * right / (tested + answered)
        assert found[name]["f1"] == pytest.approx(f1)


def test_a_single_head_has_the_names_of_all_classes(tmp_path):
    scenario = plan(tmp_path)
    measures = ClassMeasures(scenario, scenario.num_labels, single_head=True)
    tested = [0] * scenario.num_labels
    tested[-1], tested[0] = 2, 1
    wrong = [tested[-1], *[0] * (len(tested) - 2), tested[0]]
    measures.add(1, {0: evaluation(*[[[0] * len(tested), tested, wrong]] * 2)})
    labels = [str(label) for _, label in scenario.labels]  # digits are called so

    found = measures.summary()["per_class"]

    assert [one["name"] for one in found] == [labels[0], labels[-1]]
    assert [one["tested"] for one in found] == [2, 4]
    local = ClassMeasures(scenario, 2, single_head=True, names=["cat", "dog"])
    local.add(1, {0: evaluation(*[[[0, 1], [0, 3], [2, 1]]] * 2)})
    assert [one["name"] for one in local.summary()["per_class"]] == ["dog"]


def test_counts_of_other_samples_than_the_clients_are_refused(tmp_path):
    scenario = plan(tmp_path)
    measures = ClassMeasures(scenario, 2, single_head=False)
    sizes = [len(task.test) for task in scenario.clients[1]]
    honest = [[[n, 0], [n, 0], [n, 0]] for n in sizes]
    measures.check(1, Evaluation([1.0, 1.0], 9, honest))
    measures.check(1, Evaluation([1.0], 9, honest[:1]))
    more = [honest[0], [[sizes[1] + 1, 0]] * 3]
    with pytest.raises(WireError, match=r"tested: expected \[\d+, \d+\] samples, got"):
        measures.check(1, Evaluation([1.0, 1.0], 9, more))


def drawn_by_hand(*names):
    """Return one client's single task; of local data where no data set is named."""
    none = np.empty(0, np.int64)
    tested = np.arange(4)
    classes, of_them = ((3, 5), ("cat", "dog")) if names else ((), ())
    task = Task("t", names[0] if names else "", classes, of_them, none, none, tested, 0)
    return Scenario("by hand", 0, names, 2, ((task,),))


@pytest.mark.parametrize(
    ("scenario", "names"),
    [
        (drawn_by_hand("pets"), ["cat", "dog"]),
        (drawn_by_hand("pets", "cars"), ["pets/cat", "pets/dog"]),
        (drawn_by_hand(), ["task 0, class 0", "task 0, class 1"]),
    ],
)
def test_classes_are_called_as_the_server_knows_them(scenario, names):
    found = evaluation([[2, 0], [3, 1], [3, 1]])
    measures = ClassMeasures(scenario, 2, single_head=False)
    measures.add(0, {0: found})
    assert [one["name"] for one in measures.summary()["per_class"]] == names
    if scenario.datasets:
        single = ClassMeasures(scenario, 2, single_head=True)
        single.add(0, {0: found})
        assert [one["name"] for one in single.summary()["per_class"]] == names


def test_of_local_data_only_the_client_knows_how_many_there_are():
    found = evaluation([[2, 0], [9, 1], [9, 1]])
    ClassMeasures(drawn_by_hand(), 2, single_head=False).check(0, found)
    with pytest.raises(WireError, match=r"tested: expected \[4\] samples, got \[10\]"):
        ClassMeasures(drawn_by_hand("pets"), 2, single_head=False).check(0, found)


# ---- whole runs


def simulated(folder, strategy="fedavg", **more):
    size = {"dataset": "digits", "clients": 2, "tasks": 2, "rounds": 1, "seed": 3}
    size |= {"max_train_per_class": 20}
    return fcl.simulate(
        strategy,
        **{**size, "per_class": True, **more},
        progress=False,
        output=folder,
    )


@pytest.mark.parametrize(
    ("strategy", "more"),
    [
        ("fedavg", {}),
        ("local", {}),
        ("fedavg", {"head": "single"}),
        ("fedavg", {"asynchronous.enabled": True}),
        ("fedavg", {"scenario": "concepts", "rounds": 4}),
    ],
)
def test_counts_change_no_number_and_agree_with_the_accuracies(
    tmp_path, strategy, more
):
    told = simulated(tmp_path / "told", strategy, **more)
    silent = simulated(tmp_path / "silent", strategy, **more, per_class=False)

    np.testing.assert_array_equal(told.accuracy, silent.accuracy)
    found = told.summary["per_class"]
    tested = sum(one["tested"] for one in found)
    right = sum(one["tested"] * one["recall"] for one in found)
    assert right / tested == pytest.approx(told.summary["sample_accuracy"][-1])
    assert 0 < told.summary["macro_f1"] <= 1
    assert 0 < told.summary["balanced_accuracy"] <= 1
    assert "per_class" not in silent.summary
    assert silent.bytes_up < told.bytes_up
    page = parsed(told.report())
    names = {row[0] for row in table_of(page, "classes")}
    assert names == {one["name"] for one in found}


def test_a_resumed_run_knows_the_counts_of_before(tmp_path):
    whole = simulated(tmp_path / "run")
    journal = tmp_path / "run" / "journal.jsonl"
    assert '"by_class": [[[' in journal.read_text()
    (tmp_path / "run" / "summary.json").unlink()
    again = simulated(tmp_path / "run", resume=True)
    keys = ("per_class", "macro_f1", "balanced_accuracy")
    assert [again.summary[k] for k in keys] == [whole.summary[k] for k in keys]


def test_without_accuracies_nothing_can_be_counted(tmp_path):
    with pytest.raises(ConfigError, match=r"federation\.per_class: got True, expected"):
        simulated(tmp_path / "run", **{"privacy.scores": False})


# ---- tables and pages

KNOWN = {
    "balanced_accuracy": 0.625,
    "macro_f1": 0.375,
    "per_class": [
        {"name": "<i>", "tested": 7, "recall": 0.5, "precision": None, "f1": 0.0},
        {"name": "b", "tested": 1234, "recall": 0.25, "precision": 1.0, "f1": 0.4},
    ],
}


def test_tables_sheets_and_pages_show_them(tmp_path):
    run = make_run(tmp_path / "run")
    edit(run, "summary.json", **KNOWN)

    text = tables.table([summary_of(run)])
    (row,) = tables.rows([summary_of(run)])
    page = parsed(write_report(run))
    comparison = parsed(write_comparison(tmp_path / "out", [run]))
    sheets = {one.name: one for one in run_sheets([Result(run, None, summary_of(run))])}

    assert "| balanced accuracy | macro F1 |" in text
    assert "| 0.625 | 0.375 |" in text
    assert "macro F1: mean over them of F1" in text
    assert row["macro_f1"] == {"mean": 0.375, "deviation": None}
    assert table_of(page, "classes") == [
        ["b", "1,234", "0.250", "1.000", "0.400"],
        ["<i>", "7", "0.500", wording.UNKNOWN, "0.000"],
    ]
    column = head_of(comparison, "methods").index("macro F1")
    assert table_of(comparison, "methods")[0][column] == "0.375"
    assert sheets["classes"].rows == (
        ("fedweit", 1, "<i>", 7, 0.5, None, 0.0),
        ("fedweit", 1, "b", 1234, 0.25, 1.0, 0.4),
    )
    runs = dict(zip(sheets["runs"].columns, sheets["runs"].rows[0], strict=True))
    assert (runs["balanced_accuracy"], runs["macro_f1"]) == (0.625, 0.375)


def test_a_run_without_counts_shows_nothing_of_them(tmp_path):
    run = make_run(tmp_path / "run")
    assert "Accuracy of every class" not in headings(parsed(write_report(run)))
    assert "macro F1" not in tables.table([summary_of(run)])
    assert len(run_sheets([Result(run, None, summary_of(run))])) == 3


def test_the_means_are_those_of_scikit_learn():
    counts = np.array(counted(LABELS, GIVEN))
    there = counts[1] > 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of answers that are no label there
        balanced = balanced_accuracy_score(LABELS, GIVEN)
    macro = f1_score(
        LABELS,
        GIVEN,
        labels=np.flatnonzero(there),
        average="macro",
        zero_division=0,
    )
    assert np.nanmean(by_class.recall(counts)) == pytest.approx(balanced)
    assert np.nanmean(by_class.f1(counts)) == pytest.approx(macro)
