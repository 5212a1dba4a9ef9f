"""One program works in a folder of states, and who is in the way is named."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fcl_flower.core.errors import ConfigError
from fcl_flower.runtime import processes
from fcl_flower.runtime.processes import lock_states

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
HOLDS = """
import pathlib, subprocess, sys, time
from fcl_flower.runtime.processes import lock_states
with lock_states(pathlib.Path(sys.argv[1]), print) as lock:
    if len(sys.argv) > 2:  # leave another behind that holds it
        child = [sys.executable, "-c", "import time; time.sleep(600)"]
        left = subprocess.Popen(child, pass_fds=[lock], stdout=subprocess.DEVNULL)
        print(left.pid, flush=True)
    else:
        print("in", flush=True)
        sys.stdin.read()
"""


@pytest.fixture
def hold(tmp_path):
    """Start a process that works in the folder; returns it and what it has said."""
    begun = []

    def start(*more):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDS, str(tmp_path), *more],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        begun.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in begun:
        process.stdin.close()
        process.stdout.close()
        process.kill()
        process.wait()


def test_a_second_program_is_refused_and_told_who_is_there(hold, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "PATIENCE", 0.3)
    other, _ = hold()
    said = []

    with (
        pytest.raises(ConfigError, match=rf"process {other.pid} \(python") as refused,
        lock_states(tmp_path, said.append),
    ):
        pytest.fail("two programs in one folder")

    assert str(refused.value).startswith(f"state: got '{tmp_path}', expected a folder")
    (line,) = said
    assert f"waiting for process {other.pid} " in line


def test_a_program_that_is_ending_is_waited_for(hold, tmp_path, monkeypatch):
    other, _ = hold()

    with lock_states(tmp_path, lambda line: other.stdin.close()):
        assert other.wait(60) == 0


def test_a_killed_program_leaves_the_folder_free(hold, tmp_path):
    other, _ = hold()
    other.kill()
    other.wait()
    said = []

    with lock_states(tmp_path, said.append):
        assert said == []


def test_a_leftover_that_was_given_the_lock_keeps_it_and_is_named(
    hold, tmp_path, monkeypatch
):
    monkeypatch.setattr(processes, "PATIENCE", 0.3)
    parent, left = hold("and leave one")
    parent.wait(60)
    try:
        with (
            pytest.raises(ConfigError, match=f"process {left} "),
            lock_states(tmp_path, lambda line: None),
        ):
            pytest.fail("two programs in one folder")
    finally:
        os.kill(int(left), 9)
