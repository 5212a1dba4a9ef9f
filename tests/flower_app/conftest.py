"""What Flower has to know of a process that makes messages."""

import pytest
import torch
from flwr.supercore.task_identity import TaskIdentity

from fcl_flower.core.log import LOGGER
from fcl_flower.rounds.client import forget_runs


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    """Give this process an identity, without which Flower makes no message."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture(autouse=True)
def nothing_kept():
    """Let clients of one test find nothing of those of another."""
    threads = torch.get_num_threads()
    forget_runs()
    yield
    forget_runs()
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def log_as_before():
    """Take our log from Flower's again, to which the apps give it for good."""
    handlers, level, propagates = LOGGER.handlers, LOGGER.level, LOGGER.propagate
    yield
    LOGGER.handlers, LOGGER.propagate = handlers, propagates
    LOGGER.setLevel(level)
