"""The command in this process, and runs that are recorded or forbidden."""

import signal
import sys
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from fcl_flower.cli import main
from fcl_flower.simulation import local_runs, progress


class Answer(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    def is_refusal(self, *parts):
        """Assert that it is one sentence with these parts."""
        assert self.code == 2, self.err
        (line,) = self.err.splitlines()
        assert line.startswith("fcl: ")
        assert not line.endswith(".."), "a sentence within a sentence"
        for part in parts:
            assert part in line, line
        assert "Traceback" not in self.err + self.out


@dataclass
class Run:
    """What a command asked to be run."""

    config: object
    folder: object
    backend: object


@pytest.fixture
def fcl(monkeypatch, capsys, tmp_path):
    """Call the command in this process; return its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FCL_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "300")
    before = signal.getsignal(signal.SIGTERM)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fcl", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        shown = capsys.readouterr()
        return Answer(ended.value.code or 0, shown.out, shown.err)

    yield call
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def ran(monkeypatch):
    """Record what is run; everything runs in this process."""
    runs, run_all = [], local_runs.run_all

    def record(backend, jobs, watch):
        runs.extend(Run(job.run.config, job.folder, backend) for job in jobs)
        here = local_runs.Backend(local_data=backend.local_data)
        return run_all(here, jobs, watch)

    monkeypatch.setattr(progress, "run_all", record)
    return runs


@pytest.fixture
def run_fails(monkeypatch):
    """Let every run do something else."""

    def fail_by(act):
        def run_all(backend, jobs, watch):
            for job in jobs:
                yield job, act()

        monkeypatch.setattr(progress, "run_all", run_all)

    return fail_by


@pytest.fixture
def nothing_runs(run_fails):
    def refuse():
        raise AssertionError("a run began")

    run_fails(refuse)
