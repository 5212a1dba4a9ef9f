"""The rule that closes a round: enough replies, and a wait for the others.

As in Bonawitz et al., MLSys 2019, https://arxiv.org/abs/1902.01046, section 2.2, a
round is closed when enough devices have reported. Their deadline is a constant; this
one is a multiple of the time that the quorum took, so that it adapts to the work of a
round. Hasty clients that are fewer than the quorum cannot close a round. Silent clients
that are fewer than the rest cannot hold it up.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from fcl_flower.core.failures import WAS_LATE
from fcl_flower.core.share import share
from fcl_flower.core.types import TaskStage
from fcl_flower.results.record import Lateness


@dataclass(frozen=True, slots=True)
class Quorum:
    """The rule by which rounds are closed.

    Attributes:
        fraction: the fraction of the asked clients that is enough, in (0, 1].
        factor: the deadline, as a multiple of the time that the quorum took; below 1 to
            close the round with the quorum.
        least: the least number of replies.
    """

    fraction: float = 1.0
    factor: float = 0.0
    least: int = 1

    @property
    def waits_for_all(self) -> bool:
        """Whether no round is closed before all clients have replied."""
        return self.fraction == 1

    def closes_at(self, times: Iterable[float], asked: int) -> float:
        """Tell when a round is closed; infinity while there is no quorum.

        ``times`` are from the beginning of the round to each reply so far. ``asked``
        counts the replies so far, and the clients that may still reply.
        """
        replied = sorted(times)
        needed = max(1, self.least, share(self.fraction, asked))
        if len(replied) < needed:
            return math.inf
        return max(1.0, self.factor) * replied[needed - 1]


LONGEST = 16
"""The most rounds in a row in which a client is not asked."""


def next_round(lateness: Lateness) -> int:
    """Choose the round in which a late client is asked again.

    After the first time it is the next round. After the second time in a row the client
    sits out one round, then two, four and so on.
    """
    pause = 0 if lateness.times < 2 else min(2 ** (lateness.times - 2), LONGEST)
    return lateness.round + 1 + pause


def backing_off(
    lateness: Mapping[int, Lateness], server_round: int, clients: Iterable[int]
) -> dict[int, str]:
    """Say why some clients that were late are not asked in a round."""
    return {
        client: f"{WAS_LATE} {late.times} times in a row, and is asked again in round "
        f"{next_round(late)}"
        for client in clients
        if (late := lateness.get(client)) and server_round < next_round(late)
    }


def next_free_time(
    lateness: Mapping[int, Lateness], now: float, clients: Iterable[int], least: int
) -> float:
    """Find the simulated time at which ``least`` of the clients are free, or all."""
    free = (lateness[c].busy_until if c in lateness else now for c in clients)
    times = sorted(max(now, time) for time in free)
    return times[min(least, len(times)) - 1] if times else now


def busy(
    lateness: Mapping[int, Lateness], now: float, clients: Iterable[int]
) -> set[int]:
    """Find the clients that still train for an earlier round, in simulated time."""
    return {c for c in clients if c in lateness and now < lateness[c].busy_until}


class ClientStages:
    """The rounds and tasks of each client, in the client's own count.

    Attributes:
        state_lost: clients that were forgotten since updates were noted last.
    """

    def __init__(self) -> None:
        """Know of no client."""
        self._last: dict[int, TaskStage] = {}
        self._trained: set[tuple[int, int]] = set()
        self.state_lost = frozenset[int]()

    def last_round(self, client: int) -> int:
        """Look up a client's last aggregated round in its own count; 0 for none."""
        last = self._last.get(client)
        return 0 if last is None else last.round

    def stage_for(self, client: int, stage: TaskStage) -> TaskStage:
        """Let a stage start its task if no update of it was aggregated yet."""
        new = (client, stage.task) not in self._trained
        return replace(stage, starts_task=stage.starts_task or new)

    def note(self, stages: Mapping[int, TaskStage]) -> None:
        """Note the stages of clients whose updates were aggregated."""
        self._last.update(stages)
        self._trained.update((c, stage.task) for c, stage in stages.items())
        self.state_lost = frozenset()

    def forget(self, client: int) -> None:
        """Count a client as one that has never trained."""
        self._last.pop(client, None)
        self._trained = {pair for pair in self._trained if pair[0] != client}
        self.state_lost |= {client}

    def restore(
        self, state_lost: Iterable[int], stages: Mapping[int, TaskStage]
    ) -> None:
        """Note again what happened in a round: losses first, then updates."""
        for client in state_lost:
            self.forget(client)
        self.note(stages)
