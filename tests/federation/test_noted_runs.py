"""A server's folder knows the runs whose processes it has started."""

import sys
from types import SimpleNamespace

import pytest
from fakes import tiny

from fcl_flower.core.errors import RoundError
from fcl_flower.federation import server_app
from fcl_flower.federation.clients import VARIABLE
from fcl_flower.federation.server_app import noted_run
from fcl_flower.results.known_runs import known_runs


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "state" / "client-numbers.json"))
    return tmp_path / "state" / "runs"


def test_a_run_of_a_server_is_noted_with_its_folder(runs, tmp_path):
    with noted_run(tiny(tmp_path / "out", id="mine")):
        (run,) = known_runs(runs)
        assert (run.name, run.standing) == ("mine", "goes on")
        assert run.folder == tmp_path / "out"
    assert [run.standing for run in known_runs(runs)] == ["finished"]


def test_a_simulation_notes_nothing(runs, tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE)
    with noted_run(tiny(tmp_path / "out", id="mine")):
        assert not runs.exists()


def test_nor_does_a_run_without_a_name(runs, tmp_path):
    with noted_run(tiny(tmp_path / "out")):
        assert not runs.exists()


@pytest.mark.parametrize("remote", [True, False])
def test_a_failure_over_a_network_is_a_sentence_without_a_traceback(
    remote, runs, tmp_path, monkeypatch
):
    def fail(*given):
        raise RoundError("too few replies")

    monkeypatch.setattr(sys, "tracebacklimit", 100, raising=False)
    monkeypatch.setattr(server_app, "is_remote", lambda grid: remote)
    monkeypatch.setattr(server_app, "flower_strategy", fail)
    context = SimpleNamespace(run_config=tiny(tmp_path / "out").flat())

    with pytest.raises(RoundError):
        server_app.main(None, context)

    assert sys.tracebacklimit == (0 if remote else 100)
