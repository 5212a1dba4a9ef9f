"""Every configuration and command that is known to be refused, in the same words.

``experiments/reference_numbers/refusals.py --write`` writes the words anew.
"""

import importlib.util
import json
from pathlib import Path

import pytest

PLACE = Path(__file__).parents[1] / "experiments" / "reference_numbers"
SPEC = importlib.util.spec_from_file_location("refusals", PLACE / "refusals.py")
refusals = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(refusals)
CASES = json.loads(refusals.CASES.read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("refusals")
    refusals.write_data(made)
    return made


@pytest.mark.parametrize("number", range(len(CASES)))
def test_what_is_refused_is_refused_in_the_same_words(number, folder, monkeypatch):
    monkeypatch.setenv("FCL_DATA", str(folder))
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", [])
    case, before = CASES[number], sorted(folder.rglob("*"))

    asked = json.loads(json.dumps(case).replace("{folder}", str(folder)))
    said = refusals.refusal(asked).replace(str(folder), "{folder}")

    assert said == case["sentence"]
    assert sorted(folder.rglob("*")) == before, "it leaves nothing behind"
