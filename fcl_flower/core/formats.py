"""The formats of files on the disk, each of which holds the number of its format.

A change after which another version would misread a file raises the number. A file of
another format is refused and stays as it is.
"""

from typing import Final

from fcl_flower import __version__
from fcl_flower.core.errors import ConfigError

KEY: Final = "format"
"""The key of this number in each file."""


class FormatError(ConfigError):
    """A file has a format of another version."""


def check_format(file: object, number: object, expected: int) -> None:
    """Refuse a file of another format.

    Args:
        file: path of the file.
        number: format in the file; None without one.
        expected: format that this version writes.

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
