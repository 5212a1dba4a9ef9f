"""Speed-ups: what replaces private parts of Flower, a file each.

Nothing is wrong without them: rounds take longer, messages must be smaller, and fewer
faults of links and machines are survived. Each file says what it replaces and why, and
for which releases of Flower it is tested. A release that is not known gets none.
`experiments/speedups` measures what each brings.
"""

from collections.abc import Mapping
from importlib import metadata
from typing import Final, Literal, NamedTuple, TypeAlias

from fcl_flower.core.errors import config_error
from fcl_flower.deploy.commands import refuse_old_flower

Side: TypeAlias = Literal["server", "client"]
SIDES: Final[tuple[Side, ...]] = ("server", "client")
RELEASES: Final = ("1.41", "1.42")
"""The releases of Flower with which all speed-ups are tested."""
DISTRIBUTIONS: Final = ("flwr", "flwr-nightly")


class Speedup(NamedTuple):
    """One speed-up.

    Attributes:
        sides: whose programs take it up.
        brings: what a user has of it.
        releases: of Flower with which it is tested.
    """

    sides: tuple[Side, ...]
    brings: str
    releases: tuple[str, ...] = RELEASES


SPEEDUPS: Final[Mapping[str, Speedup]] = {
    "resident": Speedup(("client",), "one process answers all messages of a run"),
    "pace": Speedup(("client",), "a client looks for messages often during a run"),
    "lean": Speedup(("client",), "an idle client loads no database"),
    "streaming": Speedup(SIDES, "large messages pass through the memory in pieces"),
    "large_objects": Speedup(("server",), "large messages lie in files"),
    "pauses": Speedup(SIDES, "a run outlasts a minute's sleep of its machines"),
    "deliveries": Speedup(("server",), "a message whose delivery was lost comes again"),
    "stopped_runs": Speedup(("client",), "a run stopped in a message harms no other"),
}
"""All speed-ups, by the names of their files."""


class Choice(NamedTuple):
    """The speed-ups that a program takes up, and one line for the user."""

    names: tuple[str, ...]
    sentence: str


def flower_release() -> str:
    """Name the release of Flower that is installed, such as ``1.42``.

    Of the nightly package it is the release that will come.
    """
    for name in DISTRIBUTIONS:
        try:
            return ".".join(metadata.version(name).split(".")[:2])
        except metadata.PackageNotFoundError:
            continue
    return "none"


def choose(setting: str, side: Side, release: str | None = None) -> Choice:
    """Choose the speed-ups of a program.

    Args:
        setting: ``auto`` for all that are tested with this release, ``off`` for none,
            or names with commas between them.
        side: whose program it is.
        release: of Flower; None for the one that is installed.

    Raises:
        ConfigError: a name is unknown, or is not tested with this release; or the
            release is too old for any of our commands.

    >>> choose("auto", "server", "1.99").sentence
    'speed-ups: none, as they are tested with Flower 1.41 and 1.42, and this is 1.99'
    """
    release = release or flower_release()
    refuse_old_flower(release)
    mine = {name: one for name, one in SPEEDUPS.items() if side in one.sides}
    tested = tuple(name for name, one in mine.items() if release in one.releases)
    if setting == "off":
        return Choice((), "speed-ups: none, as asked")
    if setting == "auto":
        if not tested:
            known = " and ".join(RELEASES)
            why = f"as they are tested with Flower {known}, and this is {release}"
            return Choice((), f"speed-ups: none, {why}")
        return Choice(tested, f"speed-ups: {', '.join(tested)}")
    names = tuple(filter(None, setting.split(",")))
    for name in names:
        if name not in tested:
            expected = f"auto, off, or some of {', '.join(tested) or 'none'}"
            raise config_error("speedups", name, f"{expected}, with commas between")
    return Choice(names, f"speed-ups: {', '.join(names)}")
