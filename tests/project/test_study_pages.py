"""Scripts that draw a page of a study's runs do, from runs of this version."""

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


@pytest.mark.parametrize(
    ("script", "given", "page", "row"),
    [
        ("asynchronous/figure", WAITING, "asynchronous", "| one | 1 | "),
        ("concept_matching/freezing", HIDDEN, "freezing", "| one | 1 | "),
    ],
)
def test_a_page_is_drawn(tmp_path, monkeypatch, capsys, script, given, page, row):
    run_in_process(tiny(tmp_path / "one-seed1", title="one", seed=1, **given))
    monkeypatch.setattr(sys, "argv", [script, str(tmp_path)])

    runpy.run_path(str(EXPERIMENTS / f"{script}.py"), run_name="__main__")

    assert row in capsys.readouterr().out
    assert "</html>" in (tmp_path / f"{page}.html").read_text()
