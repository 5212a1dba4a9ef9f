"""What is written while a run goes on, on a scenario worked out by hand."""

import json
import platform
import re
from datetime import UTC, datetime
from types import SimpleNamespace

import flwr
import numpy as np
import pytest
import torch
from fakes import diagnostics_of, rounds_of, summary_of
from records import ABOUT, evaluated, trained

import fcl_flower
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.diagnostics import Clustering, Matrix, Points
from fcl_flower.data.scenarios.plan import ConceptStream
from fcl_flower.data.scenarios.registry import Scenario, Task
from fcl_flower.results import recorder as recorder_module
from fcl_flower.results.record import read
from fcl_flower.results.recorder import Recorder, time_left

NONE = np.array([], np.int64)


def task(name, classes=2, tested=3):
    names = tuple("abcd"[:classes])
    labels = tuple(range(classes))
    return Task(name, "zoo", labels, names, NONE, NONE, np.arange(tested), 0)


TASKS = ((task("fish"), task("wet")),) * 3
PLAN = Scenario("overlapped", 0, ("zoo",), 2, TASKS)
SIZE = {"clients": 3, "tasks": 2, "rounds": 5}


def made(folder, plan=PLAN, settings=SIZE, **values):
    config = RunConfig.from_settings(**settings)
    recorder = Recorder(folder, config, plan, **values)
    recorder.begin()
    return recorder


@pytest.fixture
def recorder(tmp_path):
    return made(tmp_path)


def found(folder, name):
    return json.loads((folder / name).read_text())


def test_what_the_server_says_of_a_round_is_kept(tmp_path):
    matrix = Matrix(title="m", rows="r", columns="c", values={"0/0": {"1/0": 0.5}})
    for folder, told in (("a", {"m": matrix}), ("b", {})):
        recorder = made(tmp_path / folder)
        recorder.add(trained(1))
        recorder.add(trained(2, diagnostics={"spread": 0.5, **told}))
        recorder.finish()
        lines = rounds_of(tmp_path / folder)
        assert [line.get("diagnostics") for line in lines] == [None, {"spread": 0.5}]
    assert diagnostics_of(tmp_path / "a") == {"m": matrix.model_dump()}
    assert not (tmp_path / "b" / "diagnostics.json").exists()


def test_only_the_record_knows_the_hidden_concepts(tmp_path):
    stream = ConceptStream(concepts=2, window=3, mean_duration=1, seed=5)
    plan = Scenario("concepts", 0, ("zoo",), 2, TASKS, stream)
    frame = {"round": 1, "clients": [0, 2], "cluster": [0, 0], "origin": [0, 1]}
    frame |= {"reached": [0, 0], "map": [(0, 0), (1, 1)]}
    points = Points(title="p", frames=[Clustering(**frame)])
    for folder, scenario in (("hidden", plan), ("known", PLAN)):
        recorder = made(tmp_path / folder, scenario)
        recorder.add(trained(1, diagnostics={"p": points}))
        recorder.finish()
    truth = [stream.concept_at(client, 1) for client in (0, 2)]
    (told,) = diagnostics_of(tmp_path / "hidden")["p"]["frames"]
    assert (told["concept"], told["effectiveness"]) == (truth, 0.5)
    (told,) = diagnostics_of(tmp_path / "known")["p"]["frames"]
    assert (told["concept"], told["ari"]) == ([], None)


def test_remarks_and_what_a_run_is_are_in_the_summary(tmp_path):
    recorder = made(tmp_path, remarks={"vectors": "trained"}, counterpart="alone")
    about = read(tmp_path).about
    recorder.add(trained(1))
    recorder.finish()
    summary = found(tmp_path, "summary.json")
    assert summary["remarks"] == {"vectors": "trained"}
    assert summary["counterpart"] == about.counterpart == "alone"
    assert (about.total_rounds, about.mode) == (10, "synchronous")
    kept = about.model_dump(exclude={"environment"})
    assert {key: summary[key] for key in kept} == kept
    assert ABOUT.keys() <= kept.keys()
    assert "training.device" not in about.training
    assert about.training["learning_rate"] == 0.0


# ---- privacy and costs


def test_the_most_that_a_client_reported_is_what_its_examples_have_cost(tmp_path):
    private = {"unit": "example", "noise_multiplier": 1.0, "clip": 1.0}
    settings = {**SIZE, "privacy": private, "count_multiply_adds": True}
    recorder = made(tmp_path, settings=settings)
    for number, epsilon in enumerate([1.0, 3.0, 2.0], 1):
        told = {"epsilon": epsilon, "label_epsilon": epsilon / 2, "multiply_adds": 1e2}
        recorder.add(trained(number, replies={2: told, 1: {}}))
    summary = recorder.finish()
    assert summary.privacy.by_client == {2: 3.0}
    assert summary.privacy.epsilon == summary.privacy.epsilon_clients == 3
    assert summary.label_epsilon == {2: 1.5}
    assert summary.privacy.scores
    assert summary_of(tmp_path)["multiply_adds"] == 300


# ---- the environment


def test_the_environment_is_apart_from_what_the_seed_decides(recorder, tmp_path):
    before = datetime.now(UTC).replace(microsecond=0)
    summary = recorder.finish()
    environment = summary.environment
    assert summary.peak_memory > 50 * 2**20
    assert before <= datetime.fromisoformat(environment.date) <= datetime.now(UTC)
    # The builds on PyPI name CUDA in the module's version, but not in the package's.
    known = {n: v.partition("+")[0] for n, v in environment.versions.items()}
    assert known == {
        "fcl-flower": fcl_flower.__version__,
        "flwr": flwr.__version__,
        "torch": torch.__version__.partition("+")[0],
        "python": platform.python_version(),
    }
    assert "environment" not in summary_of(tmp_path)


def test_the_configuration_says_on_what_it_was_run_and_is_still_one(recorder, tmp_path):
    ran = recorder.finish().environment
    first, *rest = (tmp_path / "config.toml").read_text().splitlines()
    assert re.fullmatch(r"# Run: \d{4}-\d\d-\d\dT[\d:+]+, fcl-flower .*", first)
    for value in (*ran.versions.values(), ran.machine):
        assert value in first
    assert RunConfig.read(tmp_path / "config.toml", "config").run.seed == 0
    assert not any(line.startswith("#") for line in rest)


# ---- a run that is resumed


def files_of(folder):
    names = ("rounds.jsonl", "accuracy.csv", "scenario.json")
    return [(folder / name).read_bytes() for name in names]


def test_every_file_follows_from_the_journal(recorder, tmp_path, monkeypatch):
    matrix = Matrix(title="m", rows="r", columns="c", values={"0/0": {"1/0": 0.5}})
    for number in (1, 2, 3):
        recorder.add(evaluated(number, 0, {c: [0.1 * number] for c in range(3)}))
        told = {"m": matrix} if number == 1 else {}
        recorder.add(trained(number, replies={0: {"loss": 1.0}}, diagnostics=told))
        if number == 2:
            expected = files_of(tmp_path)
    # Ended between the journal and the other files; damaged ones, too, are made anew.
    monkeypatch.setattr(Recorder, "_apply", lambda self, event: None)
    recorder.add(trained(4))
    (tmp_path / "rounds.jsonl").write_text('{"round": 1, "ta')
    (tmp_path / "accuracy.csv").unlink()
    monkeypatch.undo()

    again = Recorder(tmp_path, RunConfig.from_settings(**SIZE), PLAN)
    rounds = again.restore(2)

    assert [event.round for event in rounds] == [1, 2]
    assert files_of(tmp_path) == expected
    assert again.record.diagnostics == {"m": matrix}
    again.finish()
    assert read(tmp_path).diagnostics == {"m": matrix}
    assert len(read(tmp_path).rounds) == 2


# ---- how far a run is


def test_progress_is_not_written_for_every_client_of_a_large_round(
    recorder, tmp_path, monkeypatch
):
    now = [recorder._started + 100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(recorder_module, "time", clock)

    def told(done, seconds):
        now[0] += seconds
        recorder.progress(1, done, 1000)
        return found(tmp_path, "progress.json")["clients_done"]

    assert told(0, 0.0) == 0, "the beginning at once"
    assert [told(1, 0.1), told(2, 0.09), told(3, 0.02)] == [0, 0, 3]
    assert [told(4, 0.1), told(1000, 0.0)] == [3, 1000], "the end at once"
    assert told(0, 0.0) == 0


def test_progress_names_who_works_and_what_is_left(tmp_path, monkeypatch):
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(recorder_module, "time", clock)
    asynchronous = made(tmp_path, settings={**SIZE, "asynchronous": True})
    for number in (1, 2):
        now[0] += 3
        asynchronous.add(trained(number))
    now[0] += 1
    asynchronous.progress(3, 0, 3, working={2, 0})
    progress = found(tmp_path, "progress.json")
    assert progress["left"] == pytest.approx(28 * 3 - 1), "counted in updates"
    assert (progress["seconds"], progress["working"]) == (7, [0, 2])
    assert (progress["rounds"], progress["task"]) == (30, 0)
    settings = RunConfig.from_settings(**SIZE, asynchronous=True)
    again = Recorder(tmp_path, settings, PLAN)
    again.restore(2)
    assert found(tmp_path, "progress.json")["seconds"] == 6, "of before, too"


@pytest.mark.parametrize(
    ("seconds", "running", "left"),
    [
        ((), 0.0, None),
        ((4.0,), 0.0, 19 * 4.0),  # nothing else is known
        ((40.0, 2.0), 0.0, 18 * 2.0),  # the first one loads what others find loaded
        ((40.0, 2.0, 4.0), 1.0, 17 * 3.0 - 1.0),
        ((40.0, 2.0, 4.0), 9.0, 16 * 3.0),  # no longer than a round at most
        ((9.0, *[1.0] * 5, *[2.0] * 10), 0.0, 4 * 2.0),  # the last ten
        ((1.0,) * 20, 0.5, 0.0),
    ],
)
def test_the_mean_of_the_last_rounds_foretells_the_others(seconds, running, left):
    assert time_left(seconds, 20, running) == left
