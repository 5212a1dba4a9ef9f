"""Runs in processes beside this one, by programs and engines of our own."""

import json
import os
import signal
from pathlib import Path
from unittest.mock import Mock

import pytest
from descendants import MARK, marked, vanished
from fakes import tiny
from flwr.app import Context, RecordDict
from resuming import outcome

from fcl_flower.core.errors import ConfigError, RoundError
from fcl_flower.setup.resolve import resolve
from fcl_flower.simulation import ray, runner
from fcl_flower.simulation.local_runs import Backend, Job, run_all
from fcl_flower.simulation.runner import Runner

pytestmark = pytest.mark.process

PROGRAM = """
import json, os, subprocess, sys, time
from multiprocessing.connection import Connection
from fcl_flower.core.errors import ConfigError, RoundError
channel = Connection(int(sys.argv[1]))
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                 start_new_session=True)  # as Ray's are
while True:
    config, folder, local_data = channel.recv()
    def progress(**values):
        new = folder / "progress.new"
        new.write_text(json.dumps(values))
        new.replace(folder / "progress.json")
    seed, answer = config["run.seed"], None
    progress(state="training", round=seed)
    if seed == 1:
        time.sleep(0.5)
    elif seed == 2:
        os._exit(1)
    elif seed == 3:
        answer = RoundError("the client broke")
    elif seed == 4:
        answer = ConfigError("output: taken")
    elif seed == 5:
        time.sleep(600)
    (folder / "summary.json").write_text(json.dumps(
        {"seed": seed, "pid": os.getpid(), "options": json.loads(sys.argv[2]),
         "simulated": os.environ["FCL_SIMULATION"], "home": os.environ["FLWR_HOME"],
         "telemetry": os.environ["FLWR_TELEMETRY_ENABLED"],
         "asked": [config, str(folder), local_data]}))
    progress(state="finished", round=seed)
    channel.send(answer)
"""


@pytest.fixture
def ours(tmp_path, monkeypatch):
    """Put a program of our own in the runner's place; see that nothing is left."""
    (tmp_path / "our_runner.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(runner, "PROGRAM", "our_runner")
    monkeypatch.setenv(MARK, str(tmp_path))
    yield
    assert vanished(tmp_path, seconds=60)


def jobs_of(folder, *seeds, **settings):
    runs = [resolve(tiny("", seed=s, **settings).replace(output="")) for s in seeds]
    return [Job(run, folder / f"{number}") for number, run in enumerate(runs, start=1)]


def test_one_process_serves_one_run_after_another(ours, tmp_path):
    jobs, seen = jobs_of(tmp_path, 0, 1), []
    jobs[1].folder.mkdir()  # of an earlier run
    (jobs[1].folder / "progress.json").write_text('{"state": "finished", "round": 77}')

    def watch(job, progress):
        seen.append((job.folder, progress["state"], progress["round"]))

    (one, first), (two, second) = run_all(Backend("flower", 3, 0.25), jobs, watch)

    assert [one, two] == jobs
    assert (first["seed"], second["seed"]) == (0, 1)
    assert first["pid"] == second["pid"]
    options = {"backend": "flower", "workers": 3, "gpus_per_client": 0.25}
    assert first["options"] == options
    assert (first["simulated"], first["telemetry"]) == ("1", "0")
    assert not os.path.exists(first["home"])
    asked = [jobs[1].run.config.flat(), str(tmp_path / "2"), []]
    assert second["asked"] == asked
    of_second = [told for told in seen if told[0] == jobs[1].folder]
    assert of_second == [(tmp_path / "2", s, 1) for s in ("training", "finished")]


def test_a_run_that_ends_its_process_or_fails_takes_no_other_with_it(ours, tmp_path):
    jobs = jobs_of(tmp_path, 0, 2, 3, 4, 0)

    outcomes = [outcome for _, outcome in run_all(Backend("flower"), jobs)]

    first, ended, broke, refused, last = outcomes
    assert isinstance(ended, RoundError)
    assert str(ended) == (
        f"the run did not finish; the reason stands in {tmp_path / '2' / 'flower.log'}"
    )
    assert (type(broke), str(broke)) == (RoundError, "the client broke")
    assert (type(refused), str(refused)) == (ConfigError, "output: taken")
    assert last["pid"] != first["pid"]


def test_a_process_that_was_killed_between_two_runs_is_an_error_of_one(ours, tmp_path):
    one, two, three = jobs_of(tmp_path, 0, 0, 0)
    for job in (one, two, three):
        job.folder.mkdir()
    with Runner({}) as beside:
        beside.begin(one.run.config, one.folder)
        assert beside.result() is None
        pid = json.loads((one.folder / "summary.json").read_text())["pid"]
        os.kill(pid, signal.SIGKILL)
        beside._guardian.wait(60)
        beside.begin(two.run.config, two.folder)
        assert isinstance(beside.result(), RoundError)
        beside.begin(three.run.config, three.folder)
        assert beside.result() is None


def test_an_interrupt_ends_all_that_was_started(ours, tmp_path):
    def interrupt(job, progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run_all(Backend("flower"), jobs_of(tmp_path, 5), interrupt))


def test_hostile_clients_are_refused_in_flowers_runtime(ours, tmp_path):
    jobs = jobs_of(tmp_path, 0, attack="sign-flip", attackers=1)

    with pytest.raises(ConfigError, match=r"federation\.attack"):
        list(run_all(Backend("flower"), jobs))


def test_several_runs_at_a_time_give_the_numbers_of_one_after_the_other(
    tmp_path, monkeypatch
):
    monkeypatch.setenv(MARK, str(tmp_path))
    place = Backend(processes=2)
    here = list(run_all(Backend(), jobs_of(tmp_path / "here", 1, 2, 3)))
    there = list(run_all(place, jobs_of(tmp_path / "there", 1, 2, 3)))

    there.sort(key=lambda done: done[0].folder)
    for (one, expected), (other, found) in zip(here, there, strict=True):
        assert other.folder == tmp_path / "there" / one.folder.name
        assert found["average_accuracy"] == expected["average_accuracy"]
        assert outcome(other.folder) == outcome(one.folder)
    assert not marked(tmp_path)


def test_several_runs_are_at_work_at_once(ours, tmp_path):
    """The first never ends; the second is another process's."""
    jobs = jobs_of(tmp_path, 5, 0, 1)
    done = run_all(Backend(processes=2), jobs)

    assert [next(done)[0], next(done)[0]] == jobs[1:]
    done.close()


# ---- in Flower's runtime


@pytest.fixture
def simulated(monkeypatch):
    """Note what is run in Flower's runtime; the server of seed 3 breaks."""
    seen = []

    def run_in_ray(config, workers, gpus_per_client):
        seen.append((config.run.seed, workers, gpus_per_client))
        if config.run.seed == 3:
            raise ValueError("the server broke")
        (Path(config.run.output) / "summary.json").write_text("{}")

    monkeypatch.setattr(ray, "run_in_ray", run_in_ray)
    monkeypatch.setattr(runner, "_write_to", lambda path: None)
    return seen


def test_each_run_in_flowers_runtime_has_the_workers_and_their_share(
    simulated, tmp_path
):
    for number, seed in enumerate([1, 2]):
        folder = tmp_path / str(number)
        folder.mkdir()
        config = tiny("", seed=seed, keep_clients=False)
        runner._run_in_ray(config, folder, (), workers=3, gpus_per_client=0.5)

    assert simulated == [(1, 3, 0.5), (2, 3, 0.5)]
    assert not (tmp_path / "0" / ".flower").exists()


def test_a_run_that_fails_names_the_log_and_says_why_in_it(simulated, tmp_path, capsys):
    with pytest.raises(RoundError, match=r"did not finish; .*/flower\.log"):
        runner._run_in_ray(tiny("", seed=3), tmp_path, (), workers=1, gpus_per_client=0)
    assert "ValueError: the server broke" in capsys.readouterr().err


class ProcessEndedError(Exception):
    pass


@pytest.fixture
def engine(monkeypatch):
    """Put an engine of our own in the place of Flower's; let this process live on."""

    def ended(code):
        raise ProcessEndedError(code)

    def set_to(run):
        monkeypatch.setattr(ray, "run_simulation", run)

    monkeypatch.setattr(ray.ray, "init", lambda **options: None)
    monkeypatch.setattr(ray, "join_flower", lambda: None)
    monkeypatch.setattr(os, "_exit", ended)
    return set_to


def test_a_server_that_waits_in_vain_is_ended_with_its_process(engine, capsys):
    """Else it would go on beside the next run, and speak in its log."""

    def fails(app, client_app, clients, backend_config):
        raise ValueError(f"no actors for {clients} clients")

    engine(fails)
    with pytest.raises(ProcessEndedError, match="1"):
        ray.run_in_ray(tiny("", clients=2), 1, 0.5)
    assert "no actors for 2 clients" in capsys.readouterr().err


def test_the_error_of_a_server_leaves_its_process_for_the_next_run(engine, monkeypatch):
    def broken(transport, config):
        assert transport.simulated
        raise RoundError("no replies")

    def simulates(app, client_app, clients, backend_config):
        app(None, Context(1, 0, {}, RecordDict(), {}))

    engine(simulates)
    monkeypatch.setattr(ray, "run_simulated", broken)
    with pytest.raises(RoundError, match="no replies"):
        ray.run_in_ray(tiny("", clients=2), 1, 0.5)


# ---- answers


def test_what_the_runner_cannot_do_is_told_and_the_next_request_is_served():
    given = []

    def run(config, folder, local_data):
        given.append((folder, local_data))
        if config.run.seed:
            raise RoundError("no replies")

    places = [Path("a"), Path("b")]
    requests = [(tiny("", seed=seed).flat(), Path("x"), places) for seed in (1, 0)]
    channel = Mock()
    channel.recv.side_effect = [*requests, EOFError]

    runner._serve(channel, run)

    (failed,), (done,) = (call.args for call in channel.send.call_args_list)
    assert (type(failed), str(failed), done) == (RoundError, "no replies", None)
    assert given == [(Path("x"), places)] * 2
