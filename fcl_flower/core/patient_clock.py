"""A clock that stands still while nobody looks at it, as in a machine that sleeps."""

import threading
from collections.abc import Callable

MOST = 10.0
"""Seconds by which the clock goes on without a look; there is one a second."""


class PatientClock:
    """Seconds that go on for ten after each look, and then stand still.

    After a pause the clock stays behind by what the pause was longer.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin with what another clock shows, as if there had been a look."""
        self._clock = clock
        self._lock = threading.Lock()
        self._last = clock()
        self._missed = 0.0

    def __call__(self) -> float:
        """Return the time."""
        with self._lock:
            return min(self._clock(), self._last + MOST) - self._missed

    def look(self) -> None:
        """Note that whatever was said until now has been heard."""
        with self._lock:
            time = self._clock()
            self._missed += max(time - self._last - MOST, 0.0)
            self._last = time
