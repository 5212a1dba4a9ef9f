"""A SuperNode that looks for messages often while a run goes on.

It replaces the wait between two looks. Flower (1.41) looks every 3 seconds, whatever
happens. Where clients train for a second most of a round is that pause. Here the pause
grows with the time since the client's last answer: a client that waits for others finds
its next message soon after it is there, and a client without a run calls its server no
more often than before.
"""

import time
from collections.abc import Callable
from typing import TypeAlias

Step: TypeAlias = Callable[..., int | None]
"""Flower's step from "is there a message?" to its being stored."""

SHORTEST = 0.2
"""Seconds between two looks right after an answer."""
SHARE = 0.2
"""A pause is this share of the time since the last answer."""
LONGEST = 3.0
"""Flower's own pause, which it makes after a step without a message."""


def looking_often(
    step: Step,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Step:
    """Let Flower's step look again until a message is there, or for 15 seconds.

    Args:
        step: returns the run of a message, or ``None`` where there is no message.
        now: the time in seconds.
        sleep: waits for so many seconds.
    """
    answered: float | None = now() - LONGEST / SHARE

    def looked(**given: object) -> int | None:
        nonlocal answered
        if answered is None:  # Flower calls again when its message has been answered
            answered = now()
        while (run := step(**given)) is None:
            pause = max(SHORTEST, SHARE * (now() - answered))
            if pause >= LONGEST:
                return None
            sleep(pause)
        answered = None
        return run

    return looked
