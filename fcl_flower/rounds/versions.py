"""Versions of a model, in folders that are whole or not there at all.

A client and the server have one after each task. Each is written beside its place and
renamed into it, so that a prediction during a run never meets half a model.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from logging import WARNING
from pathlib import Path
from typing import Any, Final, NamedTuple

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
from fcl_flower.rounds.place import SPEC_FILE
from fcl_flower.setup.build import Built

MODELS: Final = "models"
"""Folder of the versions, in the folder of a client's state or of a server's run."""
NEWEST: Final = "newest"
BEST: Final = "best"
FORMAT: Final = 2
"""The format of a version's folder; another format is refused."""
_USED, _ABOUT, _ASIDE = "used", "version.json", ".old"


class About(BaseModel):
    """The description of a version.

    Attributes:
        name: ``task-03`` after three tasks, ``round-12`` after a round between.
        round: the last round that the model has learned from.
        tasks: its tasks, in the order of learning; a server does not know the classes.
        head: names of a single head's logits; empty with a head for each task.
        client: number of its client; None for the server's model.
        accuracy: mean over tasks on the validation samples; None where unknown.
        epsilon: privacy spent by then; None where it is not counted.
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
    """Name the logits of a single head; none with a head for each task."""
    names = run.config.data.classes or run.scenario.class_names
    single = run.config.model.head == "single"
    return tuple(names[place] for place in range(len(names))) if single else ()


class Version(NamedTuple):
    """A version's folder, with its description."""

    folder: Path
    about: About

    @property
    def ends_task(self) -> bool:
        """Whether it is the model after a task, and not after a round between."""
        return self.about.name.startswith("task-")

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(path.stat().st_size for path in self.folder.iterdir())

    def groups(self) -> Payload:
        """Load its groups of tensors.

        Raises:
            WireError: they are damaged.
        """
        saved = FolderStateStore(self.folder).load()
        if saved is None:
            raise WireError(f"{self.folder} has no tensors")
        return saved.state

    def damage(self) -> str:
        """Say what is damaged; empty for a whole version."""
        try:
            self.groups()
        except (WireError, OSError) as error:
            return str(error)
        return ""


def write(models: Path, about: About, groups: Payload) -> None:
    """Write a version into the folder of versions; replace one of its name.

    A crash at any moment leaves the old version or the new one. Versions that the run
    does not keep are removed.
    """
    make_private_folder(models)
    place, name = models / about.name, f".{about.name}"
    new, old = models / f"{name}.new", models / f"{name}{_ASIDE}"
    shutil.rmtree(new, ignore_errors=True)
    FolderStateStore(new).save(groups, about.round)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    content = about.model_copy(update={"written": now}).model_dump(mode="json")
    content["checksum"] = _checksum(content)
    replace_file(new / _ABOUT, json.dumps(content), private=True, durable=True)
    sync_folder(new)
    if place.exists():
        shutil.rmtree(old, ignore_errors=True)
        place.rename(old)
    new.rename(place)
    sync_folder(models)
    shutil.rmtree(old, ignore_errors=True)
    prune(models, about.spec.config.run.keep_versions)


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def prune(models: Path, policy: str) -> None:
    """Remove the versions that a policy does not keep (``run.keep_versions``).

    The newest, the best and the used version stay.
    """
    present = versions(models)
    tasks = [version for version in present if version.ends_task]
    last = 0 if policy == "tasks" else int(policy.removeprefix("last:"))
    kept = [*tasks[-last:], *present[-1:], *best(present)]
    names = {used(models), *(version.about.name for version in kept)}
    for version in present:
        if version.about.name not in names:
            shutil.rmtree(version.folder)


# ---- reading


def versions(models: Path) -> list[Version]:
    """List the versions in a folder, the newest last.

    Raises:
        FormatError: a newer fcl-flower has written one of them.
    """
    present = []
    # A version aside counts only if a process ended before it renamed the successor.
    folders = [*models.glob(f".*{_ASIDE}/"), *models.glob("[!.]*/")]
    by_name = {path.name.lstrip(".").removesuffix(_ASIDE): path for path in folders}
    for folder in by_name.values():
        try:
            present.append(_open(folder))
        except FormatError:
            raise
        except (ConfigError, OSError) as error:
            if folder.is_dir():  # else the next round has taken its place meanwhile
                log(WARNING, "%s", error)
    return sorted(present, key=lambda version: (version.about.round, version.ends_task))


def best(present: Sequence[Version]) -> list[Version]:
    """Find the version with the best validated accuracy, of those with most tasks.

    The list is empty if no version was validated. Of two equal versions it has the
    earlier one.
    """
    most = max((len(version.about.tasks) for version in present), default=0)
    accuracies = {
        version.about.accuracy: version
        for version in reversed(present)
        if version.about.accuracy is not None and len(version.about.tasks) == most
    }
    return [accuracies[max(accuracies)]] if accuracies else []


def _open(folder: Path) -> Version:
    path = folder / _ABOUT
    try:
        content = json.loads(path.read_text())
        check_format(path, content[KEY], FORMAT)
        if content.pop("checksum") != _checksum(content):
            raise ValueError("its checksum is another")
        return Version(folder, About.model_validate_json(json.dumps(content)))
    except FormatError:
        raise
    except (ValueError, KeyError, TypeError) as error:  # or pydantic's
        raise ConfigError(
            f"{path} is damaged ({str(error).splitlines()[0]}), expected what a "
            f"version is; remove {folder}"
        ) from error


def used(models: Path) -> str:
    """Look up the name of the chosen version; ``newest`` without a choice."""
    file = models / _USED
    return file.read_text().strip() if file.is_file() else NEWEST


def use(models: Path, name: str) -> None:
    """Choose the version that predicts from now on; ``newest`` follows the run.

    Raises:
        ConfigError: there is no such version, or it is damaged.
    """
    if name != NEWEST and (damage := _named(versions(models), name).damage()):
        raise _damaged(name, damage)
    replace_file(models / _USED, f"{name}\n")


def load(models: Path, name: str = "") -> tuple[Version, Payload]:
    """Open a version, or the used one, and load its groups.

    Raises:
        ConfigError: there is no version, or none of that name, or it is damaged, or of
            a newer format.
    """
    wanted = name or used(models)
    while True:
        present = versions(models)
        chosen = present[::-1] if wanted == NEWEST else [_named(present, wanted)]
        for version in chosen:
            try:
                return version, version.groups()
            except (WireError, OSError) as error:
                if not version.folder.is_dir():
                    break  # the next round has taken its place meanwhile
                if wanted != NEWEST:
                    raise _damaged(version.about.name, error) from error
                log(WARNING, "%s is damaged", version.folder)
        else:
            expected = f"a whole version in {models}, as a client has after a round"
            raise config_error("version", wanted, expected)


def _named(present: Sequence[Version], name: str) -> Version:
    by_name = {version.about.name: version for version in present}
    if ranked := best(present):
        by_name[BEST] = ranked[0]
    if name not in by_name:
        raise unknown_name("version", name, [NEWEST, *by_name])
    return by_name[name]


def _damaged(name: str, damage: object) -> ConfigError:
    expected = f"a whole one, but {damage}; choose another version"
    return config_error("version", name, expected)


# ---- states of old runs


def remove_old_runs(states: Path, keep: int, current: str) -> Iterator[str]:
    """Remove the states of all runs but the last ``keep``; yield the removed names.

    Three kinds of older runs stay: runs with a chosen version; the last run with a
    version, which predicts; and runs that count the privacy cost of examples, as a
    resumed run would count anew.

    Args:
        states: folder with one folder for each run, with the client's folder in it.
        keep: at least 1.
        current: name of the run that goes on, which stays whatever its age.
    """

    def last_change(run: Path) -> float:
        return max(path.stat().st_mtime for path in (run, *run.glob("*")))

    runs = sorted(
        (path for path in states.iterdir() if path.is_dir()),
        key=lambda run: (run.name == current, last_change(run)),
    )
    models = (m for m in states.glob(f"*/*/{MODELS}") if any(m.glob("[!.]*/")))
    predicts = max(models, key=lambda path: path.stat().st_mtime, default=states)
    for run in runs[:-keep]:
        used_last = predicts.is_relative_to(run)
        if not (used_last or any(map(_cannot_be_missed, run.iterdir()))):
            shutil.rmtree(run)
            yield run.name


def _cannot_be_missed(client: Path) -> bool:
    """Tell whether a client uses a version of the run, or counts a cost of privacy."""
    if used(client / MODELS) != NEWEST:
        return True
    try:
        spec = json.loads((client / SPEC_FILE).read_text())
        return bool(spec["config"]["privacy"]["unit"] == "example")
    except (OSError, ValueError, KeyError, TypeError):
        return False  # the client does not know the run, and cannot resume it
