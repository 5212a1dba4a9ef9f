"""What of a simulation is left in its folder."""

import json

import pytest

from fcl_flower.config.run_config import RunConfig
from fcl_flower.results import run_folder
from fcl_flower.results.run_folder import CLIENTS, clients_bytes, close_folder
from fcl_flower.simulation.study import Study


@pytest.fixture
def finished(tmp_path):
    """Return the folder of a run whose two clients keep 60 and 40 bytes."""
    for client, size in enumerate((60, 40)):
        (tmp_path / CLIENTS / f"client-{client}").mkdir(parents=True)
        (tmp_path / CLIENTS / f"client-{client}" / "base").write_bytes(bytes(size))
    (tmp_path / "summary.json").write_text(json.dumps({"seed": 3}))
    return tmp_path


@pytest.mark.parametrize(
    ("keep", "limit", "left"),
    [("auto", 100, 100), ("auto", 99, 0), ("true", 99, 100), ("false", 100, 0)],
)
def test_states_are_kept_where_they_are_small_or_where_that_is_said(
    keep, limit, left, finished, monkeypatch
):
    monkeypatch.setattr(run_folder, "SMALL_STATES", limit)

    assert clients_bytes(finished) == 100
    assert close_folder(finished, keep_clients=keep) == {"seed": 3}

    assert clients_bytes(finished) == left
    assert (finished / run_folder.WORK).exists() == bool(left)


def test_a_study_keeps_states_only_where_a_row_says_so():
    def kept(**given):
        study = Study((RunConfig.from_settings(**given),), (1, 2))
        return [run.run.keep_clients for run in study.runs()]

    assert RunConfig().run.keep_clients == "auto"
    assert kept() == ["false", "false"]
    assert kept(keep_clients=True) == ["true", "true"]
    assert kept(keep_clients="false") == ["false", "false"]
