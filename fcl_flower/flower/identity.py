"""Whom Flower takes this process for, what it logs here, and a grid without a server.

Flower builds a message only in a process that knows its task, run and node, and names a
message only where it stores one.
"""

import contextlib
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from typing_extensions import override

RUN_ID = 1

FLOWER_LOG = logging.getLogger("flwr")
log = FLOWER_LOG.log


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


@contextlib.contextmanager
def log_to(path: Path | None, mode: str) -> Iterator[None]:
    """Write Flower's log to a file instead of the console, unless None."""
    if path is None:
        yield
        return
    before = list(FLOWER_LOG.handlers)
    file = logging.FileHandler(path, mode=mode)
    file.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    FLOWER_LOG.handlers[:] = [file]
    try:
        yield
    finally:
        FLOWER_LOG.handlers[:] = before
        file.close()


def name_message(message: Message, name: str) -> None:
    """Give a message the id that Flower's stores give it, which nobody else may."""
    message.metadata.__dict__["_message_id"] = name


class LocalGrid(Grid):
    """A grid of this process: what Flower's interface asks of one with a SuperLink."""

    @override
    def set_run(self, run: Run) -> None:
        raise NotImplementedError("a run in this process has no SuperLink")

    @property
    @override
    def run(self) -> Run:
        raise NotImplementedError("a run in this process has no SuperLink")

    @override
    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(
            content,
            dst_node_id=dst_node_id,
            message_type=message_type,
            group_id=group_id,
            ttl=ttl,
        )

    @override
    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return list(self.pull_messages(self.push_messages(messages)))
