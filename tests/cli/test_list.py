import warnings

import numpy as np
import pytest
from packages import install

from fcl_flower.algorithms.registry import algorithms
from fcl_flower.config.parsing import describe
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import PluginWarning
from fcl_flower.data.scenarios.registry import SCENARIOS
from fcl_flower.models.registry import MODELS


def test_the_list_shows_all_there_is(fcl, tmp_path):
    folder = tmp_path / "data" / "images"
    folder.mkdir(parents=True)
    np.savez(folder / "clothes.npz", x_train=np.zeros(1))
    answer = fcl("list")
    assert (answer.code, answer.err) == (0, "")
    for name, entry in algorithms().items():
        assert name in answer.out
        assert entry.summary in answer.out
        assert entry.paper in answer.out
    for name in (*SCENARIOS, *MODELS, *RunConfig.model_fields):
        assert name in answer.out
    for name in ("digits", "hub:NAME", "clothes"):
        assert name in answer.out


NAMED = {
    **{name: ("strategy", a.params_type) for name, a in algorithms().items()},
    **{name: ("scenario", entry.params) for name, entry in SCENARIOS.items()},
    **{name: ("model", entry.params) for name, entry in MODELS.items()},
    **{name: (name, f.annotation) for name, f in RunConfig.model_fields.items()},
}


@pytest.mark.parametrize("name", NAMED)
def test_a_name_shows_its_settings_whole(fcl, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    answer = fcl("list", name)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith(f"{name}: ")
    assert max(map(len, answer.out.splitlines())) <= 80
    text = " ".join(answer.out.split())
    section, kind = NAMED[name]
    for one in describe(kind):
        assert f"{section}.{one.key} " in text
        assert one.help in text
        assert one.type in text
        assert one.range in text
    assert ("It has no parameters." in text) is not bool(describe(kind))


def test_a_preset_shows_its_own_default(fcl):
    plain, preset = (fcl("list", name).out for name in ("replay", "replay-reg"))
    assert "strategy.strength  float >= 0; default 0.0\n" in plain
    assert "strategy.strength  float >= 0; default 1.0\n" in preset


def test_a_data_set_has_a_line(fcl):
    answer = fcl("list", "digits")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("digits: 1,797 real 8x8 images")


def test_a_broken_plug_in_is_a_warning_and_the_list_is_shown(
    fcl, monkeypatch, tmp_path
):
    group = "fcl_flower.algorithms"
    install(monkeypatch, tmp_path, group, {"bad": "x"}, "import nothing_of_this\n")
    with warnings.catch_warnings():
        warnings.simplefilter("default", PluginWarning)
        answer = fcl("list")
    assert answer.code == 0
    assert "fedavg" in answer.out
    (line,) = answer.err.splitlines()
    assert line.startswith(f"fcl: warning: entry point bad of {group} cannot be loaded")
