"""The tables of protections and compatibility are those of the code."""

import json
import re
import statistics
from pathlib import Path

import pytest

from fcl_flower.algorithms.base import SumsUpdates
from fcl_flower.algorithms.registry import algorithm, algorithms

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explain/protections.md").read_text()
COMPATIBLE = (ROOT / "docs" / "reference/compatibility.md").read_text()
LEAKAGE = ROOT / "experiments" / "leakage"


def summed(name):
    return issubclass(algorithm(name).load_server(), SumsUpdates)


DECLARED = {
    "client": lambda name: "client" in algorithm(name).privacy_units,
    "example": lambda name: "example" in algorithm(name).privacy_units,
    "secure": summed,
    "robust": lambda name: algorithm(name).load_server().robust_aggregation,
}
"""What a strategy's declaration says of each column."""

WORDS = {
    "all four": {"client", "example", "secure", "robust"},
    "differential privacy": {"client", "example"},
    "privacy of an example": {"example"},
    "secure aggregation": {"secure"},
    "robust aggregation": {"robust"},
}
"""The columns that the words of a reason are about."""


def table(page, heading):
    """Return the rows of the table below a heading, by column."""
    section = re.search(rf"^## {heading}\n(.*?)(?=^## )", page, re.M | re.S)[1]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def compatible():
    """Return what the generated page says of each strategy's protections."""
    rows = table(COMPATIBLE, "Protections and rounds")
    return {row["strategy"].strip("`"): row for row in rows}


def test_what_the_checks_let_through_is_what_a_strategy_declares():
    """The page asks the checks that refuse a run; here the declarations are asked."""
    assert compatible().keys() == algorithms().keys()
    for name, row in compatible().items():
        for column, declared in DECLARED.items():
            assert (row[column] != "no") == declared(name), (name, column)
            assert row[column] != "with settings" or name == "analytic"


def test_whatever_a_strategy_refuses_has_its_reason_once():
    given = {}
    for row in table(PAGE, "Why a strategy refuses"):
        refused = set().union(*(WORDS[w] for w in WORDS if w in row["refuses"]))
        for name in re.findall(r"`([a-z-]+)`", row["strategy"]):
            assert name not in given
            assert row["why"]
            given[name] = refused

    expected = {
        name: {column for column in DECLARED if row[column] != "yes"}
        for name, row in compatible().items()
    }
    assert given == {name: columns for name, columns in expected.items() if columns}


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_what_a_strategy_shows_is_told_once(name):
    told = [
        row
        for row in table(PAGE, "What leaves a client")
        if f"`{name}`" in row["strategy"]
    ]

    assert len(told) == 1


def test_the_attacks_tables_are_those_of_the_kept_values():
    page = (LEAKAGE / "README.md").read_text()
    found = json.loads((LEAKAGE / "results.json").read_text())

    for title, rows in found.items():
        assert f"| {title} | value |" in page
        for row, values in rows.items():
            mean, spread = statistics.mean(values), statistics.stdev(values)
            assert len(values) == 3
            assert f"| {row} | {mean:.3f} ± {spread:.3f} |" in page
