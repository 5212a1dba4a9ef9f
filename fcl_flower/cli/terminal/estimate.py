"""How long the rest of several runs will take, from what is seen of them."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass
class _Seen:
    """A run that has begun.

    Attributes:
        began: the time of its first progress.
        first: the share of its time that was over then; not 0 if it was resumed.
        share: of its time that is over now.
        latest: the time of that.
    """

    began: float
    first: float
    share: float
    latest: float

    @property
    def whole(self) -> float | None:
        """Seconds that all of it takes, None if that is unknown."""
        done = self.share - self.first
        return (self.latest - self.began) / done if done > 0 else None


class Estimate:
    """Watches several runs, of which some are done at the same time.

    A run takes what those of its variant took that are finished. If there is none, the
    share of its time that is over of one under way says it; if there is none of them
    either, it takes what the other variants do.
    """

    def __init__(
        self, variants: Sequence[Hashable], processes: int, clock: Callable[[], float]
    ) -> None:
        """Watch runs.

        Args:
            variants: of each run, in any order.
            processes: runs at the same time.
            clock: returns seconds since some moment, such as `time.monotonic`.
        """
        self._variants = variants
        self._processes = processes
        self._clock = clock
        self._seen: dict[int, _Seen] = {}
        self._over: set[int] = set()

    def progress(self, run: int, share: float) -> None:
        """Note how far a run is, from 0 to 1 when it is finished.

        Args:
            run: its index among the variants.
            share: of its time that is over, as far as that can be foretold.
        """
        now = self._clock()
        seen = self._seen.setdefault(run, _Seen(now, share, share, now))
        if share != seen.share:
            seen.share, seen.latest = share, now

    def over(self, run: int) -> None:
        """Note that a run has finished or failed."""
        self._over.add(run)

    def left(self) -> float | None:
        """Return the seconds until all are over, None if nothing is known yet."""
        rest = [
            self._left(run)
            for run in range(len(self._variants))
            if run not in self._over
        ]
        if None in rest:
            return None
        known = [seconds for seconds in rest if seconds is not None]
        return max([sum(known) / self._processes, *known], default=0.0)

    def _left(self, run: int) -> float | None:
        whole = self._whole(self._variants[run])
        if whole is None or run not in self._seen:
            return whole
        seen = self._seen[run]
        return max(0.0, whole * (1 - seen.first) - (self._clock() - seen.began))

    def _whole(self, variant: Hashable) -> float | None:
        """Return the seconds that a whole run of a variant takes."""
        of_variant = [
            seen for run, seen in self._seen.items() if self._variants[run] == variant
        ]
        for runs in (of_variant, [*self._seen.values()]):
            for finished in (True, False):
                known = [
                    seen.whole
                    for seen in runs
                    if (seen.share == 1) == finished and seen.whole is not None
                ]
                if known:
                    return fmean(known)
        return None
