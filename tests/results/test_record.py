"""What the events of a run add up to, and how the folder of a run is read."""

import json
import shutil
import warnings
from collections import Counter

import numpy as np
import pytest
import torch
from records import begun, evaluated, record, stage, trained
from sklearn.metrics import (
    adjusted_rand_score,
    balanced_accuracy_score,
    f1_score,
    precision_recall_fscore_support,
)

import fcl_flower as fcl
from fcl_flower.core.diagnostics import Clustering, Matrix, Points, Table
from fcl_flower.core.errors import ConfigError
from fcl_flower.data.scenarios.plan import ConceptStream
from fcl_flower.results import measures
from fcl_flower.results.events import EvaluatedBefore, Traffic
from fcl_flower.results.record import is_run, read, runs_in, summarize
from fcl_flower.results.recorder import with_truth
from fcl_flower.training.loop import ClassCounts

# ---- measures


def test_measures_are_those_of_all_evaluations():
    found = record(
        evaluated(1, 0, {0: [0.9], 1: [0.5]}),
        evaluated(2, 1, {0: [0.7, 0.8]}),  # the other client is gone
        evaluated(2, 1, {0: [0.6, 0.4]}, EvaluatedBefore),
        attackers=1,
    )
    summary = summarize(found)
    assert summary.average_accuracy == summary.honest_accuracy == (0.7 + 0.8) / 2
    assert summary.forgetting == pytest.approx(0.2)
    assert summary.learning_accuracy == pytest.approx(((0.9 + 0.8) / 2 + 0.5) / 2)
    share = (30 * 0.9 + 30 * 0.5) / 60, (30 * 0.7 + 10 * 0.8) / 40
    assert summary.sample_accuracy == pytest.approx(share)
    assert summary.average_incremental_accuracy is None, "another scenario"
    assert summary.client_accuracy[1] == [[0.5, None], [None, None]]
    assert summary.accuracy_matrix[0] == [0.7, None]
    assert summary.before_aggregation.average_accuracy == 0.5
    assert summary.before_aggregation.client_accuracy[0][0] == [None, None]
    assert summary.model_bytes == 9


def test_what_clients_reach_without_the_task_is_a_mean_over_tasks_and_clients():
    known = record(
        evaluated(1, 0, {0: [0.9], 1: [0.5]}),
        evaluated(
            2, 1, {0: [0.7, 0.8], 1: [1, 1]}, inferred={0: [0.4, 0.2], 1: [1, 0]}
        ),
    )
    assert summarize(known).inferred_task_accuracy == pytest.approx((0.3 + 0.5) / 2)
    unknown = summarize(record(evaluated(1, 0, {0: [0.9]})))
    assert "inferred_task_accuracy" not in unknown.content()


def test_what_was_told_without_the_task_before_the_last_task_does_not_count():
    early = evaluated(1, 0, {0: [0.9], 1: [0.5]}, inferred={0: [1.0], 1: [1.0]})
    assert "inferred_task_accuracy" not in summarize(record(early)).content()
    last = evaluated(2, 1, {0: [0.7, 0.8]}, inferred={0: [0.4, 0.2]})
    assert summarize(record(early, last)).inferred_task_accuracy == pytest.approx(0.3)


@pytest.mark.parametrize("so_far", [False, True])
def test_of_a_run_without_evaluations_nothing_is_known(so_far):
    summary = summarize(record(trained(1)), so_far=so_far)
    names = ("average_accuracy", "forgetting", "backward_transfer", "learning_accuracy")
    assert [getattr(summary, name) for name in names] == [None] * 4
    assert summary.sample_accuracy == [None, None]
    assert record(scenario={"datasets": []}).summary.sample_accuracy == [None, None]


def test_so_far_only_what_asks_for_no_end_is_known():
    under_way = record(evaluated(1, 0, {0: [0.9], 1: [0.5]}))
    summary = under_way.summary
    assert summary.average_accuracy == summary.learning_accuracy == 0.7
    assert summary.forgetting is summary.backward_transfer is None
    assert summary.untrained_client_tasks is None
    assert under_way.average_accuracy == 0.7
    np.testing.assert_array_equal(under_way.latest, [[0.9, np.nan], [0.5, np.nan]])


def test_each_evaluation_of_hidden_concepts_takes_the_place_of_the_one_before():
    hidden = {"hidden": {"window": 5, "mean_duration": 1}}
    found = record(
        evaluated(1, 0, {0: [0.9, 0.2], 1: [0.5, 0.2]}),
        evaluated(2, 0, {0: [0.5, 0.6], 1: [0.5, 0.2]}),
        about=hidden,
    )
    summary = summarize(found)
    assert summary.client_accuracy[0] == [[None, None], [0.5, 0.6]]
    assert summary.average_accuracy == pytest.approx(0.45)
    # The means were 0.7 and 0.2, and are 0.5 and 0.4 now.
    assert summary.forgetting == pytest.approx((0.2 - 0.2) / 2)
    assert summary.learning_accuracy is summary.untrained_client_tasks is None
    rounds, accuracy = found.by_round()
    assert rounds.tolist() == [1, 2]
    assert accuracy[:, 0].tolist() == [[0.9, 0.2], [0.5, 0.6]]


def test_who_trained_failed_and_was_late_is_counted():
    found = record(
        trained(1, stages={0: stage(0)}, failed={1: "gone"}, late={1: 4.0}),
        trained(2, 1, stages={0: stage(1)}, failed={1: "late"}, late={1: 6.0}),
    )
    summary = summarize(found)
    assert summary.untrained_client_tasks == 2
    assert summary.left_out == {1: "late"}
    assert summary.late_replies == {1: 2}
    late = found.lateness[1]
    assert (late.round, late.times, late.busy_until) == (2, 2, 6.0)
    found.add(trained(3, stages={1: stage(0)}))
    assert found.lateness == {}
    assert summarize(found).left_out == {}
    found.add(begun(joint=True))
    assert summarize(found).untrained_client_tasks == 0


def test_traffic_metrics_and_time_add_up():
    traffic = Traffic(Counter(b=3, a=1), Counter(a=2), 8, 9)
    epsilons = ({"label_epsilon": 1.0}, {"label_epsilon": 3.0}, {"label_epsilon": 2.0})
    found = record(
        *(
            trained(n, replies={0: {"multiply_adds": 5.0, **told}}, traffic=traffic)
            for n, told in enumerate(epsilons, start=1)
        )
    )
    summary = found.summary
    assert summary.bytes_by_kind["up"] == {"a": 3, "b": 9}
    assert (summary.bytes_up, summary.bytes_down) == (12, 6)
    assert (summary.nominal_bytes_up, summary.nominal_bytes_down) == (24, 27)
    assert summary.label_epsilon == {0: 3.0}, "the most that the client reported"
    assert found.multiply_adds == 15
    assert summary.seconds == 4.5


def test_a_line_of_rounds_has_means_over_who_has_a_value():
    line = trained(
        4,
        replies={2: {"loss": 1.0}, 0: {"loss": 2.0, "valid_accuracy": 0.5}},
        failed={1: "gone"},
        timing={"staleness": 2.0, "weight": 0.5, "clock": 3.0},
        diagnostics={"spread": 0.5, "t": Table(title="", rows="", columns=())},
    ).line()
    assert (line["loss"], line["valid_loss"], line["valid_accuracy"]) == (
        1.5,
        None,
        0.5,
    )
    assert (line["clients"], line["failed"]) == ([0, 2], [1])
    assert line["diagnostics"] == {"spread": 0.5}
    assert list(line)[-4:] == [*("staleness", "weight", "clock", "diagnostics")]


# ---- diagnostics


def matrix(**values):
    return Matrix(title="m", rows="new", columns="old", **values)


def test_a_record_holds_a_report_of_a_round_once():
    rows = Table(title="t", rows="task", columns=("density",), values={"0/0": (0.5,)})
    found = record(trained(1, diagnostics={"n": 1.0, "t": rows}))

    assert found.diagnostics == {"t": rows}
    assert found.rounds[0].diagnostics == {"n": 1.0}
    assert found.rounds[0].line()["diagnostics"] == {"n": 1.0}


def test_a_later_row_takes_the_place_of_an_earlier_one():
    first = matrix(values={"0/1": {"1/0": 0.5}, "1/1": {"0/0": 0.1}})
    first = first.model_copy(update={"marked": {"0/1": ["1/0"], "1/1": ["0/0"]}})
    second = matrix(values={"0/1": {"2/0": 0.25}})
    rows = Table(title="t", rows="task", columns=("density",), values={"0/0": (0.5,)})
    other = rows.model_copy(update={"values": {"0/1": (0.0,), "0/0": (0.25,)}})
    found = record(
        trained(1, diagnostics={"m": first, "t": rows, "n": 1.0}),
        trained(2, diagnostics={"m": second, "t": other}),
    ).diagnostics
    assert found["m"].values == {"0/1": {"2/0": 0.25}, "1/1": {"0/0": 0.1}}
    assert found["m"].marked == {"1/1": ["0/0"]}
    assert found["t"].values == {"0/0": (0.25,), "0/1": (0.0,)}
    assert found.keys() == {"m", "t"}


def clustering(number, clients, cluster, origin, reached):
    return Clustering(
        round=number,
        clients=clients,
        cluster=cluster,
        origin=origin,
        reached=reached,
        map=[(c, c + 0.5) for c in clients],
    )


def test_clusters_are_judged_by_what_the_clients_had():
    stream = ConceptStream(concepts=3, window=10, mean_duration=1, seed=5)
    clients = [1, 3, 10]
    truth = [stream.concepts_at(c, 4)[0] for c in clients]
    first = with_truth(clustering(4, clients, [0, 0, 1], [2, 2, 1], [2, 0, -1]), stream)
    second = with_truth(clustering(5, [3], [0], [1], [1]), stream)
    assert first.concept == truth
    assert first.ari == pytest.approx(adjusted_rand_score(truth, [0, 0, 1]))
    assert first.effectiveness == pytest.approx(1 / 3)
    assert second.effectiveness == 1
    points = [Points(title="p", frames=[frame]) for frame in (first, second)]
    events = (trained(n, diagnostics={"p": p}) for n, p in enumerate(points, start=4))
    found = record(*events)
    assert found.diagnostics["p"].frames == [first, second]
    judged = found.summary.concepts
    assert judged.effectiveness == pytest.approx(2 / 4)
    assert judged.ari == pytest.approx((first.ari + 1) / 2)
    assert judged.ari_least == min(first.ari, 1)
    assert judged.perfect_rounds == (1 + (first.ari == 1)) / 2
    assert judged.models == 3


def test_without_hidden_concepts_there_is_nothing_to_judge_clusters_by():
    static = ConceptStream(concepts=3, window=10, mean_duration=0, seed=5)
    frame = clustering(1, [1], [0], [0], [0])
    assert with_truth(frame, static) == frame, "all concepts at once"
    points = Points(title="p", frames=[frame])
    summary = record(trained(1, diagnostics={"p": points})).summary
    assert summary.content()["concepts"] == {}


def test_a_clustering_has_one_of_each_for_every_client():
    with pytest.raises(ValueError, match="origin has not one entry for each"):
        clustering(1, [1, 4], [0, 0], [1], [1, 1])


# ---- classes

CLASSES = 4
# Class 2 has no samples, class 3 is never answered, class 0 is common.
LABELS = np.array([0] * 12 + [1] * 4 + [3] * 2)
GIVEN = np.array([0] * 9 + [1, 2, 2] + [1, 1, 0, 0] + [0, 1])


def counted(labels, given):
    """Count by `ClassCounts` what a network answers that answers as given."""
    answers = ClassCounts(lambda x: torch.nn.functional.one_hot(x, CLASSES).float())
    for at in range(0, len(given), 5):
        answers(torch.tensor(given[at : at + 5]))
    return answers.by_class(torch.tensor(labels), CLASSES)


def test_each_class_is_measured_as_scikit_learn_does():
    assert counted(LABELS, GIVEN) == [[9, 2, 0, 0], [12, 4, 0, 2], [12, 4, 2, 0]]
    assert counted(LABELS[:0], GIVEN[:0]) == [[0] * CLASSES] * 3
    theirs = precision_recall_fscore_support(
        LABELS, GIVEN, labels=range(CLASSES), zero_division=np.nan
    )
    counts = np.array(counted(LABELS, GIVEN))
    np.testing.assert_allclose(measures.precision(counts), theirs[0])
    np.testing.assert_allclose(measures.recall(counts), theirs[1])
    there = theirs[3] > 0  # they call F1 of a class without samples 0
    np.testing.assert_allclose(measures.f1(counts)[there], theirs[2][there])
    assert np.isnan(measures.f1(counts)[~there]).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of answers that are no label there
        balanced = balanced_accuracy_score(LABELS, GIVEN)
    labels = np.flatnonzero(there)
    macro = f1_score(LABELS, GIVEN, labels=labels, average="macro", zero_division=0)
    assert np.nanmean(measures.recall(counts)) == pytest.approx(balanced)
    assert np.nanmean(measures.f1(counts)) == pytest.approx(macro)


PETS = [{"name": "t", "dataset": "pets", "class_names": ["cat", "dog"]}] * 2
HALF = [[3, 3], [3, 3], [3, 3]]


def by_class(*events, tasks=PETS, sets=("pets",), **known):
    scenario = {"clients": [tasks, tasks], "datasets": sets}
    return summarize(record(*events, scenario=scenario, counts_classes=True, **known))


def test_measures_are_means_over_classes_then_tasks_then_clients():
    first = [[[8, 1], [10, 2], [9, 3]], HALF]
    second = [[[0, 4], [4, 4], [0, 8]], [[1, 0], [1, 0], [1, 0]]]
    found = by_class(
        evaluated(1, 1, {0: [0.5, 0.5]}, counts=first),
        evaluated(2, 1, {1: [0.5, 0.5]}, counts=second),
    )
    by_client = [((0.8 + 0.5) / 2 + 1) / 2, ((0 + 1) / 2 + 1) / 2]
    assert found.balanced_accuracy == pytest.approx(sum(by_client) / 2)
    f1 = [((16 / 19 + 2 / 5) / 2 + 1) / 2, ((0 + 8 / 12) / 2 + 1) / 2]
    assert found.macro_f1 == pytest.approx(sum(f1) / 2)
    cat, dog = found.per_class
    assert (cat.name, cat.tested, cat.recall) == ("cat", 18, pytest.approx(12 / 18))
    assert dog.precision == pytest.approx((1 + 3 + 4) / (3 + 3 + 8))
    assert dog.f1 == pytest.approx(2 * 8 / (9 + 14))


def test_who_was_gone_after_the_last_task_counts_for_nothing():
    gone = evaluated(1, 0, {0: [1.0]}, counts=[[[4, 4], [4, 4], [4, 4]]])
    found = by_class(gone)
    assert (found.balanced_accuracy, found.per_class) == (None, [])
    half = evaluated(2, 1, {1: [0.5, 0.5]}, counts=[[[1, 0], [1, 1], [2, 0]]] * 2)
    assert by_class(gone, half).balanced_accuracy == 0.5
    never = by_class(gone, half).per_class[1]
    assert (never.tested, never.precision, never.f1) == (2, None, 0.0)


def test_balanced_accuracy_is_told_where_a_test_set_is_unbalanced():
    events = (
        evaluated(1, 0, {0: [0.5], 1: [0.5]}, balanced={0: [0.9], 1: [0.9]}),
        evaluated(
            *(2, 1, {0: [0.5, 0.7], 1: [0.8, 0.8]}),
            balanced={0: [0.25, 0.5], 1: [0.5, 0.7]},
            unbalanced={1: True},
        ),
    )
    found = record(*events)
    mean = pytest.approx(((0.25 + 0.5) / 2 + (0.5 + 0.7) / 2) / 2)
    assert found.unbalanced
    assert summarize(found).balanced_accuracy == mean
    assert "balanced_accuracy" in summarize(found).content()
    # A client that was gone at the end, or reports none, counts for nothing.
    half = evaluated(2, 1, {1: [0.8, 0.8]}, balanced={1: [0.5, 0.7]})
    alone = record(events[0], half)
    assert not alone.unbalanced
    assert "balanced_accuracy" not in summarize(alone).content()
    alone.add(evaluated(2, 0, {0: [0.5]}, unbalanced={0: True}))
    assert summarize(alone).balanced_accuracy == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("known", "names"),
    [
        ({}, ["cat", "dog"]),
        ({"sets": ("pets", "cars")}, ["pets/cat", "pets/dog"]),
        ({"class_names": ["ape", "bee"]}, ["ape", "bee"]),
        # Only the clients know.
        (
            {"tasks": [{"name": "t"}] * 2, "sets": ()},
            ["task 0, class 0", "task 0, class 1"],
        ),
    ],
)
def test_classes_are_called_as_the_server_knows_them(known, names):
    event = evaluated(1, 1, {0: [0.5, 0.5]}, counts=[HALF, HALF])
    assert [one.name for one in by_class(event, **known).per_class][:2] == names


# ---- folders


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A recorded run with matrices and counts by class."""
    folder = tmp_path_factory.mktemp("recorded") / "run"
    size = {"dataset": "digits", "clients": 2, "tasks": 2, "rounds": 1, "seed": 3}
    size |= {"max_train_per_class": 20, "per_class": True}
    fcl.simulate("fedweit", **size, progress=False, output=folder)
    return folder


@pytest.mark.run
def test_the_journal_alone_says_all_that_the_other_files_say(run, copied):
    found = read(run)
    lines = (run / "rounds.jsonl").read_text().splitlines()
    rounds = [json.loads(line) for line in lines]
    kept = [one.line() for one in found.rounds]
    assert json.loads(json.dumps(kept)) == rounds
    summary = json.loads((run / "summary.json").read_text())
    assert json.loads(json.dumps(found.summary.content())) == summary
    diagnostics = json.loads((run / "diagnostics.json").read_text())
    kept = {name: one.model_dump() for name, one in found.diagnostics.items()}
    assert json.loads(json.dumps(kept)) == diagnostics
    assert found.diagnostics.keys() == {"attention", "adapters"}
    expected = np.array(summary["client_accuracy"], float)
    np.testing.assert_array_equal(found.accuracy, expected)
    assert len((run / "accuracy.csv").read_text().splitlines()) == 1 + sum(
        len(one.accuracy) for test in found.tests for one in test.scores.values()
    )
    assert found.progress is None

    again = read(copied)
    assert again.outcome == found.outcome
    assert again.diagnostics == found.diagnostics


@pytest.fixture
def copied(run, tmp_path):
    """The files of the recorded run from which it is read while it goes on."""
    for name in ("journal.jsonl", "scenario.json", "progress.json"):
        shutil.copy(run / name, tmp_path)
    return tmp_path


@pytest.mark.run
def test_an_unfinished_run_is_read_up_to_its_last_whole_line(copied):
    path = copied / "journal.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:4]) + whole[4][:-5])
    found = read(copied)
    assert found.outcome is None
    assert len(found.rounds) == 1
    assert found.progress.rounds == 2
    assert found.progress.at > 1e9
    assert found.summary.average_accuracy is not None


@pytest.mark.run
def test_damage_is_told_with_the_name_of_the_file(copied):
    path = copied / "journal.jsonl"
    good = path.read_bytes()
    path.write_bytes(good.replace(b'"task": 0', b'"task": 1', 1))
    with pytest.raises(ConfigError, match=r"journal\.jsonl: got .*wrong checksum"):
        read(copied)
    path.write_bytes(good)
    (copied / "scenario.json").write_text('{"name": 3}')
    with pytest.raises(ConfigError, match=r"scenario\.json: name: got 3"):
        read(copied)
    (copied / "scenario.json").unlink()
    with pytest.raises(ConfigError, match=r"scenario\.json: got .*No such file"):
        read(copied)


@pytest.mark.run
def test_a_folder_without_a_run_is_refused(run, tmp_path):
    assert not is_run(tmp_path)
    (tmp_path / "journal.jsonl").write_text("what another program has left\n")
    assert not is_run(tmp_path)
    with pytest.raises(ConfigError, match="expected that of a run"):
        read(tmp_path)
    assert is_run(run)
    assert runs_in(run) == runs_in(run.parent) == [run]
