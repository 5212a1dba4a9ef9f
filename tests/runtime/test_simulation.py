"""Three real runs in Flower's simulation runtime; the rest with our own programs."""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request
from pathlib import Path

import psutil
import pytest
from encoders import saved, saved_tokenizer
from fakes import rounds_of, summary_of, tiny
from text_sets import write_topics

from fcl_flower.api import simulate
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import RoundError
from fcl_flower.runtime import processes, simulation

ROOT = Path(__file__).parents[2]
PATIENCE = 300  # the machine may be busy
RUN = [
    *("simulate", "--strategy", "fedweit", "--clients", "3", "--tasks", "2"),
    *("--rounds", "1", "--classes-per-task", "2", "--seed", "7"),
    *("--backend", "flower"),
]


def fcl(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "fcl_flower.cli.main", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def still_there(home):
    """Return the processes that were started for the run with this ``FLWR_HOME``."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("FLWR_HOME") == str(home):
                found.append(process.name())
        except psutil.Error:
            continue  # somebody else's, or gone
    return found


def vanished(home):
    """Whether they are gone, or go by themselves within moments."""
    for _ in range(100):
        if not still_there(home):
            return True
        time.sleep(0.1)
    return False


# ---- the real runtime


@pytest.fixture(scope="module")
def real_runs(tmp_path_factory):
    """The same run by the command with one worker, and from Python with two.

    Returns folder and output of each by its workers.
    """
    folder = tmp_path_factory.mktemp("real") / "run"
    process = fcl(*RUN, "--workers", 1, "--output", folder)
    out, err = process.communicate(timeout=PATIENCE)
    log = folder / "flower.log"
    said = log.read_text() if log.exists() else ""
    assert process.returncode == 0, f"{out}\n{err}\n{said[-3000:]}"
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        result = simulate(
            tiny("", clients=3, seed=7),
            backend="flower",
            workers=2,
            output=tmp_path_factory.mktemp("real") / "run",
        )
    return {1: (folder, out), 2: (result.folder, shown.getvalue())}


def test_the_number_of_workers_changes_nothing(real_runs):
    (one, _), (two, _) = real_runs.values()
    assert summary_of(one) == summary_of(two)
    assert rounds_of(one) == rounds_of(two)
    for name in ("accuracy.csv", "scenario.json", "attention.json"):
        assert (one / name).read_text() == (two / name).read_text()


def test_a_real_run_gives_the_numbers_of_the_same_run_in_one_process(
    real_runs, tmp_path
):
    from fakes import run_in_process

    config = tiny(tmp_path, clients=3, seed=7)
    run_in_process(config)
    folder, _ = real_runs[1]
    assert summary_of(tmp_path) == summary_of(folder)


def test_a_real_run_leaves_a_complete_folder_and_nothing_else(real_runs):
    command, python = (out.splitlines() for _, out in real_runs.values())
    assert command[-1].endswith(f"report: {real_runs[1][0] / 'report.html'}")
    for lines in (command[:-1], python):
        assert all(line.startswith("fedweit seed 7: ") for line in lines)
        assert "finished in" in lines[-1]
    for folder, _ in real_runs.values():
        assert {path.name for path in folder.iterdir()} == {
            *("accuracy.csv", "attention.json", "config.toml", "flower.log"),
            *("progress.json", "report.html", "rounds.jsonl", "scenario.json"),
            *("summary.json", "checkpoint", "journal.jsonl"),
        }
        assert len(rounds_of(folder)) == 2
        assert "</html>" in (folder / "report.html").read_text()
        recorded = tomllib.loads((folder / "config.toml").read_text())
        assert recorded["scenario"]["clients"] == 3


def test_no_process_outlives_a_real_run(real_runs):
    for folder, _ in real_runs.values():
        assert vanished(folder / ".flower" / "home")


def test_nothing_of_flower_or_ray_outlives_a_command_that_is_killed(tmp_path):
    folder = tmp_path / "run"
    port = processes.free_port()
    more = ("--rounds", 500, "--set", f"run.metrics_port={port}")
    process = fcl(*RUN, *more, "--workers", 1, "--output", folder)
    deadline = time.monotonic() + PATIENCE
    while not (folder / "accuracy.csv").exists() or not rounds_of(folder):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        assert b"\nfcl_rounds_planned 1000.0\n" in reply.read()
    family = psutil.Process(process.pid).children(recursive=True)
    assert any("ray" in name for name in still_there(folder / ".flower" / "home"))

    process.kill()
    process.communicate(timeout=PATIENCE)

    assert psutil.wait_procs(family, timeout=30)[1] == []
    assert vanished(folder / ".flower" / "home")


def test_fedet_sends_groups_of_enhancers_and_what_it_says_of_them(tmp_path):
    write_topics(tmp_path)
    encoder = saved(tmp_path / "encoder", "bert")
    words = [f"w{label}x{n}" for label in range(4) for n in range(6)]
    saved_tokenizer(encoder, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])
    process = fcl(
        *("simulate", "--strategy", "fedet", "--clients", 2, "--tasks", 2),
        *("--rounds", 1, "--dataset", "tiny", "--data-root", tmp_path),
        *("--set", f"model.encoder={encoder}", "--set", "model.max_tokens=12"),
        *("--set", "groups=2", "--set", "auxiliary=8", "--backend", "flower"),
        *("--output", tmp_path / "run"),
    )
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, f"{out}\n{err}"

    found = summary_of(tmp_path / "run")
    # A tenth of 24 samples of each of four classes is the server's.
    assert found["remarks"] == {
        "consolidation": "distillation on 8 public samples and their labels"
    }
    assert found["bytes_by_kind"]["up"].keys() == {"enhancers", "meta"}
    assert found["bytes_by_kind"]["down"].keys() == {"enhancers", "meta", "router"}
    assert [row["failed"] for row in rounds_of(tmp_path / "run")] == [[], []]
    assert found["model"] == "enhanced-transformer"
    assert vanished(tmp_path / "run" / ".flower" / "home")


# ---- programs of our own in the place of Flower's

SUPERLINK = """
import os, socket, subprocess, sys, time
port = int(sys.argv[sys.argv.index("--port") + 1])
home = os.environ["FLWR_HOME"]
assert f"127.0.0.1:{port}" in open(f"{home}/config.toml").read()
assert os.environ["FLWR_TELEMETRY_ENABLED"] == "0"
# A child in a session of its own, as Flower's simulation is.
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                 start_new_session=True)
server = socket.create_server(("127.0.0.1", port))
time.sleep(600)
"""

FLWR = """
import json, os, pathlib, sys, time, tomllib
app = pathlib.Path(sys.argv[2])
project = tomllib.loads((app / "pyproject.toml").read_text())
config = project["tool"]["flwr"]["app"]["config"]
folder = pathlib.Path(config["run"]["output"])
(folder / "asked.json").write_text(json.dumps([sys.argv, project]))
def progress(**values):
    new = folder / "progress.new"
    new.write_text(json.dumps(values))
    new.replace(folder / "progress.json")
BODY
"""

GOES_WELL = """
progress(state="training", round=1)
time.sleep(0.5)
(folder / "summary.json").write_text('{"average_accuracy": 0.5}')
progress(state="finished", round=1)
time.sleep(600)  # Flower takes its time to end, which is not waited for
"""
CRASHES = """
progress(state="training", round=1)
sys.exit("the client broke")
"""
ENDS_EARLY = """
(folder / "summary.json").write_text("{}")  # of an earlier run
progress(state="training", round=1)
"""
CLAIMS = """
progress(state="finished", round=1)
"""
HANGS = """
progress(state="training", round=1)
time.sleep(600)
"""


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Install programs; return a function that does so and runs a simulation."""

    def install(name, text):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!{sys.executable}\n{text}")
        path.chmod(0o755)
        return path

    def run(body, superlink=SUPERLINK, watch=None):
        places = {
            "flower-superlink": install("flower-superlink", superlink),
            "flwr": install("flwr", FLWR.replace("BODY", body)),
        }
        monkeypatch.setattr(simulation, "program", lambda name: str(places[name]))
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        return simulation.simulate(
            tiny(folder, clients=3, title='a "quoted" name'),
            folder,
            workers=2,
            gpus_per_client=0.25,
            watch=watch or (lambda progress: None),
        )

    yield run
    assert vanished(tmp_path / "run" / ".flower" / "home")


def test_a_run_ends_when_its_report_is_there_not_when_flower_ends(programs, tmp_path):
    seen = []
    began = time.monotonic()
    assert programs(GOES_WELL, watch=seen.append) == {"average_accuracy": 0.5}
    assert time.monotonic() - began < 60
    assert [one["state"] for one in seen] == ["training", "finished"]
    assert not (tmp_path / "run" / ".flower").exists()


def test_flower_gets_the_whole_configuration_and_the_resources(programs, tmp_path):
    programs(GOES_WELL)
    command, project = json.loads((tmp_path / "run" / "asked.json").read_text())
    assert command[1] == "run"
    assert command[3:5] == ["fcl", "--stream"]
    federation = dict(pair.split("=") for pair in command[-1].split())
    assert federation == {
        "num-supernodes": "3",
        "client-resources-num-cpus": "1",
        "client-resources-num-gpus": "0.25",
        "init-args-num-cpus": "2",
    }
    app = project["tool"]["flwr"]["app"]
    assert app["components"] == {
        "serverapp": "fcl_flower.federation.server_app:app",
        "clientapp": "fcl_flower.federation.client_app:app",
    }
    config = RunConfig.of(app["config"])
    assert config.run.title == 'a "quoted" name'
    assert config.run.client_state.startswith(str(tmp_path / "run"))
    assert config.run.output == str(tmp_path / "run")


@pytest.mark.parametrize("body", [CRASHES, ENDS_EARLY, CLAIMS], ids=["1", "2", "3"])
def test_a_run_that_does_not_finish_names_the_log(programs, tmp_path, body):
    with pytest.raises(RoundError, match=r"did not finish; .*run/flower\.log"):
        programs(body)
    assert (tmp_path / "run" / "flower.log").exists()
    if body is CRASHES:
        assert "the client broke" in (tmp_path / "run" / "flower.log").read_text()


def test_a_superlink_that_does_not_start_is_an_error(programs):
    with pytest.raises(RoundError, match="SuperLink did not start"):
        programs(GOES_WELL, superlink="raise SystemExit(1)")


def test_a_superlink_that_never_listens_is_given_up(programs, monkeypatch):
    monkeypatch.setattr(processes, "STARTUP_SECONDS", 0.5)
    with pytest.raises(RoundError, match="SuperLink did not start"):
        programs(GOES_WELL, superlink="import time; time.sleep(600)")


def test_an_interrupt_ends_all_that_was_started(programs):
    def interrupt(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        programs(HANGS, watch=interrupt)


def test_the_leftovers_of_a_crash_are_cleared_away(programs, tmp_path):
    old = tmp_path / "run" / ".flower" / "home"
    old.mkdir(parents=True)
    (old / "config.toml").write_text("old")
    programs(GOES_WELL)
    assert not (tmp_path / "run" / ".flower").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_is_stopped_stops_its_processes(tmp_path, number):
    """The whole command, with our own programs found beside a link to Python."""
    place = tmp_path / "bin"
    place.mkdir()
    for name, text in (
        ("flower-superlink", SUPERLINK),
        ("flwr", FLWR.replace("BODY", HANGS)),
    ):
        (place / name).write_text(f"#!{sys.executable}\n{text}")
        (place / name).chmod(0o755)
    folder = tmp_path / "run"
    start = (
        f"import sys; from fcl_flower.cli.main import main;"
        f"from fcl_flower.runtime import simulation;"
        f"simulation.program = lambda name: {str(place)!r} + '/' + name;"
        f"sys.argv = ['fcl', *{[*RUN, '--output', str(folder)]!r}]; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", start],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    for _ in range(PATIENCE * 10):
        if (folder / "progress.json").exists() or process.poll() is not None:
            break
        time.sleep(0.1)
    # Flower's two with a guardian each, and what one of them has started.
    assert len(still_there(folder / ".flower" / "home")) == 5
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == (143 if number == signal.SIGTERM else -number), err
    assert vanished(folder / ".flower" / "home")
    shutil.rmtree(folder)
