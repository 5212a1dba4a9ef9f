"""Why clients are left out of a round: sentences for people, classes for counters.

A sentence may quote what a client sent. Its class is one of a few, whatever it quotes.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Self

FAILED: Final = "the client failed"
NOT_CONNECTED: Final = "is not connected"
NOT_REACHED: Final = "could not be reached"
NO_REPLY: Final = "no reply in time"
WAS_LATE: Final = "was late"
BUSY: Final = "is still busy with an earlier round"
STATE_LOST: Final = "has lost its state and starts anew when asked next"
"""Why the update of a client without its private state is not used."""

_QUESTION: Final = re.compile("[a-z]+: ")
"""Which question it was about, before the sentence."""


class Failure(StrEnum):
    """Class of reasons: the value of a counter's label.

    >>> Failure.of("evaluation: no reply in time")
    <Failure.LATE: 'late'>
    """

    FAILED = "failed"
    """The client answered by an error, or Flower did in its place."""
    REFUSED = "refused"
    """What it sent must not be used."""
    LATE = "late"
    """It was not waited for any longer, or not asked as it had been late before."""
    STATE_LOST = "state-lost"
    """Its private state is gone."""
    UNREACHABLE = "unreachable"
    """It was not connected, or nothing could be sent to it."""

    @classmethod
    def of(cls, why: str) -> Self:
        """Classify a reason, which may begin with the question that it is about.

        What is no sentence of this module is the complaint of a check: ``refused``. A
        client whose tensors are named like a sentence gets into another class by that,
        but never makes a new one.
        """
        question = _QUESTION.match(why)
        sentence = why[question.end() :] if question else why
        for beginning, name in _BEGINNINGS.items():
            if sentence.startswith(beginning):
                return cls(name)
        return cls(cls.REFUSED)


_BEGINNINGS: Final = {
    FAILED: Failure.FAILED,
    NOT_CONNECTED: Failure.UNREACHABLE,
    NOT_REACHED: Failure.UNREACHABLE,
    NO_REPLY: Failure.LATE,
    WAS_LATE: Failure.LATE,
    BUSY: Failure.LATE,
    STATE_LOST: Failure.STATE_LOST,
}


def told(reasons: Mapping[int, str]) -> str:
    """Tell why clients are left out, once for all that have the same reason.

    >>> told({2: "is not connected", 0: "no reply in time", 1: "no reply in time"})
    'clients 0, 1: no reply in time; client 2: is not connected'
    """
    alike: dict[str, list[int]] = {}
    for client in sorted(reasons):
        alike.setdefault(reasons[client], []).append(client)
    return "; ".join(
        f"client{'s' * (len(clients) > 1)} {', '.join(map(str, clients))}: {why}"
        for why, clients in alike.items()
    )
