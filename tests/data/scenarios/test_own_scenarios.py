"""Scenarios of installed packages, and names that are nearly right."""

import pytest
from packages import install

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.scenarios.registry import SCENARIOS, draw_scenario

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


def draw(tmp_path, name, params=None):
    return draw_scenario(
        name,
        datasets=["digits"],
        data_root=tmp_path,
        clients=2,
        tasks=2,
        classes_per_task=2,
        valid_fraction=0.2,
        seed=1,
        params=params,
    )


def test_a_scenario_can_live_in_another_package(tmp_path, monkeypatch):
    install(monkeypatch, tmp_path, "fcl_flower.scenarios", {"pairs": "entry"}, SOURCE)
    assert "pairs" in SCENARIOS
    params = SCENARIOS["pairs"].params
    plan = draw(tmp_path, "pairs", params(first=3))
    assert [task.classes for task in plan.clients[1]] == [(3, 4), (5, 6)]
    assert draw(tmp_path, "pairs").labels[0] == ("digits", 0)
    assert draw(tmp_path, "pairs", params(first=3)) is plan


def test_the_nearest_scenario_is_offered(tmp_path):
    with pytest.raises(ConfigError, match=r"scenario: got 'concept', .* 'concepts'\?"):
        draw(tmp_path, "concept")
