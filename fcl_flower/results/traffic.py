"""Bytes of one round, by direction and kind."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Traffic:
    """Bytes of one round, both ways."""

    up: Counter[str] = field(default_factory=Counter)
    down: Counter[str] = field(default_factory=Counter)
    nominal_up: int = 0
    nominal_down: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the same as plain values."""
        return {
            "up": dict(sorted(self.up.items())),
            "down": dict(sorted(self.down.items())),
            "nominal_up": self.nominal_up,
            "nominal_down": self.nominal_down,
        }
