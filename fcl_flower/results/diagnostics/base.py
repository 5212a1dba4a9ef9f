"""The interface of all diagnostics: scalars in, files and parts of the summary out."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

Scalars: TypeAlias = Mapping[str, float]

TaskId: TypeAlias = tuple[int, int]
"""A client and the number of one of its tasks."""


class Diagnostics(Protocol):
    """Collects scalars by the convention of their names while a run goes on."""

    def check(self, client_metrics: Scalars) -> None:
        """Refuse the metrics of one client's update that cannot be recorded.

        Raises:
            WireError: names the scalar, its value and what was expected.
        """
        ...

    def add_round(
        self,
        server_round: int,
        client_metrics: Mapping[TaskId, Scalars],
        server_metrics: Scalars,
    ) -> None:
        """Add what one round says.

        Args:
            server_round: counted from 1.
            client_metrics: checked, by client and the task that it trained on.
            server_metrics: diagnostics of the server side.

        Raises:
            ContractError: ``server_metrics`` breaks the convention.
        """
        ...

    def files(self) -> Mapping[str, object]:
        """Return the content of each JSON file to write, by its name; else none."""
        return {}

    def summary(self) -> Mapping[str, Any]:
        """Return what the summary says of it, by key."""
        ...

    def remarks(self) -> Mapping[str, str]:
        """Return what a reader should know, one sentence a topic; else nothing."""
        return {}
