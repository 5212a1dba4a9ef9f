"""What a run's numbers hang on, and the memory it took."""

import subprocess
import sys

import pytest

from fcl_flower.results import environment as recorded
from fcl_flower.results.environment import PeakMemory
from fcl_flower.results.events import Environment


def git(folder, *arguments):
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def clone(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("a")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "one")
    git(tmp_path, "tag", "v1")
    return tmp_path


def test_the_commit_is_that_of_the_clone_and_says_what_differs(clone, monkeypatch):
    head = git(clone, "rev-parse", "HEAD").strip()
    assert recorded.commit_of(clone) == head[:12]
    (clone / "file").write_text("b")
    recorded.commit_of.cache_clear()
    assert recorded.commit_of(clone) == f"{head[:12]}-dirty"
    below = clone / "site-packages"
    below.mkdir()
    assert recorded.commit_of(below) is None, "that of another repository"
    (below / ".git").write_text("nonsense")
    recorded.commit_of.cache_clear()
    assert recorded.commit_of(below) is None
    monkeypatch.setenv("PATH", "")
    recorded.commit_of.cache_clear()
    assert recorded.commit_of(clone) is None, "without git"


def test_all_that_is_known_is_told_in_one_line():
    known = Environment(
        date="2026-01-02",
        versions={"torch": "2.6", "flwr": None},
        machine="Linux x86_64,\n2 cores",
    )
    assert known.describe() == "2026-01-02, torch 2.6, Linux x86_64, 2 cores"
    assert Environment().describe() == ""


# ---- memory

MB = 1 << 20


ONE_RUN_AFTER_ANOTHER = """
import numpy as np
from fcl_flower.results.environment import PeakMemory

def take(megabytes):
    return float(np.ones(megabytes << 17).sum())  # touched, and given back

take(250)  # an earlier run of the process
peak = PeakMemory()
print(peak.bytes())
for megabytes in (100, 50):
    take(megabytes)
    print(peak.bytes())
"""


@pytest.mark.process
def test_the_peak_is_that_of_the_run_alone():
    """In a process of its own: what a test before had left moves the peak, too."""
    done = subprocess.run(
        [sys.executable, "-c", ONE_RUN_AFTER_ANOTHER],
        check=True,
        capture_output=True,
        text=True,
    )
    before, after, later = map(int, done.stdout.split())

    assert 99 * MB < after - before < 110 * MB
    assert later - after < 5 * MB


@pytest.mark.process
def test_processes_that_were_started_count_while_they_run():
    peak = PeakMemory()
    before = peak.bytes()
    program = "b = b'x' * (80 << 20); del b; print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout.readline() == "1\n"
        assert peak.bytes() - before > 80 * MB
        # The next run of a process that is kept begins anew.
        assert PeakMemory().bytes() < peak.bytes() + 5 * MB
        assert recorded._peak(child.pid) < 60 * MB
        child.communicate("\n")
    assert recorded._peak(child.pid) == 0
    assert peak.bytes() - before < 40 * MB


def test_where_the_system_forgets_no_peak_nothing_is_known(monkeypatch):
    monkeypatch.setattr(recorded, "_RESET", "no number")
    assert PeakMemory().bytes() is None
