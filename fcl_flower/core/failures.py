"""Reasons why a round leaves clients out: sentences for people, classes for counters.

A sentence may quote a client's message. Its class never depends on the quotation.
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
"""The reason why the update of a client without its private state is not used."""

_QUESTION: Final = re.compile("[a-z]+: ")
"""The kind of request that failed, which may stand before the sentence."""


class Failure(StrEnum):
    """A class of reasons, which is the value of a counter's label.

    >>> Failure.of("evaluation: no reply in time")
    <Failure.LATE: 'late'>
    """

    FAILED = "failed"
    """The client, or Flower in its place, answered with an error."""
    REFUSED = "refused"
    """A check refused the client's reply."""
    LATE = "late"
    """The client did not reply in time, or is still busy with an earlier round."""
    STATE_LOST = "state-lost"
    """The client's private state is gone."""
    UNREACHABLE = "unreachable"
    """The client was not connected, or no message reached it."""

    @classmethod
    def of(cls, why: str) -> Self:
        """Classify a reason, which may begin with the kind of request.

        A reason that is no sentence of this module comes from a check: ``refused``. A
        client that names a tensor like a sentence gets into another class by that, but
        never makes a new class.
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
    """Write why clients are left out; clients with the same reason share a clause.

    >>> told({2: "is not connected", 0: "no reply in time", 1: "no reply in time"})
    'clients 0, 1: no reply in time; client 2: is not connected'
    """
    clients_by_reason: dict[str, list[int]] = {}
    for client in sorted(reasons):
        clients_by_reason.setdefault(reasons[client], []).append(client)
    return "; ".join(
        f"client{'s' * (len(clients) > 1)} {', '.join(map(str, clients))}: {reason}"
        for reason, clients in clients_by_reason.items()
    )
