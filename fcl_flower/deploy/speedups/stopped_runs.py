"""A SuperNode that keeps nothing of a message whose run was stopped as it came in.

It replaces Flower's step from "is there a message?" to its being stored. Flower (1.41)
leaves such a message where it is, and its task is offered. What comes
of it is taken for the answer to the next message, of whatever run, and from there on
all answers of this client are off by one: it seems deaf until it is started again.
"""

from collections.abc import Callable
from typing import TypeAlias

from flwr.app import Message
from flwr.common.constant import SubStatus
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.object_store import ObjectStore
from flwr.supernode.nodestate import NodeState

STOPPED = "its run was stopped before its message was there"

Received: TypeAlias = tuple[Message, ObjectTree] | None
Step: TypeAlias = Callable[..., int | None]
"""Flower's step from "is there a message?" to its being stored."""


def leaving_nothing(step: Step) -> Step:
    """Let Flower's step tidy up where it ends without a message.

    A SuperNode has one message at a time, and the one before has been answered: what is
    there of its run, and was not before, is what the step has left.
    """

    def tidy(
        *,
        state: NodeState,
        object_store: ObjectStore,
        receive: Callable[[], Received],
        **more: object,
    ) -> int | None:
        found: Received = None
        before = set[int]()

        def noted() -> Received:
            nonlocal found
            found = receive()
            if found is not None:
                before.update(_tasks(state, found[0]))
            return found

        run = step(state=state, object_store=object_store, receive=noted, **more)
        if run is None and found is not None:
            message = found[0]
            # Their tokens open nothing now.
            for task in _tasks(state, message) - before:
                state.finish_task(task, SubStatus.FAILED, STOPPED)
            answers = state.get_messages_legacy(is_reply=True)
            left = [one.metadata.message_id for one in (message, *answers)]
            state.delete_messages(message_ids=left)
            for name in left:
                object_store.delete(name)
        return run

    return tidy


def _tasks(state: NodeState, message: Message) -> set[int]:
    found = state.get_tasks(run_ids=[message.metadata.run_id])
    return {task.task_id for task in found}
