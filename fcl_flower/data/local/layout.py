"""The layout of the folder with a client's local data: its tasks and their files."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from fcl_flower.config.parsing import read_toml, validate_params
from fcl_flower.core.errors import ConfigError, Fault
from fcl_flower.data.local.formats import FOLDER, ending, sample_files, visible

MANIFEST = "tasks.toml"
SPLITS = ("train", "valid", "test")
DONE = "DONE"
"""The file in a task's folder that may mark the task as complete."""
_NAME = re.compile(r"task-(\d{1,6})")


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """The files of a task.

    Attributes:
        name: name of the task for people.
        train: training samples, a file or a folder of images.
        valid: validation samples; None to hold some of ``train`` out.
        test: test samples; None to hold some of ``train`` out.
        labels: order of the labels; empty for the alphabetical order.
    """

    name: str
    train: Path
    valid: Path | None
    test: Path | None
    labels: tuple[str, ...] = ()


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(min_length=1)
    train: str = Field(min_length=1)
    valid: str = ""
    test: str = ""
    labels: list[str] = []


def find_tasks(
    folder: Path, most: int | None = None, *, marked: bool = False
) -> tuple[TaskFiles, ...]:
    """Find the tasks of a folder, in the order in which the client learns them.

    Either ``tasks.toml`` lists the tasks, or they are the folders ``task-01``,
    ``task-02`` and so on. Names that begin with a dot are ignored: a task that is still
    being written has such a name, and is renamed when it is complete.

    Args:
        folder: the client's folder.
        most: largest number of tasks to look into; None for all. Flaws of later tasks
            do no harm yet.
        marked: whether a task's folder counts only when it holds a file `DONE`.
    """
    try:
        names = [path.name for path in visible(folder)]
    except OSError as error:
        raise ConfigError(
            f"data-path: {str(folder)!r} is refused: expected a folder that can be "
            f"read ({error.strerror})"
        ) from error
    if MANIFEST in names:
        return _listed(folder)[:most]
    tasks = _numbered(folder, names)[:most]
    if marked:
        tasks = list(takewhile(lambda task: (task / DONE).exists(), tasks))
    return tuple(map(_in_folder, tasks))


def _numbered(folder: Path, names: list[str]) -> list[Path]:
    tasks: dict[int, Path] = {}
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None or not (folder / name).is_dir():
            raise ConfigError(
                f"{folder / name}: expected nothing but folders task-01, task-02, ..., "
                f"or a file {MANIFEST} that lists the tasks",
                Fault.LAYOUT,
            )
        if (other := tasks.setdefault(int(match[1]), folder / name)).name != name:
            raise ConfigError(
                f"{folder / name} has the number of {other.name} too", Fault.LAYOUT
            )
    for expected, number in enumerate(sorted(tasks), 1):
        if number != expected:
            raise ConfigError(
                f"{tasks[number]} comes without a task {expected}, expected all "
                "numbers from 1",
                Fault.LAYOUT,
            )
    return [tasks[number] for number in sorted(tasks)]


def _in_folder(task: Path) -> TaskFiles:
    files: dict[str, Path] = {}
    for path in visible(task):
        if path.name == DONE:
            continue
        end = ending(path)
        split = path.name if end == FOLDER else path.name.removesuffix(end)
        if not end or split not in SPLITS:
            raise ConfigError(
                f"{path}: expected nothing but train, valid and test, each as .csv, "
                ".jsonl, .jsonl.gz, .npz or a folder of images",
                Fault.LAYOUT,
            )
        if (other := files.setdefault(split, path)) != path:
            raise ConfigError(
                f"{path}: expected one {split}, but {other.name} is there", Fault.LAYOUT
            )
    if "train" not in files:
        raise ConfigError(
            f"{task} has no train, expected train.csv or the like", Fault.MISSING
        )
    return TaskFiles(task.name, files["train"], files.get("valid"), files.get("test"))


def _listed(folder: Path) -> tuple[TaskFiles, ...]:
    path = folder / MANIFEST
    values = read_toml(path, "data-path")
    tables = values.get("task")
    if values.keys() != {"task"} or not isinstance(tables, list):
        raise ConfigError(f"{path}: expected tables [[task]] and nothing else")
    tasks: list[TaskFiles] = []
    for number, table in enumerate(tables, 1):
        where = f"{path}: task {number}:"
        if not isinstance(table, Mapping):
            raise ConfigError(f"{where} expected a table")
        entry = validate_params(_Entry, table, f"{where} ")
        if len(set(entry.labels)) < len(entry.labels):
            raise ConfigError(f"{where} labels: expected each label once")
        tasks.append(
            TaskFiles(
                entry.name,
                _inside(folder, entry.train, where),
                _inside(folder, entry.valid, where) if entry.valid else None,
                _inside(folder, entry.test, where) if entry.test else None,
                tuple(entry.labels),
            )
        )
    if len({task.name for task in tasks}) < len(tasks):
        raise ConfigError(f"{path}: expected a different name for each task")
    return tuple(tasks)


def _inside(folder: Path, name: str, where: str) -> Path:
    path = folder / name
    try:
        safe = path.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where} {name!r:.80} is no path ({error})") from error
    if not safe:
        raise ConfigError(
            f"{where} {name!r:.80} is refused: expected a path inside of {folder}"
        )
    return path


def checksum(folder: Path, tasks: int) -> str:
    """Compute the SHA-256 of the names, labels and files of a client's first tasks."""
    digest = hashlib.sha256()
    for task in find_tasks(folder, tasks):
        digest.update(repr((task.name, task.labels)).encode())
        for split in (task.train, task.valid, task.test):
            for path in sample_files(split) if split else ():
                digest.update(repr(str(path.relative_to(folder))).encode())
                try:
                    with path.open("rb") as file:
                        digest.update(hashlib.file_digest(file, "sha256").digest())
                except OSError as error:
                    raise ConfigError(
                        f"{path}: expected a file that can be read ({error.strerror})"
                    ) from error
    return digest.hexdigest()
