"""Formats of what is kept on the disk: each file says the number of its own.

A file without a number is of the first format. A number is raised with every change
after which an earlier version would misread the file.
"""

from typing import Final

from fcl_flower import __version__
from fcl_flower.core.errors import ConfigError

KEY: Final = "format"
"""Of the number, wherever a file has it."""


class FormatError(ConfigError):
    """A file was written by a newer version, or says no format at all."""


def check_format(what: object, found: object, newest: int) -> None:
    """Refuse a file that is newer than this version can read.

    Args:
        what: the file.
        found: its number as the file has it.
        newest: the last number that is known.

    Raises:
        FormatError: the number is larger, or is none.
    """
    if type(found) is not int or found < 1:
        expected = "a whole number of at least 1"
        raise FormatError(f"{what}: {KEY}: got {found!r}, expected {expected}")
    if found > newest:
        raise FormatError(
            f"{what}: got format {found}, expected at most {newest}, the newest that "
            f"fcl-flower {__version__} reads: install a newer fcl-flower"
        )
