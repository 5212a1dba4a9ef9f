"""What a SuperNode says, line by line, and what that means for its user."""

from enum import Enum, auto

from fcl_flower.core.errors import MESSAGE_FAILED


class Event(Enum):
    """What a line of the log of Flower's SuperNode says."""

    LET_IN = auto()
    REFUSED = auto()
    CUT_OFF = auto()
    BACK = auto()
    MEANT = auto()
    FAILED = auto()
    ANSWERED = auto()
    OTHER = auto()


_SIGNS = {
    "SuperNode ID:": Event.LET_IN,
    "Failed to activate SuperNode": Event.REFUSED,
    "Connection attempt failed, retrying": Event.CUT_OFF,
    "Connection successful after": Event.BACK,
    "SuperExec authentication is experimental": Event.MEANT,
    MESSAGE_FAILED: Event.FAILED,
    "Sent successfully": Event.ANSWERED,
}


def read(line: str) -> Event:
    """Return what a line says.

    Args:
        line: of the log of Flower 1.41.
    """
    return next((event for sign, event in _SIGNS.items() if sign in line), Event.OTHER)
