"""The tables' short cut computes what the runs compute that it stands for."""

import importlib.util
from pathlib import Path

import pytest
from fakes import run_in_process, summary_of, tiny

SCRIPT = Path(__file__).parents[2] / "experiments" / "concept_matching" / "tables.py"


@pytest.fixture
def tables():
    spec = importlib.util.spec_from_file_location("tables", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SETTINGS = {
    "default": "",
    "euclidean": 'distance = "euclidean"',
    "literal": 'matching = "literal", clustering = "agglomerative"',
    "two": "concepts = 2",
    "optics": 'clustering = "optics"',
}


def test_rows_that_share_their_clients_are_those_of_whole_runs(
    tables, tmp_path, one_thread
):
    rows = [
        tiny(
            tmp_path / label,
            strategy="concept-matching",
            scenario="concepts",
            classes_per_task=0,
            clients=6,
            tasks=3,
            rounds=4,
            client_fraction=0.7,
            valid_fraction=0.2,
            title=label,
            seed=2,
            threads=1,
            **{"strategy.params": text},
        )
        for label, text in SETTINGS.items()
    ]
    found = tables.one_seed(rows)

    for row in rows:
        run_in_process(row)
        whole = summary_of(Path(row.run.output))
        expected = {"accuracy": whole["average_accuracy"], **whole["concepts"]}
        told = {name: found[row.run.title][name] for name in expected}
        assert told == pytest.approx(expected, abs=1e-12), row.run.title
    shared = {label: one["run"] for label, one in found.items()}
    assert shared["default"] == shared["euclidean"], "one run stands for both"
    assert len({shared["default"], shared["literal"], shared["two"]}) == 3
