"""Versions of a model: what predicts, in folders that are whole or not there at all.

A client has one after each task, and so has the server. Each is written beside its
place and renamed into it, so that who predicts during a run never sees half a model.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from logging import WARNING
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from fcl_flower import __version__
from fcl_flower.config.parsing import first_complaint
from fcl_flower.config.run_spec import RunSpec
from fcl_flower.core.errors import ConfigError, FclError, config_error, unknown_name
from fcl_flower.core.files import make_private_folder, opener
from fcl_flower.core.types import Payload
from fcl_flower.data.examples import TaskClasses
from fcl_flower.federation.checkpoint import FolderStateStore
from fcl_flower.flower.identity import log

MODELS: Final = "models"
"""Folder of the versions, in that of a client's state or of a server's run."""
NEWEST: Final = "newest"
BEST: Final = "best"
FORMAT: Final = 1
"""Of the folder of a version; a newer one is refused."""
_USED = "used"
_ABOUT = "version.json"
_TASK, _ROUND = re.compile(r"task-\d+"), re.compile(r"round-\d+")


class About(BaseModel):
    """What a version is.

    Attributes:
        name: ``task-03`` after three tasks, ``round-12`` after a round between, or
            ``best``.
        round: after which it is this one.
        tasks: that it knows, in the order in which they were learned; none at a server.
        head: names of a single head's logits; empty where each task has its own.
        client: whose it is, from 0; None for the server's.
        accuracy: mean over tasks on the validation samples; None where unknown.
        epsilon: privacy spent by then; None where nothing is counted here.
        spec: of the run.
        written: time, ISO 8601 in UTC; empty for the end of a simulation.
        software: version of fcl-flower.
        format: of the folder.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    round: int
    tasks: tuple[TaskClasses, ...]
    head: tuple[str, ...]
    client: int | None
    accuracy: float | None = None
    epsilon: float | None = None
    spec: RunSpec
    written: str = ""
    software: str = __version__
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Version:
    """A version's folder.

    Attributes:
        damage: why it cannot be used; empty where it is whole.
    """

    folder: Path
    about: About
    size: int
    damage: str = ""


def write(models: Path, about: About, groups: Payload) -> None:
    """Write a version into the folder of versions, in the place of one of its name.

    A crash at any moment leaves the old one or the new one.
    """
    make_private_folder(models)
    place, new = models / about.name, models / f".{about.name}.new"
    shutil.rmtree(new, ignore_errors=True)
    FolderStateStore(new).save(groups, about.round)
    files = {path.name: _digest(path) for path in sorted(new.iterdir())}
    about = about.model_copy(update={"written": _now()})
    content: dict[str, Any] = {**about.model_dump(mode="json"), "files": files}
    content["checksum"] = _checksum(content)
    with open(new / _ABOUT, "w", opener=opener) as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    _sync(new)
    old = _aside(place)
    if place.exists():
        shutil.rmtree(old, ignore_errors=True)
        place.rename(old)
    new.rename(place)
    _sync(models)
    shutil.rmtree(old, ignore_errors=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _aside(place: Path) -> Path:
    return place.with_name(f".{place.name}.old")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksum(content: dict[str, Any]) -> str:
    rest = {key: value for key, value in content.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def prune(models: Path, policy: str) -> None:
    """Remove what a policy does not keep (``run.keep_versions``).

    The last round stays until its task ends, and the version that is in use for good.
    """
    names = sorted(p.name for p in models.iterdir() if not p.name.startswith("."))
    tasks = sorted(filter(_TASK.fullmatch, names), key=_number)
    rounds = sorted(filter(_ROUND.fullmatch, names), key=_number)
    dead = rounds[:-1]
    if rounds and tasks:
        last = [_open(models / name) for name in (rounds[-1], tasks[-1])]
        dead += rounds[-1:] if last[0].about.round <= last[1].about.round else []
    if policy != "tasks":
        dead += tasks[: -int(policy.removeprefix("last:"))]
    for name in {*dead} - {used(models)}:
        shutil.rmtree(models / name)


def _number(name: str) -> int:
    return int(name.partition("-")[2])


# ---- reading


def versions(models: Path) -> tuple[Version, ...]:
    """List the versions in a folder by round, each checked to the last byte."""
    return tuple(sorted(_found(models), key=_order))


def _order(version: Version) -> tuple[int, bool, str]:
    about = version.about
    return about.round, bool(_TASK.fullmatch(about.name)), about.name


def _found(models: Path) -> Iterator[Version]:
    for path in sorted(models.glob("[!.]*")):
        if path.is_dir():
            yield _open(path)
    for path in models.glob(".*.old"):
        # Its successor was never named: the process had ended between two renames.
        if not (models / path.name[1:].removesuffix(".old")).exists():
            yield _open(path)


def _open(folder: Path) -> Version:
    try:
        content = json.loads((folder / _ABOUT).read_text())
        number = content["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder / _ABOUT} cannot be read ({error}), expected what a version is; "
            "remove the folder"
        ) from error
    if not isinstance(number, int) or number > FORMAT:
        raise ConfigError(
            f"{folder}: got a version of format {number}, expected at most {FORMAT}, "
            "as a newer fcl-flower has written it; upgrade the one here"
        )
    files, damage = content.get("files", {}), ""
    if content.get("checksum") != _checksum(content):
        damage = f"{_ABOUT} is not as it was written"
    for name, digest in files.items():
        path = folder / name
        if not path.is_file():
            damage = damage or f"{name} is missing"
        elif _digest(path) != digest:
            damage = damage or f"{name} is not as it was written"
    size = sum(path.stat().st_size for path in folder.iterdir())
    try:
        about = About.model_validate(content)
    except ValidationError as error:
        raise first_complaint(About, error, f"{folder / _ABOUT}: ") from error
    return Version(folder, about, size, damage)


def used(models: Path) -> str:
    """Look up the version that somebody has chosen; ``newest`` where nobody has."""
    file = models / _USED
    return file.read_text().strip() if file.is_file() else NEWEST


def use(models: Path, name: str) -> None:
    """Choose what predicts from now on: a version, or whatever is ``newest``.

    Raises:
        ConfigError: there is no such version, or it is damaged.
    """
    if name != NEWEST:
        _chosen(models, name)
    new = models / f".{_USED}.new"
    new.write_text(f"{name}\n")
    new.replace(models / _USED)


def load(models: Path, name: str = "") -> tuple[Version, Payload]:
    """Open a version, or the one in use, with the groups that it was written with.

    Raises:
        ConfigError: there is none, or none of that name, or it is damaged, or of a
            newer format.
    """
    for _ in range(3):
        found = _chosen(models, name)
        try:
            saved = FolderStateStore(found.folder).load()
        except (FclError, OSError) as error:  # the next round has taken its place
            log(WARNING, "%s; looking again", error)
            continue
        if saved is not None:
            return found, saved.state
    raise config_error("version", name or NEWEST, f"one in {models} that stays there")


def _chosen(models: Path, name: str) -> Version:
    wanted = name or used(models)
    known = versions(models)
    if wanted == NEWEST:
        for version in reversed(known):
            if not version.damage:
                return version
            log(WARNING, "%s: %s; looking for another", version.folder, version.damage)
        expected = f"a whole version in {models}, which a client has after a task"
        raise config_error("version", wanted, expected)
    for version in known:
        if version.about.name == wanted:
            if version.damage:
                expected = f"a whole one, but {version.damage}; choose another version"
                raise config_error("version", wanted, expected)
            return version
    raise unknown_name("version", wanted, [NEWEST, *(v.about.name for v in known)])
