"""Scenarios of installed packages."""

from packages import install
from plans import draw

from fcl_flower.data.scenarios.registry import SCENARIOS

SOURCE = """
from pydantic import Field
from fcl_flower.config.parsing import Params
from fcl_flower.data.scenarios.groups import Group, share_samples
from fcl_flower.data.scenarios.registry import ScenarioEntry

class FirstParams(Params):
    first: int = Field(0, ge=0)

def draw(spec):
    source, first = spec.sources[0], spec.params.first
    groups = [
        Group(f"{source.name}/{task}", source, (first + 2 * task, first + 2 * task + 1))
        for task in range(spec.tasks)
    ]
    return share_samples(spec, groups, [list(range(spec.tasks))] * spec.clients)

entry = ScenarioEntry(draw, "pairs of classes from a given one on", FirstParams)
"""


def test_a_scenario_can_live_in_another_package(tmp_path, monkeypatch):
    install(monkeypatch, tmp_path, "fcl_flower.scenarios", {"pairs": "entry"}, SOURCE)
    assert "pairs" in SCENARIOS
    given = {"clients": 2, "tasks": 2, "classes_per_task": 2}
    plan = draw("pairs", first=3, **given)
    assert [task.classes for task in plan.clients[1]] == [(3, 4), (5, 6)]
    assert draw("pairs", **given).labels[0] == ("digits", 0)
    assert draw("pairs", first=3, **given) is plan
