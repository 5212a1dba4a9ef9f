"""Real runs in Flower's simulation runtime, on real Ray."""

import contextlib
import io
import os
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

import psutil
import pytest
from descendants import MARK, marked, vanished
from fakes import rounds_of, run_in_process, tiny
from resuming import outcome
from waiting import PATIENCE, await_true

from fcl_flower.api import compare
from fcl_flower.core import processes
from fcl_flower.core.errors import RoundError
from fcl_flower.setup.resolve import resolve
from fcl_flower.simulation.local_runs import Backend, Job, run_all

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]
RUN = [
    *("simulate", "--strategy", "fedweit", "--clients", "3", "--tasks", "2"),
    *("--rounds", "1", "--classes-per-task", "2", "--seed", "7"),
    *("--backend", "flower", "--set", "training.augment=flip,crop"),
    *("--set", "data.normalise=data"),
]

PIXELS = {"augment": "flip,crop", "normalise": "data"}


def fcl(mark, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "fcl_flower.cli.main", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), MARK: str(mark)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def real_runs(tmp_path_factory):
    """Seeds 7 and 8 from Python with two workers, seed 7 by the command with one.

    Returns the folder of each, and what was shown.
    """
    place = tmp_path_factory.mktemp("real")
    process = fcl(place, *RUN, "--workers", 1, "--output", place / "command")
    out, err = process.communicate(timeout=PATIENCE)
    log = place / "command" / "flower.log"
    said = log.read_text() if log.exists() else ""
    assert process.returncode == 0, f"{out}\n{err}\n{said[-3000:]}"
    settings = {"clients": 3, "tasks": 2, "rounds": 1, "classes_per_task": 2, **PIXELS}
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(io.StringIO()) as shown,
    ):
        patch.setenv(MARK, str(place))
        compare(
            *(["fedweit"], [7, 8]),
            counterparts=False,
            backend="flower",
            workers=2,
            output=place / "python",
            **settings,
        )
    folders = [place / "command"]
    folders += [place / "python" / f"fedweit-seed{seed}" for seed in (7, 8)]
    return folders, out, shown.getvalue()


@pytest.mark.parametrize("number", [1, 2])
def test_each_run_of_one_runtime_gives_the_numbers_of_the_same_run_in_one_process(
    real_runs, tmp_path, number
):
    (command, *python), *_ = real_runs
    run_in_process(tiny(tmp_path, clients=3, seed=6 + number, **PIXELS))
    assert outcome(tmp_path) == outcome(python[number - 1])
    if number == 1:  # with another number of workers
        assert outcome(tmp_path) == outcome(command)


@pytest.mark.soak
@pytest.mark.parametrize(
    "more",
    [{"clients": 3}, {"clients": 52, "secure_collusion": 0.0, "secure_threshold": 0.9}],
    ids=["everybody", "neighbours"],
)
def test_secure_sums_are_those_of_one_process(tmp_path, more):
    settings = {"strategy": "fedavg", "tasks": 1, "seed": 7, **more}
    config = tiny(tmp_path / "usual", **settings, secure_aggregation=True)
    run_in_process(config)
    job = Job(resolve(config.replace(output="")), tmp_path / "run")

    ((_, found),) = run_all(Backend("flower", 1), [job])

    assert found["bytes_by_kind"]["up"].keys() >= {"masked"}
    assert outcome(tmp_path / "run") == outcome(tmp_path / "usual")


def test_a_real_run_leaves_a_complete_folder_and_nothing_else(real_runs):
    folders, command, python = real_runs
    lines = command.splitlines()
    assert lines[-1].endswith(f"report: {folders[0] / 'report.html'}")
    assert all(line.startswith("fedweit seed 7: ") for line in lines[:-1])
    assert "finished in" in lines[-2]
    assert "run 2 of 2: fedweit seed 8: task 1 of 0 to 1" in python
    # A single run keeps its clients' states, which are small, and a comparison none.
    assert [path.name for path in (folders[0] / ".flower").iterdir()] == ["clients"]
    assert not any((folder / ".flower").exists() for folder in folders[1:])
    for folder in folders:
        left = {path.name for path in folder.iterdir()}
        assert left - {".flower"} == {
            *("accuracy.csv", "config.toml", "diagnostics.json", "flower.log"),
            *("progress.json", "report.html", "rounds.jsonl", "scenario.json"),
            *("summary.json", "checkpoint", "journal.jsonl"),
        }
        assert len(rounds_of(folder)) == 2
        assert "</html>" in (folder / "report.html").read_text()
        recorded = tomllib.loads((folder / "config.toml").read_text())
        assert recorded["scenario"]["clients"] == 3
        log = (folder / "flower.log").read_text()
        assert log.count("fedweit: 3 clients, 2 tasks, 2 rounds") == 1


def test_no_process_outlives_a_real_run(real_runs):
    assert vanished(real_runs[0][0].parent)


def test_nothing_of_flower_or_ray_outlives_a_command_that_is_killed(tmp_path):
    folder = tmp_path / "run"
    port = processes.free_port()
    more = ("--rounds", 500, "--set", f"run.metrics_port={port}")
    process = fcl(tmp_path, *RUN, *more, "--workers", 1, "--output", folder)
    await_true(
        lambda: (folder / "accuracy.csv").exists() and rounds_of(folder),
        lambda: process.kill() or str(process.communicate()),
        lambda: process.poll() is not None,
    )
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        assert b"\nfcl_rounds_planned 1000.0\n" in reply.read()
    family = psutil.Process(process.pid).children(recursive=True)
    assert any("raylet" in one.name() for one in marked(tmp_path))

    process.kill()
    process.communicate(timeout=PATIENCE)

    assert psutil.wait_procs(family, timeout=30)[1] == []
    assert vanished(tmp_path)


@pytest.mark.soak
def test_a_run_that_loses_its_actors_or_fails_takes_no_other_with_it(
    tmp_path, monkeypatch
):
    monkeypatch.setenv(MARK, str(tmp_path))
    diverging = {"learning_rate": 1e38, "max_attempts": 1}
    configs = [tiny("", rounds=3, **more) for more in ({"seed": 1}, diverging, {})]
    resolved = [resolve(config.replace(output="")) for config in configs]
    jobs = [Job(run, tmp_path / str(n)) for n, run in enumerate(resolved)]
    ended = []

    def end_actors(job, progress):
        if job is jobs[0] and not ended:
            ended.extend(one for one in marked(tmp_path) if is_actor(one))
            for actor in ended:
                actor.kill()

    done = list(run_all(Backend("flower", 1), jobs, end_actors))
    lost, failed, found = (result for _, result in done)

    assert ended
    logs = [tmp_path / str(n) / "flower.log" for n in range(3)]
    for error, log in zip([lost, failed], logs, strict=False):
        assert isinstance(error, RoundError)
        assert str(error).endswith(f"the reason stands in {log}")
    assert "ActorDiedError" in logs[0].read_text()
    # Both sides have spoken: the client in a process of Ray's, and the server.
    said = logs[1].read_text()
    assert "this client could not answer: training diverged" in said
    assert "client 0 left out: the client failed: training diverged" in said
    assert found["rounds"] == 3
    assert vanished(tmp_path)


def is_actor(process):
    return "ClientAppActor" in " ".join(process.cmdline())
