"""What noised statistics of labels have cost, as clients say."""

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from fcl_flower.core.errors import WireError
from fcl_flower.results.diagnostics.base import Diagnostics, Scalars, TaskId

EPSILON = "label_epsilon"


class LabelDiagnostics(Diagnostics):
    """Keeps the most that each client has said its labels have cost so far."""

    def __init__(self, delta: float) -> None:
        """Collect for one run, in which epsilon is at this delta."""
        self._delta = delta
        self._told: dict[int, float] = {}

    @override
    def check(self, client_metrics: Scalars) -> None:
        if client_metrics.get(EPSILON, 0.0) < 0:
            raise WireError(
                f"metrics/{EPSILON}: expected at least 0, got {client_metrics[EPSILON]}"
            )

    @override
    def add_round(
        self,
        server_round: int,
        client_metrics: Mapping[TaskId, Scalars],
        server_metrics: Scalars,
    ) -> None:
        for (client, _), metrics in client_metrics.items():
            if EPSILON in metrics:
                # A client that has lost its state begins to count anew.
                told = self._told.get(client, 0.0)
                self._told[client] = max(told, metrics[EPSILON])

    @override
    def files(self) -> Mapping[str, object]:
        return {}

    @override
    def summary(self) -> Mapping[str, Any]:
        return {EPSILON: dict(sorted(self._told.items()))} if self._told else {}

    @override
    def remarks(self) -> Mapping[str, str]:
        if not self._told:
            return {}
        said = f"epsilon {max(self._told.values()):.3g} at delta {self._delta:g}"
        return {"privacy of labels": f"noised statistics, at most {said} for a client"}
