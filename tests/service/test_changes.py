"""Runs that get more tasks or clients, beside runs that were planned that long."""

import json

import local_runs
import numpy as np
import pytest
from fakes import (
    InProcessTransport,
    rounds_of,
    run_in_process,
    summary_of,
    tiny,
    trained_by,
)
from local_runs import NODES, check_extended, config, outcome, pulled_in, run
from resuming import PulledPlugError

import fcl_flower as fcl
from fcl_flower.core.errors import ConfigError
from fcl_flower.data.scenarios.given import GivenTasks, TaskSamples
from fcl_flower.results import journal
from fcl_flower.results.record import read
from fcl_flower.results.run_folder import CHECKPOINT, CLIENTS
from fcl_flower.rounds.checkpoint import FolderStateStore
from fcl_flower.rounds.messages import decode_payload
from fcl_flower.service.changes import extend
from fcl_flower.simulation.in_process import run_simulated

SINGLE = {"model.head": "single", "data.class_names": "c0,c1,c2,c3"}


def add_task(folder, number, client):
    names = [f"c{(client + number + k) % 4}" for k in range(2)]
    local_runs.add_task(folder, number + 1, 10 * client + number, names)


@pytest.fixture
def places(tmp_path):
    """Three clients with four tasks of two classes each."""
    for client in range(3):
        for number in range(4):
            add_task(tmp_path / f"data-{client}", number, client)
    return [{"data-path": str(tmp_path / f"data-{client}")} for client in range(3)]


# ---------------------------------------------------------------- more tasks


@pytest.mark.run
@pytest.mark.parametrize(
    ("strategy", "others"),
    [
        ("fedweit", {}),
        ("replay", SINGLE),
        pytest.param("fedavg", {}, marks=pytest.mark.soak),
        pytest.param("scaffold", {}, marks=pytest.mark.soak),
        pytest.param("analytic", {"rounds": 1}, marks=pytest.mark.soak),
    ],
)
def test_a_run_with_more_tasks_ends_as_one_that_was_planned_longer(
    tmp_path, places, strategy, others
):
    shape = {"strategy": strategy, **others}
    check_extended(tmp_path, places, {"tasks": 2}, {"tasks": 4}, **shape)


@pytest.mark.run
def test_fedseit_goes_on_with_texts(tmp_path):
    words = {label: [f"{label}{n}" for n in range(6)] for label in ("good", "bad")}
    vectors = tmp_path / "vectors.txt"
    rng = np.random.default_rng(0)
    vectors.write_text(
        "".join(
            f"{word} {' '.join(f'{v:.3f}' for v in rng.normal(size=5))}\n"
            for of_label in words.values()
            for word in of_label
        )
    )
    places = []
    for client in range(2):
        for number in range(3):
            task = tmp_path / f"texts-{client}" / f"task-{number + 1:02}"
            task.mkdir(parents=True)
            lines = [
                json.dumps({"text": " ".join(rng.choice(known, 4)), "label": label})
                for label, known in words.items()
                for _ in range(6)
            ]
            (task / "train.jsonl").write_text("\n".join(lines) + "\n")
        folder = str(tmp_path / f"texts-{client}")
        places.append({"data-path": folder, "word-vectors": str(vectors)})
    shape = {"strategy": "fedseit", "model": "kim-cnn", "num_features": 5, "rounds": 1}
    check_extended(tmp_path, places, {"tasks": 1}, {"tasks": 3}, **shape)


@pytest.mark.run
def test_tasks_that_are_added_may_have_more_rounds(tmp_path, places):
    shape = {"strategy": "fedavg", "tasks": 3}
    run(config(tmp_path / "long", **shape, rounds_by_task="2,2,3"), places)
    run(config(tmp_path / "short", **{**shape, "tasks": 2}), places)
    run(extend(tmp_path / "short", tasks=3, rounds=3), places)
    found, planned = (summary_of(tmp_path / name) for name in ("short", "long"))
    assert found["client_accuracy"] == planned["client_accuracy"]
    assert found["total_rounds"] == planned["total_rounds"] == 7
    tasks = [row["task"] for row in rounds_of(tmp_path / "short")]
    assert tasks == [0, 0, 1, 1, 2, 2, 2]
    assert outcome(tmp_path / "short")[1] == outcome(tmp_path / "long")[1]


ASYNCHRONOUS = {"asynchronous": True, "simulated_durations": "1,1.75"}


@pytest.mark.run
@pytest.mark.parametrize(
    ("strategy", "others"),
    [
        ("fedweit", {}),
        pytest.param("fedavg", ASYNCHRONOUS, marks=pytest.mark.soak),
        pytest.param("fedweit", ASYNCHRONOUS, marks=pytest.mark.soak),
    ],
)
def test_a_run_that_has_not_finished_goes_on_to_more_tasks(
    tmp_path, places, strategy, others
):
    shape = {"strategy": strategy, **others}
    run(config(tmp_path / "long", **shape, tasks=3), places)
    short = config(tmp_path / "short", **shape)
    with pytest.raises(PulledPlugError):
        run_in_process(short, NODES[:2], places=places[:2], tamper=pulled_in(2))
    run(extend(tmp_path / "short", tasks=3), places)
    assert outcome(tmp_path / "short") == outcome(tmp_path / "long")


@pytest.mark.run
def test_the_journal_tells_when_a_run_was_extended(tmp_path, places):
    run(config(tmp_path / "run", strategy="fedavg"), places)
    for tasks in (3, 4):
        run(extend(tmp_path / "run", tasks=tasks), places)
    events = [*journal.replay(tmp_path / "run" / journal.FILE)]
    told = [
        (event.round, event.begun.about.tasks)
        for event in events
        if type(event).__name__ == "Extended"
    ]
    assert told == [(4, 3), (6, 4)]
    assert events[0].about.tasks == 2
    record = read(tmp_path / "run")
    assert record.finished
    assert record.accuracy.shape == (2, 4, 4)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "2 clients, 4 tasks each" in page


# ---------------------------------------------------------------- plans


DATA = fcl.datasets.from_arrays(
    *[
        part
        for y in [np.repeat(np.arange(6), 12)]
        for x in [np.eye(64)[y].reshape(-1, 8, 8)]
        for part in (x, y, x, y)
    ]
)


def given(head):
    rows = [np.flatnonzero(DATA.train.y // 2 == task) for task in range(3)]
    return GivenTasks(DATA, tuple(TaskSamples(r, r) for r in rows), head)


@pytest.mark.run
@pytest.mark.usefixtures("one_thread")
def test_a_simulation_goes_on_where_its_plan_is_the_beginning_of_the_longer_one(
    tmp_path,
):
    shape = {"clients": 2, "rounds": 2, "model": "small", "progress": False}
    shape |= {"keep_clients": True, "data": given("multi")}
    whole = fcl.simulate("fedweit", tasks=3, **shape)
    fcl.simulate("fedweit", tasks=2, output=tmp_path / "run", **shape)
    go_on = {"resume": tmp_path / "run", "data": given("multi"), "progress": False}
    with pytest.raises(ConfigError, match=r"tasks: got 2, expected more than the 2"):
        fcl.simulate(**go_on)
    with pytest.raises(ConfigError, match="epochs: got 2, expected none beside resume"):
        fcl.simulate(**go_on, epochs=2)
    longer = fcl.simulate(**go_on, tasks=3)
    assert longer.folder == tmp_path / "run"
    np.testing.assert_array_equal(longer.accuracy, whole.accuracy)
    # At the first end, too, each client has told its accuracies without the task.
    assert 0 < longer.bytes_up - whole.bytes_up < 2 * 50


@pytest.mark.run
@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"clients": 4}, "scenario overlapped shares out its samples anew"),
        ({"scenario": "concepts", "classes_per_task": 0}, "what all tasks share out"),
        ({"scenario": "class-incremental"}, "samples anew|other places for classes"),
        ({"model.head": "single", "clients": 1}, "has other places for classes"),
    ],
)
def test_a_plan_that_would_be_another_is_refused_and_nothing_changes(
    tmp_path, settings, why
):
    shape = {"strategy": "fedavg", "client_state": str(tmp_path / CLIENTS)}
    run_in_process(tiny(tmp_path, **{**shape, **settings}))
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(ConfigError, match=f"tasks: got 3, expected 2 .*{why}"):
        extend(tmp_path, tasks=3)
    with pytest.raises(ConfigError, match=r"clients: got 5, expected \d, among which"):
        extend(tmp_path, clients=5)
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.run
def test_an_asynchronous_plan_is_refused_once_a_client_has_come_to_its_end(tmp_path):
    shape = {"asynchronous": True, "clients": 1, "model.head": "multi"}
    state = {"strategy": "fedavg", "client_state": str(tmp_path / CLIENTS)}
    run_in_process(tiny(tmp_path, **shape, **state))
    with pytest.raises(ConfigError, match="a client that came to its end before"):
        extend(tmp_path, tasks=3)


@pytest.mark.run
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"tasks": 1}, "tasks: got 1, expected at least the 2 that the run has"),
        ({"tasks": 2}, "tasks: got 2, expected more than the 2"),
        ({"clients": 1, "tasks": 3}, "clients: got 1, expected at least the 2"),
        ({"clients": 3}, "tasks: got 2, expected more than the 2"),
        ({"rounds": 5}, "rounds: got 5, expected none without more tasks"),
        ({"tasks": "3"}, "scenario.tasks: got '3'"),
        ({"tasks": 3, "rounds": 0}, "rounds_per_task: got 0, expected more than 0"),
    ],
)
def test_less_than_a_run_has_is_refused(tmp_path, places, more, said):
    run(config(tmp_path / "run", strategy="fedavg", rounds=1), places)
    with pytest.raises(ConfigError, match=said):
        extend(tmp_path / "run", **more)
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.run
def test_a_simulation_that_kept_no_client_has_nothing_to_go_on_from(tmp_path, places):
    shape = {"strategy": "fedavg", "rounds": 1, "client_state": str(tmp_path / "gone")}
    run(config(tmp_path / "run", **shape), places)
    with pytest.raises(ConfigError, match=r"run\.keep_clients=true"):
        extend(tmp_path / "run", tasks=3)


# ---------------------------------------------------------------- more clients


@pytest.mark.run
@pytest.mark.parametrize(
    ("strategy", "others"),
    [
        ("fedweit", {}),
        ("replay", SINGLE),
        ("analytic", {}),
        ("concept-matching", SINGLE),
        pytest.param("fedavg", {}, marks=pytest.mark.soak),
        pytest.param("fedavg", SINGLE, marks=pytest.mark.soak),
        pytest.param("matched-ensemble", {}, marks=pytest.mark.soak),
        pytest.param("fedcurv", {}, marks=pytest.mark.soak),
        pytest.param("scaffold", {}, marks=pytest.mark.soak),
    ],
)
def test_a_client_that_joins_counts_its_own_tasks(tmp_path, places, strategy, others):
    folder = tmp_path / "run"
    run(config(folder, strategy=strategy, **others), places)
    transport = run(extend(folder, tasks=4, clients=3), places)
    stages = trained_by(transport, 2)
    asked = [(stage.round, stage.task, stage.starts_task) for stage in stages]
    assert asked == [(5, 0, True), (6, 0, False), (7, 1, True), (8, 1, False)]
    summary = summary_of(folder)
    accuracy = np.array(summary["client_accuracy"], float)
    assert accuracy.shape == (3, 4, 4)
    measured = ~np.isnan(accuracy)
    for client in (0, 1):
        np.testing.assert_array_equal(measured[client], np.tri(4, dtype=bool))
    own = np.zeros((4, 4), bool)
    own[2:, 2:] = np.tri(2, dtype=bool)
    np.testing.assert_array_equal(measured[2], own)
    assert summary["untrained_client_tasks"] == 0
    assert not summary["left_out"]
    rows = (folder / "accuracy.csv").read_text().splitlines()
    assert [row.split(",")[:5] for row in rows if row.split(",")[2] == "2"] == [
        ["6", "2", "2", "2", "task 2"],
        ["8", "3", "2", "2", "task 2"],
        ["8", "3", "2", "3", "task 3"],
    ]


@pytest.mark.run
def test_who_joins_starts_from_what_the_federation_knows(tmp_path, places):
    run(config(tmp_path / "run", strategy="fedavg", rounds=2), places)
    known = FolderStateStore(tmp_path / "run" / CHECKPOINT).load().state["base"]
    received = {}

    class Watched(InProcessTransport):
        def answer(self, request, place):
            if request.kind == "train":
                received.setdefault(place.number, request)
            return super().answer(request, place)

    resumed = extend(tmp_path / "run", tasks=3, clients=3)
    transport = Watched(NODES, resumed, places=places)
    run_simulated(transport, resumed)
    found = decode_payload(received[2].content, 2**30)["base"]
    for name, value in known.items():
        np.testing.assert_array_equal(np.asarray(found[name]), np.asarray(value))


@pytest.mark.run
def test_who_joins_in_the_midst_of_a_task_has_the_rest_of_its_rounds(tmp_path, places):
    short = config(tmp_path / "run", strategy="fedweit", rounds=3)
    with pytest.raises(PulledPlugError):
        run_in_process(short, NODES[:2], places=places[:2], tamper=pulled_in(5))
    resumed = extend(tmp_path / "run", clients=3)
    assert resumed.scenario.joined == "0,0,4"
    transport = run(resumed, places)
    stages = trained_by(transport, 2)
    assert [(s.round, s.task, s.starts_task, s.ends_task) for s in stages] == [
        (5, 0, True, False),
        (6, 0, False, True),
    ]
    planned = config(
        tmp_path / "planned", strategy="fedweit", rounds=3, clients=3, joined="0,0,4"
    )
    run(planned, places)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "planned")


@pytest.mark.run
def test_who_joins_an_asynchronous_run_has_missed_the_rounds_of_the_fastest(
    tmp_path, places
):
    short = config(tmp_path / "run", strategy="fedavg", asynchronous=True, rounds=3)
    slow = {"delay": lambda client: 30 * client, "tamper": pulled_in(5, who=0)}
    with pytest.raises(PulledPlugError):
        run_in_process(short, NODES[:2], places=places[:2], **slow)
    assert extend(tmp_path / "run", clients=3).scenario.joined == "0,0,4"


@pytest.mark.run
def test_a_client_joins_an_asynchronous_run(tmp_path, places):
    folder = tmp_path / "run"
    run(config(folder, strategy="fedavg", asynchronous=True), places)
    transport = run(extend(folder, tasks=4, clients=3), places)
    assert [stage.task for stage in trained_by(transport, 2)] == [0, 0, 1, 1]
    accuracy = np.array(summary_of(folder)["client_accuracy"], float)
    assert not np.isnan(accuracy[2, 3, 2:]).any()
    assert np.isnan(accuracy[2, :, :2]).all()
    assert summary_of(folder)["total_rounds"] == len(rounds_of(folder)) == 20


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"joined": "0,x"}, r"scenario\.joined: got '0,x', expected a number for each"),
        ({"joined": "0"}, r"scenario\.joined: got '0', expected a number for each"),
        ({"joined": "1,2"}, r"scenario\.joined: got '1,2'"),
        ({"joined": "0,4"}, r"all below the 4 rounds of the run"),
        ({"rounds_by_task": "2,0"}, r"federation\.rounds_by_task: got '2,0', expected"),
        ({"rounds_by_task": "1,1,1"}, r"for up to 2 tasks"),
        (
            {"sat_out": "2:0"},
            r"scenario\.sat_out: got '2:0', expected pairs of a client",
        ),
        ({"sat_out": "1:2"}, r"scenario\.sat_out: got '1:2'"),
        ({"sat_out": "1"}, r"scenario\.sat_out: got '1'"),
        ({"sat_out": "0:1,1:1"}, r"and a client that learns each task"),
        ({"sat_out": "1:1", "asynchronous": True}, r"none in an asynchronous run"),
    ],
)
def test_lists_that_are_none_are_refused(tmp_path, places, settings, said):
    with pytest.raises(ConfigError, match=said):
        run(config(tmp_path / "run", strategy="fedavg", **settings), places)


@pytest.mark.run
def test_a_head_that_has_grown_predicts_by_the_names_of_all_tasks(tmp_path, places):
    where = [
        {**place, "state-path": str(tmp_path / f"state-{n}" / "memory")}
        for n, place in enumerate(places)
    ]
    shape = {"strategy": "fedavg", "model.head": "single", "client_state": "context"}
    run(config(tmp_path / "run", tasks=1, **shape), where)
    assert fcl.load(tmp_path / "state-0").about.head == ("c0", "c1", "c2")
    run(extend(tmp_path / "run", tasks=3), where)

    model = fcl.load(tmp_path / "state-0")
    assert model.versions == ("task-01", "task-02", "task-03")
    assert model.about.head == ("c0", "c1", "c2", "c3")
    (answer,) = model.predict(np.array([[18.0, -18.0, 6.0]]))
    assert answer.probabilities.keys() == {"c0", "c1", "c2", "c3"}
