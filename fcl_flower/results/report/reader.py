"""Reads the files of a run folder: all that a report is made of, checked once."""

import csv
import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field, TypeAdapter, ValidationError

from fcl_flower.core.errors import ConfigError
from fcl_flower.results.metrics import Accuracy, mean_measured
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

T = TypeVar("T")


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
    """Return what ``folder`` holds.

    Raises:
        ConfigError: a file is missing or not what it should be; names the file.
    """
    summary = _read(_SUMMARY, folder / "summary.json", _json)
    attention, overlap = folder / "attention.json", folder / "overlap.json"
    concepts = folder / "concepts.json"
    clustered = summary.hidden is not None and concepts.exists()
    side = (summary.tasks, summary.tasks)
    return Run(
        folder,
        summary,
        _matrix(folder, "client_accuracy", summary, (summary.clients, *side)),
        _matrix(folder, "accuracy_matrix", summary, side),
        _measurements(folder / "accuracy.csv", summary),
        _rounds(folder / "rounds.jsonl"),
        _scenario(folder / "scenario.json", summary),
        _read(_ATTENTION, attention, _json) if attention.exists() else None,
        _read(_OVERLAP, overlap, _json) if overlap.exists() else None,
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
    raise _refused(folder / "summary.json", key, nested, expected)


def _measurements(path: Path, summary: Summary) -> list[Measurement]:
    found = _read(_MEASUREMENTS, path, _csv_rows)
    for line, m in enumerate(found):
        _require_below(path, f"{line}.client", [m.client], summary.clients)
        _require_below(path, f"{line}.task", [m.task], summary.tasks)
    return found


def _rounds(path: Path) -> list[Round]:
    rounds = _read(_ROUNDS, path, _json_lines)
    numbers = [entry.round for entry in rounds]
    if numbers != [*range(1, len(rounds) + 1)]:
        raise _refused(path, "round", numbers, "1, 2, 3 and so on")
    return rounds


def _scenario(path: Path, summary: Summary) -> Scenario:
    scenario = _read(_SCENARIO, path, _json)
    if summary.hidden is not None:
        expected = [summary.tasks] * summary.clients
        counts = [*map(len, scenario.clients)]
        if counts != expected:
            raise _refused(
                path, "lengths of clients", counts, f"concepts: {expected!r:.60}"
            )
    return scenario


def _clusterings(path: Path, summary: Summary) -> list[Clustering]:
    found = _read(_CLUSTERINGS, path, _json)
    for i, one in enumerate(found):
        _require_below(path, f"{i}.clients", one.clients, summary.clients)
        _require_below(path, f"{i}.concept", one.concept, summary.tasks)
        _require_below(path, f"{i}.round", [one.round], summary.total_rounds + 1)
    numbers = [one.round for one in found]
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        raise _refused(path, "round", numbers, "ascending ones")
    return found


# ---- any file


def _read(schema: TypeAdapter[T], path: Path, parse: Callable[[Path], object]) -> T:
    """Return a file's content by its schema."""
    try:
        return schema.validate_python(parse(path))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the whole"
        shown = "nothing" if first["type"] == "missing" else f"{first['input']!r:.60}"
        raise ConfigError(f"{path}: {key}: got {shown}: {first['msg']}") from error


def _json(path: Path) -> object:
    try:
        return json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: got {error}, expected JSON") from error


def _json_lines(path: Path) -> list[object]:
    try:
        return [json.loads(line) for line in _text(path).split("\n") if line.strip()]
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: got {error}, expected JSON lines") from error


def _csv_rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(_text(path))))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: got {error}, expected a text file of a finished run"
        ) from error


def _require_below(path: Path, key: str, values: Iterable[int], limit: int) -> None:
    for value in values:
        if not 0 <= value < limit:
            raise _refused(path, key, value, f"a number from 0 to {limit - 1}")


def _refused(path: Path, key: str, value: object, expected: str) -> ConfigError:
    return ConfigError(f"{path}: {key}: got {value!r:.60}, expected {expected}")
