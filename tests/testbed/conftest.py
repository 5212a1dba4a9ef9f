"""Test beds, where this machine can have them."""

import sys
from pathlib import Path

import pytest
from namespaces import why_not

sys.path.append(str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def possible():
    if why := why_not():
        pytest.skip(why)
