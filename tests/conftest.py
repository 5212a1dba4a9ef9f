"""Flower builds no Message outside a run: give the test process an identity."""

import pytest


@pytest.fixture(autouse=True)
def flower_identity(monkeypatch):
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
