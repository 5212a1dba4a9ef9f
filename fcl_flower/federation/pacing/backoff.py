"""Who is asked less often, as it was late again and again."""

from collections.abc import Iterable, Mapping

from fcl_flower.results.history import Lateness
from fcl_flower.results.monitoring.causes import WAS_LATE

LONGEST = 16
"""Most rounds in a row that a client is not asked in."""


def next_round(found: Lateness) -> int:
    """Return the first round in which a late client is asked again.

    The next one after the first time; after the second in a row one is left out, then
    two, four and so on.
    """
    pause = 0 if found.times < 2 else min(2 ** (found.times - 2), LONGEST)
    return found.round + 1 + pause


def resting(
    lateness: Mapping[int, Lateness], server_round: int, clients: Iterable[int]
) -> dict[int, str]:
    """Return why some of the clients are not asked in a round.

    Args:
        lateness: of the clients whose last update was late.
        server_round: counted from 1.
        clients: that could be asked.
    """
    return {
        client: f"{WAS_LATE} {found.times} times in a row, and is asked again in round "
        f"{next_round(found)}"
        for client in clients
        if (found := lateness.get(client)) and server_round < next_round(found)
    }


def free_at(
    lateness: Mapping[int, Lateness], now: float, clients: Iterable[int], least: int
) -> float:
    """Return when ``least`` of the clients are not busy, or all: now, if they are not.

    Args:
        lateness: of the clients whose last update was late.
        now: in simulated time.
        clients: that could be asked.
        least: how many of them are needed.
    """
    free = (lateness[c].busy_until if c in lateness else now for c in clients)
    times = sorted(max(now, time) for time in free)
    return times[min(least, len(times)) - 1] if times else now


def busy(
    lateness: Mapping[int, Lateness], now: float, clients: Iterable[int]
) -> set[int]:
    """Return which of the clients still train for an earlier round, in simulated time.

    Args:
        lateness: of the clients whose last update was late.
        now: in simulated time.
        clients: that could be asked.
    """
    return {c for c in clients if c in lateness and now < lateness[c].busy_until}
