"""Reads the files of a run folder: all that a report is made of, checked once."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field, TypeAdapter

from fcl_flower.results import metrics
from fcl_flower.results.metrics import Accuracy, mean_measured
from fcl_flower.results.report.run_files import (
    csv_rows,
    json_lines,
    json_value,
    read_as,
    refused,
    require_below,
)
from fcl_flower.results.report.schema import (
    Attention,
    Clustering,
    Measurement,
    Overlap,
    Round,
    Scenario,
    Summary,
)

_SUMMARY = TypeAdapter(Summary)
_SCENARIO = TypeAdapter(Scenario)
_ROUNDS = TypeAdapter(list[Round])
_MEASUREMENTS = TypeAdapter(list[Measurement])
_ATTENTION = TypeAdapter(list[Attention])
_OVERLAP = TypeAdapter(list[Overlap])
_CLUSTERINGS = TypeAdapter(Annotated[list[Clustering], Field(min_length=1)])


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """All files of one run folder.

    Attributes:
        folder: where they were read from.
        accuracy: ``a[c, t, i]`` of `fcl_flower.results.metrics`, shape (clients, tasks,
            tasks).
        mean_accuracy: its mean over clients, shape (tasks, tasks).
        attention: None for a strategy without foreign adapters.
        overlap: None where the server does not compare tasks.
        clusterings: None where the server does not tell hidden concepts apart.
    """

    folder: Path
    summary: Summary
    accuracy: Accuracy
    mean_accuracy: Accuracy
    measurements: list[Measurement]
    rounds: list[Round]
    scenario: Scenario
    attention: list[Attention] | None
    overlap: list[Overlap] | None
    clusterings: list[Clustering] | None

    @property
    def latest(self) -> Accuracy:
        """Return the row of ``accuracy`` after the last task, or the last one so far.

        Shape (clients, tasks).
        """
        if self.summary.progress is None or np.isnan(self.accuracy).all():
            return self.accuracy[:, -1]
        return self.accuracy[:, metrics.so_far(self.accuracy).shape[1] - 1]


@dataclass(frozen=True, slots=True, eq=False)
class Evaluations:
    """Every evaluation of a run: what hidden concepts have in place of a matrix.

    Attributes:
        rounds: after which clients were evaluated, ascending.
        accuracy: shape (evaluations, clients, tasks), NaN where nothing was measured.
    """

    rounds: npt.NDArray[np.int64]
    accuracy: Accuracy

    @property
    def by_task(self) -> Accuracy:
        """Return the mean over clients, shape (evaluations, tasks)."""
        return mean_measured(self.accuracy, axis=1)

    @property
    def average(self) -> Accuracy:
        """Return the mean over tasks and then over clients, shape (evaluations,)."""
        return mean_measured(mean_measured(self.accuracy, axis=2), axis=1)


def read_run(folder: Path) -> Run:
    """Return what the folder of a finished run holds.

    Raises:
        ConfigError: a file is missing or not what it should be; names the file.
    """
    summary = read_as(_SUMMARY, folder / "summary.json", json_value)
    attention, overlap = folder / "attention.json", folder / "overlap.json"
    concepts = folder / "concepts.json"
    clustered = summary.hidden is not None and concepts.exists()
    side = (summary.tasks, summary.tasks)
    return Run(
        folder,
        summary,
        _matrix(folder, "client_accuracy", summary, (summary.clients, *side)),
        _matrix(folder, "accuracy_matrix", summary, side),
        measurements_of(folder / "accuracy.csv", summary),
        rounds_of(folder / "rounds.jsonl"),
        scenario_of(folder / "scenario.json", summary),
        read_as(_ATTENTION, attention, json_value) if attention.exists() else None,
        read_as(_OVERLAP, overlap, json_value) if overlap.exists() else None,
        _clusterings(concepts, summary) if clustered else None,
    )


def evaluations(run: Run) -> Evaluations:
    """Return the measurements of ``run`` as an array, by round."""
    rounds = sorted({m.round for m in run.measurements})
    index = {number: i for i, number in enumerate(rounds)}
    shape = (len(rounds), run.summary.clients, run.summary.tasks)
    accuracy = np.full(shape, np.nan)
    for m in run.measurements:
        accuracy[index[m.round], m.client, m.task] = m.accuracy
    return Evaluations(np.array(rounds, np.int64), accuracy)


# ---- one file each


def _matrix(
    folder: Path, key: str, summary: Summary, shape: tuple[int, ...]
) -> Accuracy:
    """Return a key of the summary as an array, NaN for null."""
    nested = getattr(summary, key)
    try:
        matrix = np.array(nested, dtype=np.float64)
    except ValueError:
        matrix = np.empty(0)
    if matrix.shape != shape:
        expected = f"lists of the shape {shape}"
    elif not np.isnan(matrix[..., *np.triu_indices(shape[-1], k=1)]).all():
        expected = "null above the diagonal"
    else:
        return matrix
    raise refused(folder / "summary.json", key, nested, expected)


def measurements_of(
    path: Path, summary: Summary, *, growing: bool = False
) -> list[Measurement]:
    """Return the rows of ``accuracy.csv``; of a ``growing`` one the whole rows."""
    found = read_as(_MEASUREMENTS, path, lambda path: csv_rows(path, growing=growing))
    for line, m in enumerate(found):
        require_below(path, f"{line}.client", [m.client], summary.clients)
        require_below(path, f"{line}.task", [m.task], summary.tasks)
    return found


def rounds_of(path: Path, *, growing: bool = False) -> list[Round]:
    """Return the lines of ``rounds.jsonl``; of a ``growing`` one the whole lines."""
    rounds = read_as(_ROUNDS, path, lambda path: json_lines(path, growing=growing))
    numbers = [entry.round for entry in rounds]
    if numbers != [*range(1, len(rounds) + 1)]:
        raise refused(path, "round", numbers, "1, 2, 3 and so on")
    return rounds


def scenario_of(path: Path, summary: Summary) -> Scenario:
    """Return ``scenario.json``."""
    scenario = read_as(_SCENARIO, path, json_value)
    if summary.hidden is not None:
        expected = [summary.tasks] * summary.clients
        counts = [*map(len, scenario.clients)]
        if counts != expected:
            raise refused(
                path, "lengths of clients", counts, f"concepts: {expected!r:.60}"
            )
    return scenario


def _clusterings(path: Path, summary: Summary) -> list[Clustering]:
    found = read_as(_CLUSTERINGS, path, json_value)
    for i, one in enumerate(found):
        require_below(path, f"{i}.clients", one.clients, summary.clients)
        require_below(path, f"{i}.concept", one.concept, summary.tasks)
        require_below(path, f"{i}.round", [one.round], summary.total_rounds + 1)
    numbers = [one.round for one in found]
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        raise refused(path, "round", numbers, "ascending ones")
    return found
