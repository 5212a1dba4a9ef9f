"""Who learns what in which order."""

from typing import TYPE_CHECKING

from fcl_flower.core.lazy import lazy_names

if TYPE_CHECKING:
    from fcl_flower.data.scenarios.registry import SCENARIOS, Scenario, draw_scenario

__all__ = [
    "SCENARIOS",
    "Scenario",
    "draw_scenario",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "registry": "SCENARIOS Scenario draw_scenario",
    },
)
