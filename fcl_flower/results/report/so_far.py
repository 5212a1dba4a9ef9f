"""Reads the folder of a run that is under way: what there is of it so far."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from fcl_flower.core.errors import refuse
from fcl_flower.results import metrics
from fcl_flower.results.metrics import Accuracy
from fcl_flower.results.report.reader import (
    Run,
    measurements_of,
    read_run,
    rounds_of,
    scenario_of,
)
from fcl_flower.results.report.run_files import json_value, read_as, require_below
from fcl_flower.results.report.schema import (
    BytesByKind,
    Measurement,
    Progress,
    Round,
    Summary,
)
from fcl_flower.results.run_folder import BEGUN, begun

_BEGUN = TypeAdapter(Summary)
_PROGRESS = TypeAdapter(Progress)


def read_so_far(folder: Path) -> Run:
    """Return a run that has finished, or what there is of one that is under way.

    The summary of one under way has ``progress``, and those measures that do not ask
    for an end; others are None. Nothing here waits for who writes the files: the last
    line of one counts when it is whole.

    Raises:
        ConfigError: a file is missing or not what it should be; names the file.
    """
    if (folder / "summary.json").exists():
        return read_run(folder)
    if not begun(folder):
        expected = f"that of a run, with summary.json or {BEGUN}"
        raise refuse("folder", str(folder), expected)
    start = read_as(_BEGUN, folder / BEGUN, json_value)
    rounds = rounds_of(folder / "rounds.jsonl", growing=True)
    path = folder / "accuracy.csv"
    measurements = measurements_of(path, start, growing=True)
    accuracy = _accuracy(path, measurements, start)
    return Run(
        folder,
        _summary(start, _progress(folder / "progress.json"), rounds, accuracy),
        accuracy,
        metrics.mean_measured(accuracy, axis=0),
        measurements,
        rounds,
        scenario_of(folder / "scenario.json", start),
        attention=None,
        overlap=None,
        clusterings=None,
    )


def _progress(path: Path) -> Progress:
    found = read_as(_PROGRESS, path, json_value)
    return found.model_copy(update={"at": path.stat().st_mtime})


def _accuracy(
    path: Path, measurements: Sequence[Measurement], begun: Summary
) -> Accuracy:
    """Return ``a`` as far as it is measured; of hidden concepts only its last row."""
    accuracy = np.full((begun.clients, begun.tasks, begun.tasks), np.nan)
    for line, m in enumerate(measurements):
        row = begun.tasks - 1
        if begun.hidden is None:
            row = m.task_learned
            require_below(path, f"{line}.task_learned", [row], begun.tasks)
            require_below(path, f"{line}.task", [m.task], row + 1)
        accuracy[m.client, row, m.task] = m.accuracy
    return accuracy


def _summary(
    begun: Summary, progress: Progress, rounds: Sequence[Round], accuracy: Accuracy
) -> Summary:
    """Return the summary of a run before its first round, with what came since."""
    up, down = Counter[str](), Counter[str]()
    for one in rounds:
        up.update(one.bytes_up)
        down.update(one.bytes_down)
    found: dict[str, object] = {
        "progress": progress,
        "seconds": progress.seconds,
        "bytes_up": up.total(),
        "bytes_down": down.total(),
        "bytes_by_kind": BytesByKind(up=up, down=down),
        "nominal_bytes_up": sum(one.nominal_bytes_up for one in rounds),
        "nominal_bytes_down": sum(one.nominal_bytes_down for one in rounds),
    }
    if not np.isnan(accuracy).all():
        learned = metrics.so_far(accuracy)
        found["average_accuracy"] = metrics.average_accuracy(learned)
        if begun.hidden is None:
            found["learning_accuracy"] = metrics.learning_accuracy(learned)
    return begun.model_copy(update=found)
