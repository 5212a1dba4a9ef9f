"""What Flower has to know of a process that makes messages."""

from importlib.util import find_spec

import pytest
import torch

from fcl_flower.core.log import LOGGER
from fcl_flower.rounds.client import forget_runs


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    """Give this process an identity, without which a newer Flower makes no message."""
    if find_spec("flwr.supercore.task_identity") is None:
        return
    from flwr.supercore.task_identity import TaskIdentity

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
