"""What a tracker is; another package declares its own as an entry point."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from fcl_flower.config.run_config import RunConfig


class Tracker(ABC):
    """Takes the numbers of one run to another program.

    It is made at the start of a run, and again where the run is resumed: then it hears
    all from the first round.
    """

    @abstractmethod
    def log(self, scalars: Mapping[str, float], step: int) -> None:
        """Take finite numbers by name.

        Args:
            scalars: such as ``accuracy``, ``loss`` and ``client/3/accuracy``.
            step: the round, from 1; never below the one before.
        """

    @abstractmethod
    def finish(self, measures: Mapping[str, float], report: Path) -> None:
        """Take the measures of the whole run, and its page, when it has finished."""

    @abstractmethod
    def close(self) -> None:
        """Let go of all that is open, also after a run that failed."""


MakeTracker: TypeAlias = Callable[[RunConfig, Path], Tracker]
"""From a run's configuration and its folder to what tracks it."""
