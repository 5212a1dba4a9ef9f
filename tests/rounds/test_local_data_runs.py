"""Whole runs in which every client has data of its own, and the server has none."""

import errno
import json
import logging
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from fakes import diagnostics_of, rounds_of, run_in_process, summary_of
from PIL import Image

import fcl_flower as fcl
from fcl_flower.cli.main import cli
from fcl_flower.config.run_config import RunConfig
from fcl_flower.config.run_spec import NodeConfig
from fcl_flower.core.errors import ConfigError, RoundError, WireError, config_error
from fcl_flower.core.types import Assignment, TaskStage
from fcl_flower.data.local import client as client_data
from fcl_flower.data.local import client as task
from fcl_flower.rounds import messages
from fcl_flower.rounds.answers import answer, answered
from fcl_flower.rounds.checkpoint import FolderStateStore
from fcl_flower.rounds.client import Client
from fcl_flower.rounds.place import Place
from fcl_flower.rounds.transport import Content
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve, with_local_data


@pytest.fixture(autouse=True)
def fresh_cache():
    for cached in (task._loaded, client_data._examples, client_data._cached_vectors):
        cached.cache_clear()


def table(classes, seed, each=20):
    """Return a table of clouds around far corners, one a class."""
    rng = np.random.default_rng(seed)
    lines = ["x,label,y,z"]
    for number, name in enumerate(classes):
        corner = 6 * np.array([number, -number, 1])
        for x, y, z in corner + rng.normal(size=(each, 3)):
            lines.append(f"{x:.3f},{name},{y:.3f},{z:.3f}")
    return "\n".join(lines) + "\n"


def client_folder(folder, tasks):
    for number, text in enumerate(tasks, 1):
        task = folder / f"task-{number:02}"
        task.mkdir(parents=True)
        (task / "train.csv").write_text(text)
    return folder


@pytest.fixture
def places(tmp_path):
    """Two clients with two tasks each; of other classes, and of other sizes."""
    first = [table(["ant", "bee"], 0), table(["cow", "dog", "emu"], 1)]
    second = [table(["car", "bus"], 2, each=10), table(["ant", "bee"], 3)]
    return [
        {"data-path": str(client_folder(tmp_path / name, tasks))}
        for name, tasks in (("a", first), ("b", second))
    ]


def config(tmp_path, **values):
    settings = {
        "strategy": "fedavg",
        "scenario": "local-data",
        "model": "mlp",
        "num_features": 3,
        "classes_per_task": 3,
        "tasks": 2,
        "rounds": 2,
        "epochs": 5,
        "output": str(tmp_path / "run"),
    }
    return RunConfig.from_settings(**{**settings, **values})


NODES = [71, 23]


# ---------------------------------------------------------------- runs


@pytest.mark.run
@pytest.mark.parametrize("strategy", ["fedavg", "fedweit"])
def test_clients_learn_from_their_own_folders(tmp_path, places, strategy):
    run_in_process(config(tmp_path, strategy=strategy), NODES, places=places)
    summary = summary_of(tmp_path / "run")
    assert (summary["clients"], summary["dataset"]) == (2, "")
    assert summary["sample_accuracy"] == [None, None]
    assert summary["average_accuracy"] > 0.7
    assert all(not row["failed"] for row in rounds_of(tmp_path / "run"))


@pytest.mark.run
def test_the_server_writes_nothing_of_what_is_in_the_data(tmp_path, places):
    run_in_process(config(tmp_path, strategy="fedweit"), NODES, places=places)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "2 clients, 2 tasks each." in page
    assert "on the clients&#x27; local data, model mlp" in page.replace(
        "&#39;", "&#x27;"
    )
    plan = json.loads((tmp_path / "run" / "scenario.json").read_text())
    assert plan["clients"] == [[{"name": "task 0"}, {"name": "task 1"}]] * 2
    told = "".join(
        path.read_text() for path in (tmp_path / "run").iterdir() if path.is_file()
    )
    for secret in ("ant", "cow", str(tmp_path / "a")):
        assert f'"{secret}"' not in told
        assert f">{secret}<" not in told


@pytest.mark.run
def test_a_client_that_lacks_a_task_is_left_out_by_name_until_it_has_it(
    tmp_path, places
):
    second = tmp_path / "b" / "task-02"
    hidden = second.rename(second.with_name(".task-02"))
    asked = []

    def deliver(client, request, reply):
        asked.extend([client] if request.kind == "train" else [])
        # After both have been asked to train in round 4.
        if len(asked) == 8 and hidden.exists():
            hidden.rename(second)
        return reply

    run = config(tmp_path, strategy="fedweit", rounds=3)
    run_in_process(run, NODES, places=places, tamper=deliver)
    rows = rounds_of(tmp_path / "run")
    assert [row["clients"] for row in rows] == [[0, 1]] * 3 + [[0]] + [[0, 1]] * 2
    assert rows[3]["reasons"] == {
        "1": "the client failed: task 1 is not there yet: the client has 1 of 2"
    }
    accuracy = summary_of(tmp_path / "run")["client_accuracy"]
    assert accuracy[1][1][1] > 0.8


def during(path, change):
    """Return what changes a client's file before it is asked to train for round 2."""
    asked = []

    def deliver(client, request, reply):
        asked.extend([client] if request.kind == "train" else [])
        if len(asked) == 2:
            path.write_text(change(path.read_text()))
            asked.append("done")
        return reply

    return deliver


SICK = ["ill", "well"]
CHANGES = {
    "a class that sorts first": (lambda text: text + added("ache"), 3, None),
    "a class that has no place": (lambda text: text + added("ache"), 2, "classes"),
    "a class with another name": (lambda text: text.replace("ill", "zap"), 2, "zap"),
    "a column with another name": (lambda text: text.replace("x,", "zz,", 1), 3, "zz"),
}


def added(name, rows=6):
    return "".join(f"-9.{row},{name},9.0,-9.0\n" for row in range(rows))


@pytest.mark.run
@pytest.mark.parametrize("case", CHANGES)
def test_a_class_keeps_its_number_whatever_becomes_of_the_file(tmp_path, case, caplog):
    change, width, refused = CHANGES[case]
    folders = [client_folder(tmp_path / n, [table(SICK, ord(n))]) for n in "ab"]
    states = [str(tmp_path / f"state-{n}" / "memory") for n in "ab"]
    places = [
        {"data-path": str(folder), "state-path": state}
        for folder, state in zip(folders, states, strict=True)
    ]
    settings = {"tasks": 1, "rounds": 3, "classes_per_task": width, "epochs": 10}
    run = config(tmp_path, **settings, seed=2)
    file = folders[0] / "task-01" / "train.csv"
    before = file.read_text()

    run_in_process(run, NODES, places=places, tamper=during(file, change))

    rows = rounds_of(tmp_path / "run")
    later = [1] if refused else [0, 1]
    assert [row["clients"] for row in rows] == [[0, 1], later, later]
    if refused:
        assert "expected" in caplog.text
        assert refused in caplog.text
        return
    model = fcl.load(tmp_path / "state-a")
    assert model.classes == (("ill", "well", "ache"),)
    lines = [line.split(",") for line in before.splitlines()[1:]]
    x = np.array([[float(a), float(c), float(d)] for a, _, c, d in lines], np.float32)
    answers = [one.name for one in model.predict(x, 0)]
    right = [a == line[1] for a, line in zip(answers, lines, strict=True)]
    assert np.mean(right) > 0.9


@pytest.mark.run
def test_columns_are_compared_where_the_run_names_them(tmp_path, places):
    for number in (1, 2):
        path = tmp_path / "b" / f"task-0{number}" / "train.csv"
        path.write_text(path.read_text().replace("z\n", "Z\n", 1))
    blind = config(tmp_path, tasks=1, output=str(tmp_path / "blind"))
    run_in_process(blind, NODES, places=places)
    said = summary_of(tmp_path / "blind")["remarks"]["columns of tables"]
    assert said.startswith("not compared between clients: no names in data.columns")
    run_in_process(config(tmp_path, tasks=1, columns="x,y,z"), NODES, places=places)
    assert [row["failed"] for row in rounds_of(tmp_path / "run")] == [[1], [1]]
    assert "columns of tables" not in summary_of(tmp_path / "run")["remarks"]


@pytest.mark.run
def test_what_is_wrong_with_the_data_is_said_on_the_client_alone(
    tmp_path, places, caplog, monkeypatch
):
    monkeypatch.setattr(logging.getLogger("fcl_flower"), "propagate", True)
    path = tmp_path / "b" / "task-01" / "train.csv"
    path.write_text("x,label,y,z\nsecret,ant,1,2\n")
    run_in_process(config(tmp_path, tasks=1), NODES, places=places)
    reasons = rounds_of(tmp_path / "run")[0]["reasons"]
    assert reasons == {
        "1": "the client failed: task 0: the client's data cannot be used (.csv: a "
        "cell that is no number); the client's own log says why"
    }
    with pytest.raises(ConfigError) as caught:
        message_of(config(tmp_path, clients=2), places[1]).data(
            TaskStage(1, 0, True, False)
        )
    assert str(caught.value.__cause__).startswith(f"{path}: line 2: x is 'secret'")
    said = (
        "this client could not answer: task 0: the client's data cannot be used (.csv: "
        "a cell that is no number); the client's own log says why: "
        f"{path}: line 2: x is 'secret'"
    )
    assert any(line.startswith(said) for line in caplog.messages)
    (tmp_path / "b" / "secret").mkdir()
    with pytest.raises(ConfigError, match=r"^data-path: the client's folder cannot be"):
        message_of(config(tmp_path, clients=2), places[1])


def test_a_clients_log_adds_no_noise_of_other_programs_to_a_sentence(
    monkeypatch, caplog
):
    def fails():
        raise ConfigError("a sentence") from OSError("some noise")

    monkeypatch.setattr(logging.getLogger("fcl_flower"), "propagate", True)

    problem = answered(fails)

    assert caplog.messages == ["this client could not answer: a sentence"]
    assert problem.reason == "a sentence"


def test_what_the_server_hears_of_an_error_names_no_file(tmp_path, caplog, monkeypatch):
    place = tmp_path / "of ann"
    errors = [
        (WireError(f"state: {tmp_path}/3 is damaged"), "state: (a path) is damaged"),
        (
            config_error("data.word_vectors", str(place), "a file"),
            "(a path), expected a file",
        ),
        (FileNotFoundError(2, "No such file", str(place)), "Error: No such file"),
        (ValueError(f"cannot parse {place!r}"), "cannot parse PosixPath((a path))"),
    ]
    monkeypatch.setattr(logging.getLogger("fcl_flower"), "propagate", True)
    for error, wanted in errors:

        def fails(error=error):
            raise error

        problem = answered(fails)

        assert problem.reason.endswith(wanted)
        assert str(tmp_path) not in problem.reason
        here = caplog.messages[-1]
        assert here.startswith("this client could not answer: ")
        assert str(tmp_path) in here


@pytest.mark.run
def test_a_full_disk_of_a_client_is_named_and_the_client_goes_on(
    tmp_path, places, monkeypatch, caplog
):
    places = [
        {**p, "state-path": str(tmp_path / f"s{n}")} for n, p in enumerate(places)
    ]
    write, asked = FolderStateStore._save, []

    def full(store, groups, server_round):
        if "s0" in str(store._folder) and server_round == 2:
            asked.append(server_round)
            if len(asked) < 2:
                raise OSError(errno.ENOSPC, "No space left on device")
        write(store, groups, server_round)

    monkeypatch.setattr(FolderStateStore, "_save", full)

    run_in_process(config(tmp_path, tasks=1, rounds=3), NODES, places=places)

    rows = rounds_of(tmp_path / "run")
    assert [row["clients"] for row in rows] == [[0, 1], [1], [0, 1]]
    sentence = rows[1]["reasons"]["0"]
    assert re.fullmatch(
        r"the client failed: no room on the disk of its states \(fcl client --state\): "
        r"they take \d+\.\d MB and need as much .* it goes on when there is room",
        sentence,
    )
    assert str(tmp_path) not in sentence
    assert f"no room for the states in {tmp_path / 's0'}" in caplog.text


@pytest.mark.parametrize("hidden", [0, 1])
def test_the_server_hears_what_kind_of_fault_the_data_have(tmp_path, places, hidden):
    file = tmp_path / "a" / "task-01" / "train.csv"
    file.write_text(file.read_text() + "1,Ant,1,1\n")
    place = Place("", NodeConfig(**places[0], partition_id=0, hide_faults=hidden))
    place.keep_spec(resolve(config(tmp_path, clients=2)))
    stage = TaskStage(1, 0, starts_task=True, ends_task=False)
    asked = messages.MessageEncoder().encode_request({}, Assignment(stage))

    reason = answer("train", asked, place).reason

    kind = "" if hidden else " (.csv: labels that look alike)"
    assert reason == (
        f"task 0: the client's data cannot be used{kind}; the client's own log says why"
    )
    assert "Ant" not in reason


def message_of(run, place, task=0):
    """Return what a client builds to answer a message."""
    here = Place("1", NodeConfig.of({"partition-id": 1, **place}))
    here.keep_spec(resolve(run))
    return Client(here, TaskStage(1, task, starts_task=True, ends_task=False))


@pytest.mark.run
def test_a_client_without_a_folder_says_so(tmp_path, places):
    with pytest.raises(
        RoundError, match="node-config data-path: missing, expected the"
    ):
        run_in_process(config(tmp_path), NODES, places=[{}, {}])
    run_in_process(config(tmp_path, tasks=1), NODES, places=[places[0], {}])
    assert "data-path" in rounds_of(tmp_path / "run")[0]["reasons"]["1"]


@pytest.mark.run
def test_a_single_head_needs_and_uses_the_labels_of_all(tmp_path, places):
    labels = "ant, bee, cow, dog, emu, car, bus"
    run = config(tmp_path, head="single", class_names=labels, classes_per_task=0)
    run_in_process(run, NODES, places=places)
    assert summary_of(tmp_path / "run")["average_accuracy"] is not None
    # Nobody pulls at the head: the task that was learned last is known.
    run_in_process(run.replace(strategy="local"), NODES, places=places)
    client = message_of(run.replace(clients=2), places[1])
    (head,) = client.learner.model.heads
    assert head.out_features == 7
    data = client.data(TaskStage(1, 0, starts_task=True, ends_task=False))
    assert data.classes == 7
    assert {*data.train.y.tolist()} == {5, 6}
    accuracy = summary_of(tmp_path / "run")["client_accuracy"]
    assert min(accuracy[0][1][1], accuracy[1][1][1]) > 0.8


def told_by(place):
    found = answer(f"query.{messages.TASKS}", Content(), place)
    return messages.finished_tasks(found)


def test_a_client_tells_its_finished_tasks_before_any_run_is_known(tmp_path, places):
    (tmp_path / "a" / "task-02" / "DONE").touch()
    for more, told in (({}, (40, 60)), ({"marked-tasks": 1}, ())):
        node = NodeConfig.of({"partition-id": 0, **places[0], **more})
        assert told_by(Place("1", node)) == told
    (tmp_path / "a" / "task-01" / "DONE").touch()
    assert told_by(Place("1", node)) == (40, 60)


# ---------------------------------------------------------------- text


WORDS = {
    "ant": ["legs", "hill", "tiny"],
    "bee": ["honey", "wings", "sting"],
    "cow": ["milk", "horn", "grass"],
    "dog": ["bark", "bone", "tail"],
}


def texts(labels, seed):
    rng = np.random.default_rng(seed)
    return "".join(
        json.dumps({"text": " ".join(rng.choice(WORDS[label], 4)), "label": label})
        + "\n"
        for _ in range(12)
        for label in labels
    )


@pytest.fixture
def text_places(tmp_path):
    # The words of a label lie around an axis of its own.
    rng = np.random.default_rng(0)
    around = {
        word: 0.2 * rng.normal(size=5) + np.eye(5)[axis]
        for axis, group in enumerate(WORDS.values())
        for word in group
    }
    vectors = tmp_path / "vectors.txt"
    vectors.write_text(
        "".join(f"{w} {' '.join(map(str, v.round(3)))}\n" for w, v in around.items())
    )
    pairs = [("ant", "bee"), ("cow", "dog")]
    found = []
    for name, order in (("a", pairs), ("b", pairs[::-1])):
        for number, labels in enumerate(order, 1):
            task = tmp_path / name / f"task-{number}"
            task.mkdir(parents=True)
            (task / "train.jsonl").write_text(texts(labels, number))
        place = {"data-path": str(tmp_path / name), "word-vectors": str(vectors)}
        found.append(place)
    return found


def text_config(tmp_path, **values):
    texty = {"model": "kim-cnn", "num_features": 5, "classes_per_task": 2}
    return config(tmp_path, **{"strategy": "fedavg", **texty, **values})


SIT = {
    "strategy.knowledge": "sit:1",
    "strategy.clusters": 1,
    "strategy.overlap": "mean-cosine",
}
"""With a single centre, the mean of all documents of a task, compared as it is."""


@pytest.mark.run
@pytest.mark.parametrize("strategy", ["fedavg", "fedweit", "fedseit"])
def test_texts_are_learned_by_vectors_that_only_the_clients_have(
    tmp_path, text_places, strategy
):
    sets = {} if strategy == "fedavg" else SIT
    run = text_config(tmp_path, strategy=strategy, **sets)
    run_in_process(run, NODES, places=text_places)
    summary = summary_of(tmp_path / "run")
    assert summary["average_accuracy"] > 0.8
    assert summary["remarks"]["word vectors"] == "each client's own file, 5 dimensions"
    if sets:
        overlap = diagnostics_of(tmp_path / "run")["overlap"]["values"]
        assert overlap["0/1"]
        assert overlap["1/1"]
        # The task that the other client learned first is the one that comes now.
        known = [score for scores in overlap.values() for score in scores.values()]
        assert min(known) > 0.9


def test_each_client_numbers_the_words_of_its_own_tasks_so_far(tmp_path, text_places):
    run = text_config(tmp_path, clients=2)
    first = message_of(run, text_places[1], task=0).samples.vectors
    both = message_of(run, text_places[1], task=1).samples.vectors
    cows = sorted(WORDS["cow"] + WORDS["dog"])
    assert [*first.numbers] == cows
    every = {word for group in WORDS.values() for word in group}
    assert [*both.numbers] == cows + sorted(every - {*cows})
    for word in cows:
        assert first.numbers[word] == both.numbers[word]
        np.testing.assert_array_equal(
            first.table[first.numbers[word]], both.table[both.numbers[word]]
        )


def test_vectors_that_are_missing_or_of_another_width_are_refused(
    tmp_path, text_places
):
    run = text_config(tmp_path, clients=2)
    place = {"data-path": text_places[0]["data-path"]}
    with pytest.raises(
        ConfigError, match=r"data\.word_vectors: got '', expected a file"
    ):
        message_of(run, place)
    with pytest.raises(
        ConfigError, match="word-vectors: the client's file cannot"
    ) as e:
        message_of(run.replace(num_features=6), text_places[0])
    assert "has vectors of 5 numbers, expected 6" in str(e.value.__cause__)
    named = run.replace(word_vectors=text_places[0]["word-vectors"])
    assert message_of(named, place).samples.vectors.table.shape[1] == 5


def test_a_simulation_without_vectors_is_refused_before_it_begins(text_places):
    folder = Path(text_places[0]["data-path"])
    with pytest.raises(ConfigError, match=r"data\.word_vectors: .* for model kim-cnn"):
        with_local_data(RunConfig.from_settings(model="kim-cnn"), [folder])


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dataset": "digits"}, "data.datasets: got .*digits.*, expected none"),
        ({"model": ""}, "model.name: got '', expected the name of a"),
        ({"model": "vgg"}, "model: got 'vgg'"),
        ({"num_features": 0}, "model.num_features: got 0, expected"),
        ({"model": "lenet"}, "model.num_features: got 3, expected 0"),
        (
            {"classes_per_task": 0},
            "scenario.classes_per_task: got 0, expected at least 2",
        ),
        (
            {"classes_per_task": 1},
            "scenario.classes_per_task: got 1, expected at least 2",
        ),
        (
            {"class_names": "a,b"},
            "data.class_names: got 'a,b', expected none",
        ),
        (
            {"head": "single", "class_names": "a"},
            "data.class_names: got 'a', expected different names of all",
        ),
        ({"head": "single", "class_names": "a,a"}, "data.class_names: got 'a,a'"),
        ({"word_vectors": "x"}, "data.word_vectors: got 'x', expected none.*mlp"),
    ],
)
def test_a_setting_that_only_clients_know_is_asked_for(tmp_path, change, words):
    with pytest.raises(ConfigError, match=words):
        _ = Built(resolve(config(tmp_path, **change))).word_vectors


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_a_simulation_without_folders_has_no_local_data(tmp_path, command):
    why = "data: got '', expected a folder for each client"
    options = [command, "--scenario", "local-data", *OPTIONS, "--clients", "2"]
    with pytest.raises(ConfigError, match=why):
        CliRunner().invoke(
            cli,
            [*options, "--output", str(tmp_path / "x")],
            standalone_mode=False,
            catch_exceptions=False,
        )


# ---------------------------------------------------------------- the node


def test_a_node_says_what_it_has():
    assert NodeConfig.of({"partition-id": 3}) == NodeConfig(partition_id=3)
    full = {
        "partition-id": 0,
        "num-partitions": 2,
        "data-path": "d",
        "marked-tasks": 1,
        "state-path": "s",
        "keep-runs": 3,
        "device": "cpu",
        "word-vectors": "v",
        "client-name": "site-1",
        "hide-faults": 1,
    }
    assert NodeConfig.of(full).model_dump(by_alias=True) == full


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"partition-id": -1}, "node-config partition-id: got -1, expected"),
        ({"partition-id": "0"}, "node-config partition-id: got '0', expected"),
        (
            {"partition-id": 0, "datapath": "x"},
            r"node-config datapath: got 'datapath', .*; did you mean 'data-path'\?",
        ),
    ],
)
def test_a_misconfigured_node_is_refused_by_key(values, words):
    with pytest.raises(ConfigError, match=words):
        NodeConfig.of(values)


def test_a_node_may_leave_its_number_to_the_server():
    assert NodeConfig.of({}).partition_id is None
    assert NodeConfig.of({"state-path": "s"}).partition_id is None


def test_what_the_node_says_counts_more_than_what_the_run_says(tmp_path):
    run = resolve(config(tmp_path, clients=2, device="cuda:7"))
    node = NodeConfig(partition_id=0, device="cpu", word_vectors="x")
    found = run.on_node(node).config
    # The word vectors are left alone where the data are no texts.
    assert (found.training.device, found.data.word_vectors) == ("cpu", "")
    texts = resolve(text_config(tmp_path, clients=2, word_vectors="run"))
    own = texts.on_node(NodeConfig(partition_id=0, word_vectors="node"))
    assert own.config.data.word_vectors == "node"
    assert run.on_node(NodeConfig(partition_id=0)) == run


# ---------------------------------------------------------------- fcl check-data


def check(folder, *options):
    return CliRunner().invoke(
        cli,
        ["check-data", str(folder), *options],
        standalone_mode=False,
        catch_exceptions=False,
    )


OPTIONS = (
    *("--model", "mlp", "--set", "model.num_features=3"),
    *("--classes-per-task", "3"),
)


def test_a_client_can_look_at_its_data_before_a_run(tmp_path, places):
    output = check(tmp_path / "a", *OPTIONS).output
    first, second = (
        line
        for line in output.splitlines()
        if line.count("task-0") == 1 and "│" in line
    )
    for cell in ("0", "task-01", "28", "4", "8", "ant (16), bee (16)"):
        assert cell in first
    for cell in ("1", "task-02", "42", "6", "12", "cow (16), dog (16)"):
        assert cell in second


def test_check_data_names_what_is_wrong_in_a_file(tmp_path, places):
    path = tmp_path / "a" / "task-02" / "train.csv"
    path.write_text(path.read_text() + "1,dog,x,2\n")
    with pytest.raises(ConfigError, match=r"task-02/train\.csv: line 62: y is 'x'"):
        check(tmp_path / "a", *OPTIONS)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"empty.*expected at least one t"):
        check(tmp_path / "empty", *OPTIONS)


def test_check_data_names_a_class_without_pictures(tmp_path):
    train = tmp_path / "task-01" / "train"
    for name in ("cat", "dog", "emu"):
        (train / name).mkdir(parents=True)
    for number in range(8):
        for name in ("cat", "dog"):
            grey = np.full((8, 8), 9 * number + len(name), np.uint8)
            Image.fromarray(grey).save(train / name / f"{number}.png")

    found = check(tmp_path, "--model", "small").output

    assert f"warning: {tmp_path}, task-01: the folder of class 'emu' is empty" in found


def test_check_data_says_how_much_the_word_vectors_cover(tmp_path, text_places):
    place = text_places[0]
    options = ("--model", "kim-cnn", "--classes-per-task", "2")
    options += ("--set", "model.num_features=5")
    vectors = f"data.word_vectors={place['word-vectors']}"
    output = check(place["data-path"], *options, "--set", vectors).output
    assert "known are 12 of 12 words" in output
