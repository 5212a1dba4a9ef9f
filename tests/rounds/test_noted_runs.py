"""A server's folder knows the runs whose processes it has started."""

import pytest
from fakes import tiny

from fcl_flower.results.known_runs import known_runs
from fcl_flower.rounds.clients import VARIABLE
from fcl_flower.rounds.noted_runs import noted_run


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
