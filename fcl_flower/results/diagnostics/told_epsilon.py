"""An epsilon that clients account for themselves, and tell with their updates."""

from collections.abc import Mapping

from typing_extensions import override

from fcl_flower.core.errors import WireError
from fcl_flower.results.diagnostics.base import Diagnostics, Scalars, TaskId


class ToldEpsilon(Diagnostics):
    """Keeps the most that each client has told so far.

    Attributes:
        told: by client.
    """

    def __init__(self, name: str) -> None:
        """Collect for one run.

        Args:
            name: of the scalar.
        """
        self._name = name
        self.told: dict[int, float] = {}

    @override
    def check(self, client_metrics: Scalars) -> None:
        if (found := client_metrics.get(self._name, 0.0)) < 0:
            raise WireError(f"metrics/{self._name}: expected at least 0, got {found}")

    @override
    def add_round(
        self,
        server_round: int,
        client_metrics: Mapping[TaskId, Scalars],
        server_metrics: Scalars,
    ) -> None:
        for (client, _), metrics in client_metrics.items():
            if self._name in metrics:
                # A client that has lost its state begins to count anew.
                told = self.told.get(client, 0.0)
                self.told[client] = max(told, metrics[self._name])
