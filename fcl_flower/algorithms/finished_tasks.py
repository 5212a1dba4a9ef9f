"""A record of the finished tasks that each client was sent, so that each is sent once.

A strategy of class-incremental learning keeps something for each finished task, which
no longer changes. Its state has the groups ``meta/task`` and ``meta/held``.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np
from typing_extensions import override

from fcl_flower.algorithms.base import P, ServerStrategy
from fcl_flower.core.types import Array, Arrays, Payload

TASK: Final = "meta/task"
"""The group with ``finished``, int64: the number of tasks before the current one. A
strategy may add arrays of its own."""
HELD: Final = "meta/held"
"""The group with the number of finished tasks, int64, that each client had been sent
when it last took part. Its names are client numbers."""


def count_in(arrays: Arrays, name: str) -> int:
    """Read a number of a group."""
    return int(np.asarray(arrays[name]))


def as_count(value: int) -> Array:
    """Write a number for a group."""
    return np.asarray(value, np.int64)


def unsent(state: Payload, client: int) -> range:
    """List the finished tasks that a client has not been sent."""
    name, held = str(client), state[HELD]
    since = count_in(held, name) if name in held else 0
    return range(since, count_in(state[TASK], "finished"))


def with_held(state: Payload, clients: Iterable[int]) -> Payload:
    """Note that clients hold all finished tasks."""
    finished = as_count(count_in(state[TASK], "finished"))
    held = dict.fromkeys(map(str, clients), finished)
    return {**state, HELD: {**state[HELD], **held}}


class SendsFinishedTasks(ServerStrategy[P]):
    """A strategy that sends each client once what it keeps of a finished task."""

    groups = {}  # a task has to end for all before another begins

    @override
    def on_state_lost(self, state: Payload, client: int) -> Payload:
        held = {c: n for c, n in state[HELD].items() if c != str(client)}
        return {**state, HELD: held}
