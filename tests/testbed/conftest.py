"""Test beds, where this machine can have them."""

import sys

import pytest
from local_federation import ROOT
from namespaces import why_not

sys.path.append(str(ROOT / "experiments" / "testbed"))


@pytest.fixture(scope="session", autouse=True)
def possible():
    if why := why_not():
        pytest.skip(why)
