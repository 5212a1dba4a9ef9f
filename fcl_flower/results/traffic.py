"""Bytes of the messages, by direction and kind of payload group."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Traffic:
    """Bytes of a round, or of several.

    Attributes:
        up: from clients to the server, by kind of payload group.
        down: from the server to clients, likewise.
        nominal_up: nominal bytes, which the papers count: 4 for each non-zero
            parameter; indices, masks and headers are free (FedWeIT, table 2).
        nominal_down: likewise.
    """

    up: Counter[str] = field(default_factory=Counter)
    down: Counter[str] = field(default_factory=Counter)
    nominal_up: int = 0
    nominal_down: int = 0

    def add(self, other: "Traffic") -> None:
        """Count the bytes of ``other`` too."""
        self.up.update(other.up)
        self.down.update(other.down)
        self.nominal_up += other.nominal_up
        self.nominal_down += other.nominal_down

    def to_dict(self) -> dict[str, Any]:
        """Return the same as plain values."""
        return {
            "up": dict(sorted(self.up.items())),
            "down": dict(sorted(self.down.items())),
            "nominal_up": self.nominal_up,
            "nominal_down": self.nominal_down,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Traffic":
        """Return what `to_dict` was made of."""
        ways = (Counter(values["up"]), Counter(values["down"]))
        return cls(*ways, values["nominal_up"], values["nominal_down"])
