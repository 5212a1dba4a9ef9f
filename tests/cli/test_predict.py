"""fcl predict and fcl models, on clients that learned from tables of their own."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import fcl_flower as fcl
from fcl_flower.cli.main import cli
from fcl_flower.simulation.in_process import InProcessTransport, run_simulated

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Return a folder with the states of two clients, whose second task is reversed."""
    root, rng = tmp_path_factory.mktemp("federation"), np.random.default_rng(0)
    places = []
    for client in range(2):
        for task in range(2):
            folder = root / f"data-{client}" / f"task-0{task + 1}"
            folder.mkdir(parents=True)
            rows = ["age,pulse,label"]
            for number in range(80):
                ill = number % 2
                x = rng.normal((5 if ill else -5) * (1 - 2 * task), 1, 2)
                rows.append(f"{x[0]},{x[1]},{['well', 'ill'][ill]}")
            (folder / "train.csv").write_text("\n".join(rows))
        state = root / f"state-{client}" / "memory"
        data = str(root / f"data-{client}")
        places.append({"data-path": data, "state-path": str(state)})
    config = fcl.RunConfig.from_settings(
        strategy="fedavg",
        scenario="local-data",
        **{"clients": 2, "tasks": 2, "rounds": 4, "classes_per_task": 2},
        **{"num_features": 2, "model": "mlp", "learning_rate": 0.05},
        output=str(root / "run"),
    )
    run_simulated(InProcessTransport(range(100, 102), config, places), config)
    return root


def fcl_(*words, text=None):
    return CliRunner().invoke(cli, list(map(str, words)), input=text)


def rows_of(result):
    assert result.exit_code == 0, result.output
    return list(csv.DictReader(io.StringIO(result.output)))


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("pulse,age,label\n5,5,well\n-5,-5,well\n")
    return path


@pytest.mark.run
def test_names_and_probabilities_by_task(federation, table):
    given = "--state", federation / "state-0", "--output-format", "csv"
    first = rows_of(fcl_("predict", *given, "--task", 0, table))
    assert [row["input"] for row in first] == [f"{table}:2", f"{table}:3"]
    assert [row["class"] for row in first] == ["ill", "well"]
    assert all(0.5 < float(row["probability"]) <= 1 for row in first)
    second = rows_of(fcl_("predict", *given, "--task", "task-02", table))
    assert [row["class"] for row in second] == ["well", "ill"]


@pytest.mark.run
def test_all_classes_as_lines_of_json(federation, table):
    given = "--state", federation / "state-0", "--output-format", "jsonl", "--all"
    result = fcl_("predict", *given, "--task", "auto", table)
    found = [json.loads(line) for line in result.output.splitlines()]
    for one in found:
        assert one["probabilities"].keys() == {"ill", "well"}
        assert sum(one["probabilities"].values()) == pytest.approx(1)
        assert one["task"] in ("task-01", "task-02")


@pytest.mark.run
def test_auto_takes_the_more_confident_head(federation, table):
    model = fcl.load(federation / "state-1")
    x = np.array([[5.0, 4.0], [-1.0, -6.0]])
    by_task = [model.predict(x, task) for task in range(2)]
    for number, one in enumerate(model.predict(x, "auto")):
        best = max((known[number] for known in by_task), key=lambda p: p.probability)
        assert one == best


@pytest.mark.run
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pulse,agee\n1,2\n", "line 1 has no age"),
        ("pulse,age,id\n1,2,3\n", "line 2 has a column 'id'"),
        ("pulse,age\n1,2\n1,x\n", "line 3: age is 'x', expected a number"),
    ],
)
def test_a_wrong_table_is_refused_by_file_and_line(text, said, federation, tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    result = fcl_("predict", "--state", federation / "state-0", "--task", 0, path)
    assert result.exit_code != 0
    assert f"{path}: {said}" in str(result.exception or result.output)


@pytest.mark.run
def test_without_a_task_the_tasks_are_told(federation, table):
    result = fcl_("predict", "--state", federation / "state-0", table)
    assert "expected auto or one of 0 (task-01), 1 (task-02)" in str(result.exception)


@pytest.mark.run
def test_an_older_version_is_used_until_the_newest_is_wanted(federation, table):
    state = federation / "state-1"
    shown = fcl_("models", state, "--use", "task-01").output
    assert "task-02" in shown
    assert "damaged" not in shown
    model = fcl.load(state)
    assert (model.tasks, model.versions) == (("task-01",), ("task-01", "task-02"))
    fcl_("models", state, "--use", "newest")
    assert fcl.load(state).tasks == ("task-01", "task-02")
    assert 0.9 < fcl.load(state, version="best").about.accuracy <= 1


@pytest.mark.run
def test_the_list_of_versions_fits_a_terminal_and_tells_damage(
    federation, tmp_path, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    state = shutil.copytree(federation / "state-0", tmp_path / "state")
    written = fcl.load(state).about.written[:16].replace("T", " ")
    sound = fcl_("models", state).output
    manifests = sorted(state.rglob("models/task-01/*"))
    path = next(p for p in manifests if p.suffix != ".json" and p.is_file())
    path.write_bytes(path.read_bytes()[:-1])
    harmed = fcl_("models", state).output

    assert written in sound
    assert "damaged" not in sound
    assert "damaged" in harmed


ARRIVED = Path(__file__).parents[2] / "docker" / "systemd" / "fcl-predict-arrived"


@pytest.mark.process
def test_what_arrives_is_answered_or_refused_and_waits_for_a_model(
    federation, table, tmp_path
):
    program = tmp_path / "fcl"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m fcl_flower.cli.main "$@"')
    program.chmod(0o755)
    place = tmp_path / "place"
    (place / "arrived").mkdir(parents=True)
    shutil.copy(table, place / "arrived" / "-a b.csv")
    (place / "arrived" / "bad.csv").write_text("age\n1\n")

    def look(state):
        words = [ARRIVED, state, place, "--task", "task-02"]
        search = f"{tmp_path}:{os.environ['PATH']}"
        done = subprocess.run(words, env={**os.environ, "PATH": search})
        return done.returncode

    assert look(tmp_path / "nothing") != 0
    assert len(list((place / "arrived").iterdir())) == 2
    assert look(federation / "state-0") == 0

    assert not list((place / "arrived").iterdir())
    lines = (place / "answers" / "-a b.csv.jsonl").read_text().splitlines()
    assert [json.loads(line)["class"] for line in lines] == ["well", "ill"]
    assert (place / "done" / "-a b.csv").read_text() == table.read_text()
    assert (place / "refused" / "bad.csv").exists()
    assert "pulse" in (place / "refused" / "bad.csv.why").read_text()
