"""Whom Flower takes this process for: no message is built by nobody."""

import contextlib
from collections.abc import Iterator

from flwr.supercore.task_identity import TaskIdentity

RUN_ID = 1


@contextlib.contextmanager
def flower_identity() -> Iterator[None]:
    """Give this process an identity, without which Flower builds no message."""
    names = ("_task_id", "_run_id", "_node_id")
    before = {name: getattr(TaskIdentity, name) for name in names}
    for name in names:
        setattr(TaskIdentity, name, RUN_ID)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(TaskIdentity, name, value)
