"""Who hears of a run while it goes on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fcl_flower.core.types import Evaluation
from fcl_flower.results.history import RoundRecord


class Listener:
    """Told by the recorder what it has recorded; a listener has what it cares for.

    A run that is resumed tells all that was before again.
    """

    def begin(self, rounds: int) -> None:
        """Hear how many rounds the run has in all, before the first."""

    def add_evaluation(
        self, server_round: int, scores: Mapping[int, Evaluation]
    ) -> None:
        """Hear the test accuracies after a round, by client."""

    def add_round(self, record: RoundRecord) -> None:
        """Hear of a finished round."""

    def finish(self, summary: Mapping[str, Any], report: Path) -> None:
        """Hear of the run's end: its summary and its page."""
