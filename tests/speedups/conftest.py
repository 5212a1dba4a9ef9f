"""Flower builds no Message outside a run: a test's process has an identity."""

import pytest
from flwr.supercore.task_identity import TaskIdentity

NAMES = ("_task_id", "_run_id", "_node_id")


@pytest.fixture(autouse=True)
def identity():
    before = {name: getattr(TaskIdentity, name) for name in NAMES}
    for name in NAMES:
        setattr(TaskIdentity, name, 1)
    yield
    for name, value in before.items():
        setattr(TaskIdentity, name, value)
