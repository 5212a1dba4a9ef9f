"""What clients have computed: the multiply-adds of their training, all together."""

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from fcl_flower.core.errors import WireError
from fcl_flower.results.diagnostics.base import Diagnostics, Scalars, TaskId

MULTIPLY_ADDS = "multiply_adds"


class OperationDiagnostics(Diagnostics):
    """Adds up what the updates say that were used."""

    def __init__(self) -> None:
        """Collect for one run."""
        self._total = 0.0

    @override
    def check(self, client_metrics: Scalars) -> None:
        count = client_metrics.get(MULTIPLY_ADDS)
        if count is None or count < 0:
            raise WireError(f"metrics/{MULTIPLY_ADDS}: expected a count, got {count}")

    @override
    def add_round(
        self,
        server_round: int,
        client_metrics: Mapping[TaskId, Scalars],
        server_metrics: Scalars,
    ) -> None:
        self._total += sum(of_one[MULTIPLY_ADDS] for of_one in client_metrics.values())

    @override
    def summary(self) -> Mapping[str, Any]:
        return {MULTIPLY_ADDS: int(self._total)}
