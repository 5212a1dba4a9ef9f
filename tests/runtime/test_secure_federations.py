"""Secure aggregation in Flower's simulation, and between processes of this machine."""

import contextlib
import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from fakes import rounds_of, run_in_process, summary_of, tiny

from fcl_flower.api import simulate
from fcl_flower.runtime.processes import free_port

ROOT = Path(__file__).parents[2]
PATIENCE = 500  # the machine may be busy
SETTINGS = {
    **{"strategy": "fedavg", "clients": 3, "tasks": 1, "seed": 7},
    "secure_aggregation": True,
}


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """Return the folder of the same run in one process."""
    folder = tmp_path_factory.mktemp("usual")
    run_in_process(tiny(folder, **SETTINGS))
    return folder


def test_flowers_simulation_gives_the_numbers_of_one_process(usual, tmp_path):
    with contextlib.redirect_stdout(io.StringIO()):
        simulate(tiny("", **SETTINGS), backend="flower", output=tmp_path / "run")

    assert summary_of(tmp_path / "run") == summary_of(usual)
    assert rounds_of(tmp_path / "run") == rounds_of(usual)


@pytest.fixture
def started(tmp_path):
    """Start commands of ours, each with a log; end them and their children."""
    running = {}

    def start(name, *arguments):
        with (tmp_path / f"{name}.log").open("w") as log:
            running[name] = subprocess.Popen(
                [sys.executable, "-m", "fcl_flower.cli.main", *map(str, arguments)],
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return running[name]

    yield start
    members = [psutil.Process(p.pid) for p in running.values() if p.poll() is None]
    members += [child for one in members for child in one.children(recursive=True)]
    for process in running.values():
        process.terminate()
    for process in psutil.wait_procs(members, timeout=60)[1]:
        process.kill()
    for process in running.values():
        process.wait()


def said(path, pattern):
    """Wait until a command has said something."""
    deadline = time.monotonic() + PATIENCE
    while not re.search(pattern, path.read_text()):
        assert time.monotonic() < deadline, path.read_text()
        time.sleep(0.2)


def test_a_real_federation_gives_the_numbers_of_one_process(usual, started, tmp_path):
    port, control = free_port(), free_port()
    started(
        "server",
        *("server", "--insecure", "--host", "127.0.0.1", "--port", port),
        *("--control-port", control, "--state", "state-server"),
    )
    said(tmp_path / "server.log", "(?s)" + str(port))
    for client in range(3):
        started(
            f"client-{client}",
            *("client", "--insecure", "--server", f"127.0.0.1:{port}"),
            *("--number", client, "--state", f"state-{client}"),
        )
    for client in range(3):
        said(tmp_path / f"client-{client}.log", "SuperNode ID")
    run = started(
        "run",
        *("run", "--insecure", "--server", f"127.0.0.1:{control}"),
        *("--strategy", "fedavg", "--clients", 3, "--tasks", 1, "--rounds", 1),
        *("--classes-per-task", 2, "--seed", 7, "--output", "results"),
        *("--set", "federation.secure_aggregation=true"),
    )

    assert run.wait(PATIENCE) == 0, (tmp_path / "run.log").read_text()[-3000:]

    found, expected = summary_of(tmp_path / "results"), summary_of(usual)
    for name in ("client_accuracy", "average_accuracy", "bytes_up", "bytes_by_kind"):
        assert found[name] == expected[name]
    # No key of the masks was ever written down.
    for client in range(3):
        for file in (tmp_path / f"state-{client}").rglob("*"):
            assert not file.is_file() or b"PRIVATE KEY" not in file.read_bytes()
