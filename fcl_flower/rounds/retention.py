"""Which runs a client keeps its state of: the last ones, and those it cannot miss."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from fcl_flower.rounds import versions
from fcl_flower.rounds.place import SPEC_FILE


def remove_old_runs(states: Path, keep: int, current: str) -> Iterator[str]:
    """Remove the states of all runs but the last ``keep``; yield what was removed.

    Three kinds of older runs stay: those with a version that somebody has chosen; the
    last one with a version, which predicts; and those that count what examples have
    cost, as a run that is resumed would count anew.

    Args:
        states: folder with one folder a run, in it the client's.
        keep: at least 1.
        current: name of the run that goes on, one of the last whatever its age.
    """
    runs = sorted(
        (path for path in states.iterdir() if path.is_dir()),
        key=lambda path: (path.name == current, _last_change(path)),
        reverse=True,
    )
    predicts = max(_models(states), key=lambda path: path.stat().st_mtime, default=None)
    for run in runs[keep:]:
        used = predicts is not None and predicts.parents[1] == run
        if not used and not any(map(_cannot_be_missed, run.iterdir())):
            shutil.rmtree(run)
            yield run.name


def _last_change(run: Path) -> float:
    return max(path.stat().st_mtime for path in (run, *run.glob("*")))


def _models(states: Path) -> Iterator[Path]:
    """Yield the folders that have a version; the one written last is what predicts."""
    for models in states.glob(f"*/*/{versions.MODELS}"):
        if any(models.glob("[!.]*/")):
            yield models


def _cannot_be_missed(client: Path) -> bool:
    """Tell whether a version of it is in use, or it counts a cost of privacy."""
    if versions.used(client / versions.MODELS) != versions.NEWEST:
        return True
    try:
        spec = json.loads((client / SPEC_FILE).read_text())
        return bool(spec["config"]["privacy"]["unit"] == "example")
    except (OSError, ValueError, KeyError, TypeError):
        return False  # of a run that it was never told, or cannot take part in again
