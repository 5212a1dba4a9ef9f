"""Scenarios: which client learns which classes in which order."""

from typing import TYPE_CHECKING

from fcl_flower.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from fcl_flower.data.scenarios.given import GivenTasks, TaskSamples, from_avalanche
    from fcl_flower.data.scenarios.registry import SCENARIOS, Scenario, draw_scenario

__all__ = [
    "SCENARIOS",
    "GivenTasks",
    "Scenario",
    "TaskSamples",
    "draw_scenario",
    "from_avalanche",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "registry": "SCENARIOS Scenario draw_scenario",
        "given": "GivenTasks TaskSamples from_avalanche",
    },
)
