"""A function's signature and docstring are a command."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import click
import pytest

from fcl_flower.cli.command import AtLeastOne, Folder, command


@dataclass(frozen=True, kw_only=True)
class Light:
    """Whether it is light.

    Options:
        lamp: Which lamp.
    """

    lamp: Annotated[str, "COLOUR"] = "red"


@dataclass(frozen=True, kw_only=True)
class Room(Light):
    """Where it is light.

    Options:
        doors: How many
            doors.
    """

    doors: AtLeastOne = 1


class GivenError(Exception):
    """It is no error, but what the command was given."""


@command
def do_it(
    places: tuple[Path, ...],
    *,
    room: Room,
    size: float,
    here: Folder | None = None,
    names: tuple[str, ...] = (),
    form: Literal["round", "square"] = "round",
    all_: bool = False,
    clean: bool = True,
) -> None:
    """Do it in PLACES.

    It takes a while.

    Options:
        size: How large.
        here: Where else.
        names: What it is called.
        form: What it looks like.
        all_: Do all of it.
        clean: Clean up.
    """
    raise GivenError(places, room, size, here, names, form, all_, clean)


def given(*arguments):
    with pytest.raises(GivenError) as found:
        do_it.main([*arguments], standalone_mode=False)
    return found.value.args


def test_values_have_the_types_of_the_parameters():
    places, room, size, here, names, form, all_, clean = given("a", "b", "--size", "2")
    assert places == (Path("a"), Path("b"))
    assert room == Room()
    assert (size, type(size)) == (2.0, float)
    assert (here, names, form, all_, clean) == (None, (), "round", False, True)

    *_, room, size, here, names, form, all_, clean = given(
        *("a", "--size", "0.5", "--here", "c", "--names", "x", "--names", "y"),
        *("--form", "square", "--all", "--no-clean", "--doors", "3", "--lamp", "blue"),
    )
    assert (room.doors, room.lamp) == (3, "blue")
    assert (here, names, form, all_, clean) == (
        *(Path("c"), ("x", "y"), "square", True, False),
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--size", "1"], "Missing argument 'PLACES...'."),
        (["a"], "Missing option '--size'."),
        (["a", "--size", "much"], "'much' is not a valid float."),
        (["a", "--size", "1", "--doors", "0"], "0 is not in the range x>=1."),
        (["a", "--size", "1", "--form", "oval"], "'oval' is not one of"),
    ],
)
def test_other_values_are_refused(arguments, said):
    with pytest.raises(click.UsageError) as found:
        do_it.main(arguments, standalone_mode=False)
    assert said in found.value.format_message()


def test_the_help_has_a_sentence_for_each_option(capsys):
    do_it.main(["--help"], standalone_mode=False)
    text = " ".join(capsys.readouterr().out.split())
    assert do_it.name == "do-it"
    assert "Do it in PLACES. It takes a while. Options:" in text
    for part in (
        "--lamp COLOUR Which lamp. [default: red]",
        "--doors INTEGER RANGE How many doors. [default: 1; x>=1]",
        "--size FLOAT How large. [required]",
        "--here FOLDER Where else.",
        "--names TEXT What it is called.",
        "--form [round|square] What it looks like. [default: round]",
        "--all Do all of it.",
        "--clean / --no-clean Clean up.",
    ):
        assert part in text
