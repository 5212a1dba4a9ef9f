"""Hidden concepts: how they are cut, dealt, and met round by round."""

from collections import Counter

import numpy as np
import pytest
import torch
from fakes import diagnostics_of, rounds_of, run_in_process, summary_of, tiny
from plans import NOWHERE, draw

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.arrays import ImageDataset
from fcl_flower.data.datasets import Split
from fcl_flower.data.examples import (
    Examples,
    InputSpec,
    concat,
    concept_data,
    task_examples,
)
from fcl_flower.data.registry import load_dataset
from fcl_flower.data.scenarios.concepts import (
    ConceptsParams,
    concept_groups,
    concept_tasks,
)
from fcl_flower.data.scenarios.plan import ConceptStream, ScenarioSpec
from fcl_flower.rounds import messages

FORM = InputSpec((1, 8, 8), single_head=True)
NAMES = ("digits", "rotated-90:digits", "relabelled-3:digits")
ALL = "=".join(NAMES)


def source(name, classes, train_each, test_each=4):
    """Make a data set whose samples are all alike but for their labels."""
    train, test = (
        Split(
            np.zeros((classes * each, 2, 2), np.uint8),
            np.tile(np.arange(classes), each),
        )
        for each in (train_each, test_each)
    )
    names = tuple(f"{name}-{label}" for label in range(classes))
    return ImageDataset(name, train, test, names)


def spec(one, clients, valid_fraction):
    """Describe one concept of all of a data set."""
    return ScenarioSpec((one,), clients, 1, 0, valid_fraction, ConceptsParams(), seed=1)


def plan(**values):
    return draw(
        "concepts", **{"clients": 5, "seed": 3, "valid_fraction": 0.2, **values}
    )


# ---- which classes make a concept


def test_every_data_set_is_a_concept():
    groups = concept_groups([source("a", 3, 4), source("b", 2, 4)], 2, seed=0)
    assert [(g.name, g.labels) for g in groups] == [("a", (0, 1, 2)), ("b", (0, 1))]


def test_further_concepts_go_where_most_classes_are():
    def drawn(seed):
        return concept_groups(
            [source("few", 4, 4), source("many", 11, 4)], 4, seed=seed
        )

    groups = drawn(0)
    assert [g.name for g in groups] == ["few", "many/0", "many/1", "many/2"]
    assert sorted(len(g.labels) for g in groups[1:]) == [3, 4, 4]
    dealt = [label for g in groups[1:] for label in g.labels]
    assert sorted(dealt) == list(range(11))
    assert all(list(g.labels) == sorted(g.labels) for g in groups)
    labels = [g.labels for g in groups]
    assert [g.labels for g in drawn(0)] == labels != [g.labels for g in drawn(1)]


@pytest.mark.parametrize(
    ("sets", "concepts", "sentence"),
    [
        ("ab", 1, "tasks: got 1, expected at least one concept for each of the 2 data"),
        ("a", 4, "tasks: got 4, .* each of the 3 classes"),
    ],
)
def test_a_number_of_concepts_that_the_sets_do_not_give_is_refused(
    sets, concepts, sentence
):
    with pytest.raises(ConfigError, match=sentence):
        concept_groups([source(name, 3, 4) for name in sets], concepts, seed=0)


# ---- which samples a client has of it


def test_chunks_share_out_every_sample_once_and_in_equal_parts():
    one = source("a", 3, train_each=11, test_each=5)
    clients = concept_tasks(spec(one, 4, 0.25))
    tasks = [concepts[0] for concepts in clients]
    train = [np.concatenate([t.train, t.valid]) for t in tasks]
    for parts, total in ((train, 33), ([t.test for t in tasks], 15)):
        assert sorted(np.concatenate(parts).tolist()) == list(range(total))
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1
    for part in train:
        of_class = Counter(one.train.y[part].tolist())
        assert set(of_class.values()) <= {2, 3}
    assert {len(t.valid) for t in tasks} == {2}


def test_a_class_with_fewer_samples_than_clients_leaves_nobody_empty():
    clients = concept_tasks(spec(source("a", 2, train_each=10, test_each=5), 10, 0.5))
    assert {(len(c[0].train), len(c[0].test)) for c in clients} == {(1, 1)}
    with pytest.raises(ConfigError, match=r"clients: got 9, expected at most 8, .*a'"):
        concept_tasks(spec(source("a", 2, train_each=10), 9, 0.5))
    # One of two training samples is held out.
    with pytest.raises(
        ConfigError, match=r"clients: got 9, expected at most 8, .*trai"
    ):
        concept_tasks(spec(source("a", 2, train_each=8, test_each=9), 9, 0.5))


# ---- what a client meets when


def test_each_round_a_concept_is_met_at_random():
    stream = ConceptStream(concepts=4, window=10, mean_duration=1, seed=5)
    met = np.array(
        [[stream.concept_at(c, r) for r in range(1, 201)] for c in range(20)]
    )
    assert stream.concepts_at(3, 7) == (met[3, 6],)
    share = np.bincount(met.ravel(), minlength=4) / met.size
    np.testing.assert_allclose(share, 0.25, atol=0.03)
    kept = (met[:, 1:] == met[:, :-1]).mean()
    assert kept == pytest.approx(1 / 4, abs=0.03)
    assert (met[0] != met[1]).any()


def test_drift_keeps_a_client_with_its_concept():
    stream = ConceptStream(concepts=4, window=10, mean_duration=8, seed=5)
    met = np.array(
        [[stream.concept_at(c, r) for r in range(1, 301)] for c in range(20)]
    )
    moved = (met[:, 1:] != met[:, :-1]).mean()
    # Drawn anew with probability 1/8, and then another one in three of four cases.
    assert moved == pytest.approx(3 / 4 / 8, abs=0.015)
    # Longer than Python allows calls.
    forever = ConceptStream(concepts=4, window=10, mean_duration=10**9, seed=5)
    assert forever.concepts_at(0, 3000) == forever.concepts_at(0, 1)


def test_the_window_goes_round_the_chunk_without_a_gap():
    stream = ConceptStream(concepts=1, window=4, mean_duration=1, seed=0)
    chunk = np.arange(100, 110)
    windows = [stream.samples(2, number, 0, chunk) for number in range(1, 6)]
    assert all(len(w) == 4 and len(set(w.tolist())) == 4 for w in windows)
    # Five windows of four go exactly twice round ten samples.
    assert set(Counter(np.concatenate(windows).tolist()).values()) == {2}
    assert sorted(np.concatenate(windows[:2]).tolist()) != chunk[:8].tolist()


def test_the_window_waits_where_it_was_while_other_concepts_are_met():
    stream = ConceptStream(concepts=3, window=5, mean_duration=1, seed=9)
    chunk = np.arange(10)
    visits = [r for r in range(1, 60) if stream.concepts_at(0, r) == (1,)]
    first, second, third = (stream.samples(0, r, 1, chunk) for r in visits[:3])
    assert sorted([*first.tolist(), *second.tolist()]) == chunk.tolist()
    assert first.tolist() == third.tolist()


def test_all_concepts_at_once_are_all_samples():
    stream = ConceptStream(concepts=3, window=2, mean_duration=0, seed=0)
    assert stream.concepts_at(4, 9) == (0, 1, 2)
    assert stream.samples(4, 9, 1, np.arange(7)).tolist() == list(range(7))
    larger = ConceptStream(concepts=1, window=320, mean_duration=1, seed=0)
    assert larger.samples(0, 3, 0, np.arange(7)).tolist() == list(range(7))


def test_a_round_s_data_are_the_window_of_the_concept_with_labels_of_one_head():
    found = plan(window=10)
    seen = concept_data(found, 2, 5, FORM)
    concept = found.stream.concept_at(2, 5)
    task = found.clients[2][concept]
    assert (len(seen.train.y), seen.classes) == (10, 10)
    assert (len(seen.valid.y), len(seen.test.y)) == (len(task.valid), len(task.test))
    indices = found.stream.samples(2, 5, concept, task.train)
    y = load_dataset("digits", NOWHERE).train.y
    assert seen.train.y.tolist() == y[indices].tolist()


def test_static_data_are_all_chunks_together():
    found = plan(mean_duration=0)
    seen = concept_data(found, 1, 1, FORM)
    chunks = found.clients[1]
    assert len(seen.train.y) == sum(len(t.train) for t in chunks)
    assert len(seen.train.x) == len(seen.train.y)
    assert set(seen.train.y.tolist()) == set(range(10))
    assert len(seen.test.y) == sum(len(t.test) for t in chunks)
    assert torch.equal(seen.train.x, concept_data(found, 1, 9, FORM).train.x)


def test_texts_of_different_lengths_are_padded_together():
    short = Examples(torch.tensor([[1, 2]]), torch.tensor([0]))
    long = Examples(torch.tensor([[3, 4, 5]]), torch.tensor([1]))
    none = Examples(torch.zeros(0, 0, dtype=torch.int64), torch.tensor([]).long())
    found = concat([none, short, long])
    assert found.x.tolist() == [[1, 2, 0], [3, 4, 5]]
    assert found.y.tolist() == [0, 1]
    assert len(concat([none, none]).y) == 0


def test_the_plan_says_how_concepts_are_met():
    usual, drift, static = (plan(mean_duration=rounds) for rounds in (1, 8, 0))
    assert "4 hidden concepts, one a round, 320 samples" in usual.describe()
    assert "one for 8 rounds or so" in drift.describe()
    assert "all at once" in static.describe()
    assert drift.to_dict()["stream"] == {"window": 320, "mean_duration": 8}
    # The same chunks, however they are met: rows of one table.
    assert static.to_dict()["clients"] == drift.to_dict()["clients"]


# ---- labels that concepts share


def shared(names=NAMES, merged=ALL):
    return plan(datasets=names, clients=2, tasks=3, merge_labels=merged)


def test_one_head_has_each_label_once():
    assert shared(merged="").num_labels == 30
    assert shared().labels == tuple(("digits", label) for label in range(10))
    assert {len(task.classes) for task in shared().clients[0]} == {10}


def test_the_same_image_has_another_label_where_classes_have_other_names():
    for concept, moved in ((0, 0), (1, 0), (2, 3)):
        task = shared().clients[1][concept]
        found = task_examples(shared(), 1, concept, "test", FORM)
        y = load_dataset(NAMES[concept], NOWHERE).test.y[task.test]
        np.testing.assert_array_equal(found.y, (y + moved) % 10)


def test_a_window_has_the_labels_of_its_concept():
    for number in range(1, 9):
        concept = shared().stream.concept_at(0, number)
        chunk = shared().clients[0][concept].train
        window = shared().stream.samples(0, number, concept, chunk)
        y = load_dataset(NAMES[concept], NOWHERE).train.y[window]
        found = concept_data(shared(), 0, number, FORM)
        np.testing.assert_array_equal(found.train.y, (y + 3 * (concept == 2)) % 10)


def test_held_out_samples_have_the_labels_that_the_sets_share():
    """A row's candidates run on held-out samples of the sets that the row names."""
    held = tuple(f"held-out:{name}" for name in NAMES)
    chosen = shared(held)
    assert chosen.num_labels == shared().num_labels == 10
    for name, other in zip(NAMES, held, strict=True):
        for label in range(10):
            expected = shared().label_index(name, label)
            assert chosen.label_index(other, label) == expected


# ---- a whole run


def hidden(folder, **values):
    small = {"classes_per_task": 0, "rounds": 3, "scenario": "concepts"}
    return tiny(folder, **{**small, "strategy": "fedavg", **values})


@pytest.mark.run
def test_a_run_is_evaluated_on_every_concept_all_along(tmp_path):
    run_in_process(hidden(tmp_path, rounds=5, evaluate_every=2))
    rows = (tmp_path / "accuracy.csv").read_text().splitlines()[1:]
    told = [tuple(map(int, row.split(",")[:4])) for row in rows]
    expected = [(r, 0, c, i) for r in (2, 4, 5) for c in (0, 1) for i in (0, 1)]
    assert told == expected
    found = summary_of(tmp_path)
    assert found["total_rounds"] == found["rounds"] == 5
    assert found["accuracy_matrix"][0] == [None, None]
    last = [float(row.split(",")[-1]) for row in rows[-4:]]
    assert found["client_accuracy"][0][1] == last[:2]
    assert found["average_accuracy"] == pytest.approx(np.mean(last))
    assert found["learning_accuracy"] is found["backward_transfer"] is None
    means = np.array([float(r.split(",")[-1]) for r in rows]).reshape(3, 2, 2).mean(1)
    lost = (means[:2].max(0) - means[2]).mean()
    assert found["forgetting"] == pytest.approx(lost)
    assert found["hidden"] == {"window": 320, "mean_duration": 1, "reveal_ids": False}
    assert found["concepts"] == {}
    assert not (tmp_path / "diagnostics.json").exists()


@pytest.mark.run
def test_nobody_who_learns_is_told_the_concept(tmp_path):
    transport = run_in_process(hidden(tmp_path, clients=3, tasks=3, rounds=4))
    stages = [
        dict(request.content.scalars[messages.STAGE])
        for _, request in transport.asked
        if request.kind != "query"
    ]
    assert stages
    assert {stage["task"] for stage in stages} == {0}
    assert all(stage["first"] and stage["last"] for stage in stages)
    assert len({tuple(sorted(stage)) for stage in stages}) == 1


@pytest.mark.run
@pytest.mark.parametrize("strategy", ["local", "ewc"])
def test_other_methods_run_on_hidden_concepts(tmp_path, strategy):
    run_in_process(hidden(tmp_path, strategy=strategy))
    assert [row["failed"] for row in rounds_of(tmp_path)] == [[]] * 3
    assert summary_of(tmp_path)["average_accuracy"] > 0


# ---- Concept Matching from end to end


def matching(folder, **values):
    given = {"clients": 6, "tasks": 3, "rounds": 6}
    given["strategy.params"] = "concepts = 3"
    return hidden(folder, **{**given, "strategy": "concept-matching", **values})


@pytest.mark.run
def test_clients_may_be_absent_come_late_or_leave(tmp_path):
    trained = Counter()

    def unreliable(client, request, reply):
        if request.kind != "train":
            return reply
        trained[client] += 1
        late = client == 0 and trained[client] <= 2
        gone = client == 1 and trained[client] > 2
        return None if late or gone else reply

    config = matching(tmp_path, client_fraction=0.7, timeout=0.2, seed=1)
    run_in_process(config, tamper=unreliable)
    rows = rounds_of(tmp_path)
    assert [len(row["clients"]) + len(row["failed"]) for row in rows] == [4] * 6
    assert any(row["failed"] for row in rows)
    told = diagnostics_of(tmp_path)["map"]["frames"]
    assert [one["clients"] for one in told] == [row["clients"] for row in rows]
    assert summary_of(tmp_path)["concepts"]["models"] > 1


@pytest.mark.fuzz
@pytest.mark.run
def test_matching_beats_averaging_over_concepts_by_far(tmp_path):
    found = {}
    for name, text in (("concept-matching", "concepts = 3"), ("fedavg", "")):
        given = {"strategy": name, "strategy.params": text}
        config = matching(tmp_path / name, **given, clients=9, rounds=8, seed=2)
        run_in_process(config)
        found[name] = summary_of(tmp_path / name)["average_accuracy"]
    assert found["concept-matching"] > found["fedavg"] + 0.1


@pytest.mark.run
def test_alone_a_client_keeps_all_concept_models_to_itself(tmp_path):
    transport = run_in_process(matching(tmp_path, local_only=True, clients=2, rounds=8))
    assert not any(request.content.tensors for _, request in transport.asked)
    assert summary_of(tmp_path)["average_accuracy"] > 0.5
    assert summary_of(tmp_path)["model_bytes"] > 0
