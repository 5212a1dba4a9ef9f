"""Versions of a model: what predicts, in folders that are whole or not there at all.

A client has one after each task, and so has the server. Each is written beside its
place and renamed into it, so that who predicts during a run never sees half a model.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from logging import WARNING
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from fcl_flower import __version__
from fcl_flower.config.run_spec import RunSpec
from fcl_flower.core.errors import ConfigError, WireError, config_error, unknown_name
from fcl_flower.core.files import make_private_folder, replace_file, sync_folder
from fcl_flower.core.formats import KEY, FormatError, check_format
from fcl_flower.core.log import log
from fcl_flower.core.types import Payload
from fcl_flower.data.examples import TaskClasses
from fcl_flower.rounds.checkpoint import FolderStateStore
from fcl_flower.setup.build import Built

MODELS: Final = "models"
"""Folder of the versions, in that of a client's state or of a server's run."""
NEWEST: Final = "newest"
BEST: Final = "best"
FORMAT: Final = 1
"""Of the folder of a version; a newer one is refused."""
_USED = "used"
_ABOUT = "version.json"
_TASK = re.compile(r"task-\d+")


class About(BaseModel):
    """What a version is.

    Attributes:
        name: ``task-03`` after three tasks, ``round-12`` after a round between.
        round: after which it is this one.
        tasks: that it knows, in the order in which they were learned; a server does not
            know what classes they have.
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


def head_names(run: Built) -> tuple[str, ...]:
    """Name the logits of a single head; none where each task has one of its own."""
    names = run.config.data.classes or run.scenario.class_names
    single = run.config.model.head == "single"
    return tuple(names[place] for place in range(len(names))) if single else ()


@dataclass(frozen=True)
class Version:
    """A version's folder, with the SHA-256 of each file as it was written."""

    folder: Path
    about: About
    files: Mapping[str, str]

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(path.stat().st_size for path in self.folder.iterdir())

    def damage(self) -> str:
        """Say which file is not as it was written; empty where all are."""
        for name, digest in self.files.items():
            path = self.folder / name
            if not path.is_file():
                return f"{name} is missing"
            if _digest(path) != digest:
                return f"{name} is not as it was written"
        return ""


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
    replace_file(new / _ABOUT, json.dumps(content), private=True, durable=True)
    sync_folder(new)
    old = _aside(place)
    if place.exists():
        shutil.rmtree(old, ignore_errors=True)
        place.rename(old)
    new.rename(place)
    sync_folder(models)
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


def prune(models: Path, policy: str) -> None:
    """Remove what a policy does not keep (``run.keep_versions``).

    What is newest, best or in use stays.
    """
    known = versions(models)
    kept = {used(models), *(one.about.name for one in [*known[-1:], *best(known)])}
    tasks = [one for one in known if _TASK.fullmatch(one.about.name)]
    last = 0 if policy == "tasks" else int(policy.removeprefix("last:"))
    kept |= {one.about.name for one in tasks[-last:]}
    for one in known:
        if one.about.name not in kept:
            shutil.rmtree(one.folder)


# ---- reading


def versions(models: Path) -> list[Version]:
    """List the versions in a folder, the newest last.

    Raises:
        FormatError: a newer fcl-flower has written one of them.
    """
    return sorted(_found(models), key=_order)


def best(known: Sequence[Version]) -> list[Version]:
    """Find the version with the best validated accuracy, of those with most tasks.

    None where nothing was validated; the earlier of two that are equal.
    """
    most = max((len(one.about.tasks) for one in known), default=0)
    valid = [
        (one.about.accuracy, one)
        for one in known
        if one.about.accuracy is not None and len(one.about.tasks) == most
    ]
    return [max(valid, key=lambda pair: pair[0])[1]] if valid else []


def _order(version: Version) -> tuple[int, bool]:
    about = version.about
    return about.round, bool(_TASK.fullmatch(about.name))


def _found(models: Path) -> Iterator[Version]:
    folders = [path for path in models.glob("[!.]*") if path.is_dir()]
    # The successor of these was never named: a process ended between two renames.
    aside = [_aside(path) for path in folders]
    for path in [*folders, *(p for p in models.glob(".*.old") if p not in aside)]:
        try:
            yield _open(path)
        except FormatError:
            raise
        except (ConfigError, OSError) as error:
            if path.is_dir():  # else the next round has taken its place meanwhile
                log(WARNING, "%s", error)


def _open(folder: Path) -> Version:
    path = folder / _ABOUT
    try:
        content = json.loads(path.read_text())
        check_format(path, content[KEY], FORMAT)
        if content["checksum"] != _checksum(content):
            raise ValueError("its checksum is another")
        about = About.model_validate_json(json.dumps(content))
        return Version(folder, about, content["files"])
    except FormatError:
        raise
    except (ValueError, KeyError, TypeError) as error:  # or pydantic's
        raise ConfigError(
            f"{path} is damaged ({str(error).splitlines()[0]}), expected what a "
            f"version is; remove {folder}"
        ) from error


def used(models: Path) -> str:
    """Look up the version that somebody has chosen; ``newest`` where nobody has."""
    file = models / _USED
    return file.read_text().strip() if file.is_file() else NEWEST


def use(models: Path, name: str) -> None:
    """Choose what predicts from now on: a version, or whatever is ``newest``.

    Raises:
        ConfigError: there is no such version, or it is damaged.
    """
    if name != NEWEST and (damage := _chosen(models, name).damage()):
        expected = f"a whole one, but {damage}; choose another version"
        raise config_error("version", name, expected)
    replace_file(models / _USED, f"{name}\n")


def load(models: Path, name: str = "") -> tuple[Version, Payload]:
    """Open a version, or the one in use, with the groups that it was written with.

    Raises:
        ConfigError: there is none, or none of that name, or it is damaged, or of a
            newer format.
    """
    while True:
        found = _chosen(models, name)
        try:
            if damage := found.damage():
                raise WireError(damage)
            saved = FolderStateStore(found.folder).load()
        except (WireError, OSError) as error:
            if found.folder.is_dir() or name not in ("", NEWEST):
                expected = f"a whole one, but {error}; choose another version"
                raise config_error("version", found.about.name, expected) from error
            continue  # the next round has taken its place meanwhile
        assert saved is not None  # it is whole
        return found, saved.state


def _chosen(models: Path, name: str) -> Version:
    wanted = name or used(models)
    known = versions(models)
    by_name = {one.about.name: one for one in known}
    if found := best(known):
        by_name[BEST] = found[0]
    if wanted == NEWEST:
        whole = [one for one in reversed(known) if not one.damage()]
        if not whole:
            expected = f"a whole version in {models}, as a client has after a round"
            raise config_error("version", wanted, expected)
        if whole[0] is not known[-1]:
            log(WARNING, "%s is damaged", known[-1].folder)
        return whole[0]
    if wanted not in by_name:
        raise unknown_name("version", wanted, [NEWEST, *by_name])
    return by_name[wanted]
