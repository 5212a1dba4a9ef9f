"""Scripts that print the table of a study do, from runs of this version."""

import runpy
import sys
from pathlib import Path

import pytest
from fakes import run_in_process, tiny

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
WAITING = {
    "asynchronous.enabled": True,
    "asynchronous.simulated_durations": "1,1,1,4",
    "clients": 4,
}
HIDDEN = {
    **{"strategy": "concept-matching", "scenario": "concepts", "classes_per_task": 0},
    **{"clients": 4, "tasks": 2, "rounds": 2},
}


@pytest.mark.run
@pytest.mark.parametrize(
    ("script", "given", "row"),
    [
        ("asynchronous/table", WAITING, "| one | 1 | "),
        ("concept_matching/freezing", HIDDEN, "| one | 1 | "),
    ],
)
def test_a_table_is_printed(tmp_path, monkeypatch, capsys, script, given, row):
    run_in_process(tiny(tmp_path / "one-seed1", title="one", seed=1, **given))
    monkeypatch.setattr(sys, "argv", [script, str(tmp_path)])

    runpy.run_path(str(EXPERIMENTS / f"{script}.py"), run_name="__main__")

    assert row in capsys.readouterr().out
