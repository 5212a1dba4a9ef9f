"""Flower's programs outlast a pause: their clock stands still while they hear nobody.

Flower (1.41) takes a task for dead of which it has heard nothing for a minute, and ends
its run as failed. A machine that sleeps, is moved to another host or waits for its disk
hears nobody for longer, though all are alive. So a program counts a silence only as far
as it would have heard somebody.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import wraps
from types import ModuleType
from typing import Any

from fcl_flower.core.patient_clock import PatientClock

STORE = "store_object"
"""The method of Flower's states that takes an object in."""


def outlast_pauses(state: type, look: str, modules: Sequence[ModuleType]) -> None:
    """Let a program of Flower's take nobody for dead, and nothing amiss, after a pause.

    What it knows expires by a patient clock. What Flower says of when a run began and
    ended is late by what the clock is behind. And an object that comes twice, as the
    answer to the first call was late, has been stored: Flower says that it was not, and
    who sends it gives up.

    Args:
        state: the class of what the program knows.
        look: the name of its method that drops what has expired. The clock goes on
            when that has come to its end: then this program runs and its disk answers.
        modules: of the class and its subclasses, which all call one function ``now``.
    """
    now: Callable[[], datetime] = vars(modules[0])["now"]
    clock = PatientClock(lambda: now().timestamp())
    for module in modules:
        vars(module)["now"] = lambda: datetime.fromtimestamp(clock(), UTC)
    drop: Callable[[Any], None] = vars(state)[look]
    store: Callable[[Any, int, str, str, bytes], bool] = vars(state)[STORE]

    @wraps(drop)
    def drop_and_note(self: object) -> None:
        drop(self)
        clock.look()

    @wraps(store)
    def store_again(
        self: Any,  # noqa: ANN401
        run_id: int,
        session_id: str,
        object_id: str,
        object_content: bytes,
    ) -> bool:
        return store(self, run_id, session_id, object_id, object_content) or (
            self.object_store.get(object_id) == object_content
        )

    setattr(state, look, drop_and_note)
    setattr(state, STORE, store_again)
