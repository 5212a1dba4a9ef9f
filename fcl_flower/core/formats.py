"""Formats of what is kept on the disk: each file says the number of its own.

A number is raised with every change after which another version would misread the
file. A file of another format is refused and left as it is.
"""

from typing import Final

from fcl_flower import __version__
from fcl_flower.core.errors import ConfigError

KEY: Final = "format"
"""The number has this name wherever a file has it."""


class FormatError(ConfigError):
    """A file is of a format that another version has written."""


def check_format(file: object, number: object, expected: int) -> None:
    """Refuse a file of another format.

    Args:
        file: its path.
        number: its format, as the file has it; None where it has none.
        expected: the format that this version writes.

    Raises:
        FormatError: the numbers differ.
    """
    if type(number) is int and number == expected:
        return
    got = "no format" if number is None else f"format {number!r}"
    raise FormatError(
        f"{file}: got {got}, expected format {expected} of fcl-flower {__version__}; "
        "the file is left as it is: open it with the version of fcl-flower that wrote "
        "it, or begin anew in another folder"
    )
