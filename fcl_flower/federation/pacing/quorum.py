"""When a round has enough replies, and how long it waits for the others.

As in Bonawitz et al., MLSys 2019, https://arxiv.org/abs/1902.01046, section 2.2, a
round is closed when enough devices have reported. Their deadline is a constant; this
one is a multiple of the time that the quorum took, so that it adapts to what a round
asks for. Hasty clients who are fewer than the quorum cannot close a round, silent ones
who are fewer than the rest cannot hold it up.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quorum:
    """The rule by which rounds are closed.

    Attributes:
        fraction: of those asked, whose replies are enough, in (0, 1].
        factor: how long the others are waited for, in times that the quorum took;
            below 1 for not at all.
        least: how many replies are enough at any rate.
    """

    fraction: float = 1.0
    factor: float = 0.0
    least: int = 1

    @property
    def waits_for_all(self) -> bool:
        """Return whether no round is closed before all have replied."""
        return self.fraction == 1

    def closes_at(self, times: Iterable[float], asked: int) -> float:
        """Return when a round is closed even if replies are missing.

        Args:
            times: from the beginning of the round to each reply so far.
            asked: how many may still count, those that have replied among them.

        Returns:
            in the unit of ``times``; infinity while there is no quorum.
        """
        replied = sorted(times)
        # A product such as 0.28 * 25 may be above the whole number that it is.
        share = math.ceil(round(self.fraction * asked, 9))
        needed = max(1, self.least, share)
        if len(replied) < needed:
            return math.inf
        return max(1.0, self.factor) * replied[needed - 1]
