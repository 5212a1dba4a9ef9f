"""What noised statistics of labels have cost, as clients say."""

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from fcl_flower.results.diagnostics.told_epsilon import ToldEpsilon

EPSILON = "label_epsilon"


class LabelDiagnostics(ToldEpsilon):
    """Keeps the most that each client has said its labels have cost so far."""

    def __init__(self, delta: float) -> None:
        """Collect for one run, in which epsilon is at this delta."""
        super().__init__(EPSILON)
        self._delta = delta

    @override
    def summary(self) -> Mapping[str, Any]:
        return {EPSILON: dict(sorted(self.told.items()))} if self.told else {}

    @override
    def remarks(self) -> Mapping[str, str]:
        if not self.told:
            return {}
        said = f"epsilon {max(self.told.values()):.3g} at delta {self._delta:g}"
        return {"privacy of labels": f"noised statistics, at most {said} for a client"}
