"""Simulated time: how long clients train, where a run sets durations."""

import math
from collections.abc import Iterable, Sequence


class SimulatedClock:
    """Decides whose reply arrives when, alike on every machine.

    The unit of time is that of the durations. Without durations the clock is off.
    """

    def __init__(self, pace: Sequence[float] = (), now: float = 0.0) -> None:
        """Begin.

        Args:
            pace: how long each client's training takes, above 0; empty: as it comes.
            now: the time at which a run goes on.
        """
        self._pace = tuple(pace)
        self.now = now

    @property
    def enabled(self) -> bool:
        """Return whether the clock decides who answers first."""
        return bool(self._pace)

    def duration(self, client: int) -> float:
        """Return how long a client trains, 0 where nothing is planted."""
        return self._pace[client] if self._pace else 0.0

    def round(self, clients: Iterable[int], most: float = math.inf) -> dict[str, float]:
        """Let a round pass, which takes as long as its slowest client, or ``most``."""
        self.now += min(most, max(map(self.duration, clients), default=0.0))
        return {"clock": self.now} if self._pace else {}
