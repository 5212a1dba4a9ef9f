"""A clock that stands still while its process does, as in a machine that sleeps."""

import threading
from collections.abc import Callable

MOST = 10.0
"""The seconds that the clock goes on after a look; its user looks once a second."""


class PatientClock:
    """A clock that goes on for ten seconds after each look and then stands still.

    A pause of more than ten seconds puts the clock behind by the excess.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start at the time of another clock, as if after a look."""
        self._clock = clock
        self._lock = threading.Lock()
        self._last = clock()
        self._missed = 0.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        with self._lock:
            return min(self._clock(), self._last + MOST) - self._missed

    def look(self) -> None:
        """Note that all messages so far have been read, so that the clock goes on."""
        with self._lock:
            time = self._clock()
            self._missed += max(time - self._last - MOST, 0.0)
            self._last = time
