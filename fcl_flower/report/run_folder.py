"""Reads the files of a run folder: all that a report is made of, checked once."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from fcl_flower.errors import ConfigError
from fcl_flower.metrics import Accuracy
from fcl_flower.report.records import Attention, Measurement, Round, Scenario, Summary


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """All files of one run folder.

    Attributes:
        folder: where they were read from.
        accuracy: ``a[c, t, i]`` of `fcl_flower.metrics`, shape (clients, tasks, tasks).
        mean_accuracy: its mean over clients, shape (tasks, tasks).
        attention: None for a strategy without foreign adapters.
    """

    folder: Path
    summary: Summary
    accuracy: Accuracy
    mean_accuracy: Accuracy
    measurements: list[Measurement]
    rounds: list[Round]
    scenario: Scenario
    attention: list[Attention] | None


def read_run(folder: Path) -> Run:
    """Return what ``folder`` holds.

    Raises:
        ConfigError: a file is missing or not what it should be; names the file.
    """
    summary_file = folder / "summary.json"
    summary = _checked(_SUMMARY, _json(summary_file), summary_file)
    clients, tasks = summary.clients, summary.tasks
    accuracy = _matrix(
        summary.client_accuracy,
        (clients, tasks, tasks),
        f"{summary_file}: client_accuracy",
    )
    mean_accuracy = _matrix(
        summary.accuracy_matrix, (tasks, tasks), f"{summary_file}: accuracy_matrix"
    )
    accuracy_file = folder / "accuracy.csv"
    rounds_file = folder / "rounds.jsonl"
    rounds = _checked(_ROUNDS, _json_lines(rounds_file), rounds_file)
    numbered = [entry.round for entry in rounds]
    if numbered != [*range(1, len(rounds) + 1)]:
        raise ConfigError(f"{rounds_file}: round is {numbered!r:.60}, expected 1, 2, 3")
    scenario_file = folder / "scenario.json"
    attention_file = folder / "attention.json"
    return Run(
        folder,
        summary,
        accuracy,
        mean_accuracy,
        _checked(_MEASUREMENTS, _rows(accuracy_file), accuracy_file),
        rounds,
        _checked(_SCENARIO, _json(scenario_file), scenario_file),
        _checked(_ATTENTION, _json(attention_file), attention_file)
        if attention_file.exists()
        else None,
    )


_SUMMARY = TypeAdapter(Summary)
_SCENARIO = TypeAdapter(Scenario)
_ROUNDS = TypeAdapter(list[Round])
_MEASUREMENTS = TypeAdapter(list[Measurement])
_ATTENTION = TypeAdapter(list[Attention])

T = TypeVar("T")


def _checked(kind: TypeAdapter[T], value: object, path: Path) -> T:
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        shown = "missing" if first["type"] == "missing" else f"{first['input']!r:.60}"
        raise ConfigError(f"{path}: {key} is {shown}: {first['msg']}") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}), expected a file of a finished run"
        ) from error


def _json(path: Path) -> object:
    try:
        return json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error


def _json_lines(path: Path) -> list[object]:
    try:
        return [json.loads(line) for line in _text(path).splitlines() if line.strip()]
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} has a line that is not JSON: {error}") from error


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(_text(path).splitlines()))


def _matrix(nested: object, shape: tuple[int, ...], what: str) -> Accuracy:
    try:
        matrix = np.array(nested, dtype=np.float64)
    except ValueError:
        matrix = np.empty(0)
    if matrix.shape != shape:
        raise ConfigError(f"{what} is {nested!r:.40}, expected the shape {shape}")
    return matrix
