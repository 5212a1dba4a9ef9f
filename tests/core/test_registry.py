"""Things by name: built in, of installed packages, of this process."""

import sys

import pytest
from packages import install

from fcl_flower.core.errors import ConfigError, ContractError, PluginWarning
from fcl_flower.core.registry import Registry

GROUP = "fcl_flower.words"


@pytest.fixture
def words():
    return Registry("word", GROUP, str, {"one": "ONE", "two": "TWO"})


def test_what_is_built_in_is_found_without_a_look_at_packages(words, monkeypatch):
    monkeypatch.setattr("fcl_flower.core.registry.entry_points", None)
    assert words["two"] == "TWO"


def test_an_unknown_name_is_answered_with_all_and_the_nearest(words):
    with pytest.raises(ConfigError) as caught:
        words["tow"]
    assert str(caught.value) == (
        "word: got 'tow', expected one of two, one; did you mean 'two'?"
    )


def test_a_package_is_loaded_when_its_thing_is_asked_for(words, monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, GROUP, {"three": "x"}, "x = 'THREE'\n")
    assert list(words) == ["one", "two", "three"]
    assert "three" in words
    assert "their_package" not in sys.modules
    assert words["three"] == "THREE"
    assert dict(words.items()) == {"one": "ONE", "two": "TWO", "three": "THREE"}


def test_a_package_does_not_replace_what_is_built_in(words, monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, GROUP, {"one": "x"}, "x = 'other'\n")
    assert words["one"] == "ONE"
    assert list(words) == ["one", "two"]


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("x = 3\n", f"entry point three of {GROUP}: got a int, expected a str"),
        ("import nothing_of_this_name\n", "three of fcl_flower.words cannot be loaded"),
        ("", "three of fcl_flower.words cannot be loaded: .*'x'"),
    ],
)
def test_a_wrong_entry_point_is_named(words, monkeypatch, tmp_path, source, sentence):
    install(monkeypatch, tmp_path, GROUP, {"three": "x"}, source)
    with pytest.raises(ContractError, match=sentence):
        words["three"]


def test_a_broken_package_is_named_and_nothing_else_stops(words, monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, GROUP, {"bad": "x"}, "import nothing_of_this_name\n")
    with (
        words.registered("mine", "MINE"),
        pytest.warns(PluginWarning, match="point bad of .* cannot be .*; it is left"),
    ):
        assert dict(words.items()) == {"one": "ONE", "two": "TWO", "mine": "MINE"}


def test_this_process_knows_a_thing_for_a_while(words):
    with words.registered("mine", "MINE"):
        assert words["mine"] == "MINE"
        assert list(words) == ["one", "two", "mine"]
        for taken in ("mine", "one"):
            with (
                pytest.raises(ConfigError, match=f"word: got '{taken}', expected a n"),
                words.registered(taken, "other"),
            ):
                pytest.fail("the name is taken")
        assert words["mine"] == "MINE"
    assert "mine" not in words


def test_a_thing_is_forgotten_also_after_an_error(words):
    with pytest.raises(KeyError), words.registered("mine", "MINE"):
        raise KeyError
    assert "mine" not in words
