"""What tells a client's local data from others, wherever they lie."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.local.layout import find_tasks


def checksum(folder: Path, tasks: int) -> str:
    """Return the SHA-256 of a client's first tasks: of their names, files and labels.

    Args:
        folder: the client's ``data-path``.
        tasks: how many a run has; what comes after them does not count.

    Raises:
        ConfigError: the folder is not as described, or a file cannot be read.
    """
    digest = hashlib.sha256()
    for task in find_tasks(folder, tasks):
        digest.update(repr((task.name, task.labels)).encode())
        for split in (task.train, task.valid, task.test):
            for path in _files(split):
                digest.update(repr(str(path.relative_to(folder))).encode())
                try:
                    with path.open("rb") as file:
                        digest.update(hashlib.file_digest(file, "sha256").digest())
                except OSError as error:
                    raise ConfigError(
                        f"{path}: expected a file that can be read ({error.strerror})"
                    ) from error
    return digest.hexdigest()


def _files(path: Path | None) -> Iterator[Path]:
    """Yield a file, or all that are in a folder of images, in one order."""
    if path is None:
        return
    if path.is_dir():
        yield from sorted(found for found in path.rglob("*") if found.is_file())
    else:
        yield path
