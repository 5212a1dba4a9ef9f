from typing import Literal

from pydantic import BaseModel, Field

from fcl_flower.algorithms.registry import algorithms
from fcl_flower.config.parsing import Params, Setting, describe
from fcl_flower.config.run_config import RunConfig
from fcl_flower.data.scenarios.registry import SCENARIOS
from fcl_flower.models.registry import MODELS

ALL = {
    **{f"strategy {name}": entry.params_type for name, entry in algorithms().items()},
    **{f"scenario {name}": entry.params for name, entry in SCENARIOS.items()},
    **{f"model {name}": entry.params for name, entry in MODELS.items()},
    **{f"[{name}]": f.annotation for name, f in RunConfig.model_fields.items()},
}


class Sample(Params):
    """A thing."""

    whole: int = Field(3, ge=1, le=9)
    """How many."""
    real: float = Field(0.5, gt=0, lt=1)
    """How much,
    on two lines."""
    switch: bool = False
    """Whether."""
    word: str = ""
    """Which."""
    choice: Literal["", "a", "b"] = "a"
    """How it is done."""


class Derived(Sample):
    """One more."""

    more: float = 1.0
    """What only this has."""


def test_a_setting_of_each_type_is_described():
    assert describe(Sample) == [
        Setting("whole", "int", ">= 1, <= 9", "3", "How many."),
        Setting("real", "float", "> 0, < 1", "0.5", "How much, on two lines."),
        Setting("switch", "bool", "", "false", "Whether."),
        Setting("word", "text", "", "''", "Which."),
        Setting("choice", "'' | a | b", "", "a", "How it is done."),
    ]


def test_what_is_inherited_is_described_too():
    *inherited, own = describe(Derived)
    assert inherited == describe(Sample)
    assert own == Setting("more", "float", "", "1.0", "What only this has.")


def test_a_preset_has_defaults_of_its_own():
    found = {one.key: one.default for one in describe(Sample, {"whole": 7})}
    assert (found["whole"], found["real"]) == ("7", "0.5")
    found = {one.key: one.default for one in describe(Sample, {"switch": True})}
    assert found["switch"] == "true"


def test_what_must_be_given_has_no_default():
    class Demanding(BaseModel):
        number: int

    assert describe(Demanding) == [Setting("number", "int", "", "", "")]


def test_every_setting_has_a_sentence_a_type_and_a_default():
    for one in (one for kind in ALL.values() for one in describe(kind)):
        assert one.help.endswith("."), one
        assert len(one.help) > 5, one
        assert one.default, one
        assert set(one.type.split(" | ")) - {"''"}, one
        assert "typing" not in one.type, one


def test_what_is_described_is_what_can_be_set():
    described = {
        f"{section}.{one.key}"
        for section, field in RunConfig.model_fields.items()
        for one in describe(field.annotation)
    }
    assert described == RunConfig().flat().keys()
