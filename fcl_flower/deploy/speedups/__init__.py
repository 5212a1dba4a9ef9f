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

Side: TypeAlias = Literal["server", "client"]
RELEASES: Final = ("1.41", "1.42")
"""The releases of Flower with which all speed-ups are tested."""
OLDEST: Final = (1, 40)
"""The first release of Flower whose programs have one address for everything."""
DISTRIBUTIONS: Final = ("flwr", "flwr-nightly")


SPEEDUPS: Final[Mapping[str, tuple[Side, ...]]] = {
    "resident": ("client",),
    "pace": ("client",),
    "lean": ("client",),
    "streaming": ("server", "client"),
    "large_objects": ("server",),
    "pauses": ("server", "client"),
    "deliveries": ("server",),
    "stopped_runs": ("client",),
}
"""The programs that take a speed-up up, by its name.

The name is that of its file; ``lean`` alone is a part of `supernode`.
"""


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


def _refuse_old(release: str) -> None:
    if release != "none" and tuple(map(int, release.split("."))) < OLDEST:
        expected = (
            f"{'.'.join(map(str, OLDEST))} or newer for fcl server and fcl client; "
            "flwr run works with it all the same"
        )
        raise config_error("flwr", release, expected)


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
    _refuse_old(release)
    known = release in RELEASES
    tested = tuple(n for n, sides in SPEEDUPS.items() if known and side in sides)
    if setting == "off":
        return Choice((), "speed-ups: none, as asked")
    if setting == "auto":
        if not tested:
            those = " and ".join(RELEASES)
            why = f"as they are tested with Flower {those}, and this is {release}"
            return Choice((), f"speed-ups: none, {why}")
        return Choice(tested, f"speed-ups: {', '.join(tested)}")
    names = tuple(filter(None, setting.split(",")))
    for name in names:
        if name not in tested:
            expected = f"auto, off, or some of {', '.join(tested) or 'none'}"
            raise config_error("speedups", name, f"{expected}, with commas between")
    return Choice(names, f"speed-ups: {', '.join(names)}")
