"""The tables of docs/explain/protections.md are those of the code."""

import json
import re
import statistics
from pathlib import Path

import pytest

from fcl_flower.algorithms.base import SumsUpdates
from fcl_flower.algorithms.registry import algorithm, algorithms

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explain/protections.md").read_text()
LEAKAGE = ROOT / "experiments" / "leakage"


def summed(name):
    return issubclass(algorithm(name).load_server(), SumsUpdates)


DECLARED = {
    "client-level DP": lambda name: "client" in algorithm(name).privacy_units,
    "example-level DP": lambda name: "example" in algorithm(name).privacy_units,
    "secure aggregation": summed,
    "robust aggregation": lambda name: algorithm(name).load_server().robust_aggregation,
}
"""What a strategy's declaration says of each column."""


def table(heading):
    """Return the rows of the table below a heading, by column."""
    section = re.search(rf"^## {heading}\n(.*?)(?=^## )", PAGE, re.M | re.S)[1]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def test_every_strategy_is_in_the_table_with_what_its_declaration_says():
    rows = table("What goes with what")
    found = {row["strategy"].strip("`"): row for row in rows}

    assert sorted(found) == [row["strategy"].strip("`") for row in rows]
    assert set(found) == set(algorithms())
    assert found["fedavg"].keys() == {"strategy", *DECLARED, "why not"}
    for name, row in found.items():
        for column, declared in DECLARED.items():
            assert row[column] == ("yes" if declared(name) else "no"), name
        assert row["why not"] or all(row[column] == "yes" for column in DECLARED)


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_what_a_strategy_shows_is_told_once(name):
    told = [
        row for row in table("What leaves a client") if f"`{name}`" in row["strategy"]
    ]

    assert len(told) == 1


def test_the_privacy_units_of_every_strategy_are_told_once():
    page = (ROOT / "docs" / "howto/privacy.md").read_text()
    section = re.search(r"^## Strategies\n(.*?)^Others refuse", page, re.M | re.S)[1]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    told = {
        name: [cell.startswith(("yes", "likewise")) for cell in row[1:]]
        for row in rows
        for name in re.findall(r"`([a-z-]+)`", row[0])
    }

    assert len(told) == sum(len(re.findall(r"`[a-z-]+`", row[0])) for row in rows)
    assert told == {
        name: [unit in one.privacy_units for unit in ("client", "example")]
        for name, one in algorithms().items()
    }


def test_the_attacks_tables_are_those_of_the_kept_values():
    page = (LEAKAGE / "README.md").read_text()
    found = json.loads((LEAKAGE / "results.json").read_text())

    for title, rows in found.items():
        assert f"| {title} | value |" in page
        for row, values in rows.items():
            mean, spread = statistics.mean(values), statistics.stdev(values)
            assert len(values) == 3
            assert f"| {row} | {mean:.3f} ± {spread:.3f} |" in page
