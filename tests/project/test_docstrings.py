"""Examples in docstrings give what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ("fcl_flower", "strategies", "clients")
    for path in (ROOT / package).rglob("*.py")
    if "    >>> " in path.read_text()
)


@pytest.mark.run
@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_say(name):
    found = doctest.testmod(importlib.import_module(name))

    assert found.attempted > 0
    assert found.failed == 0
