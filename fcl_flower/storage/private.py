"""Files and folders that only the user who runs the program can read."""

import os
from pathlib import Path


def opener(path: str, flags: int) -> int:
    """Open a file, which is its owner's alone if it is new: ``open(opener=...)``."""
    return os.open(path, flags, 0o600)


def make_private_folder(folder: Path) -> None:
    """Make a folder that nobody else can look into, with those above it.

    One that is there becomes so. The folders above it are as the system makes them.

    Raises:
        OSError: it cannot be made, or is another user's.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
