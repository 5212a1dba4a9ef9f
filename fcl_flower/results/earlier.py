"""Folders of versions up to 0.2, as the events of which their journals would consist.

There a run was read from its documented files, and each kind of diagnostics had a file
of its own.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from pydantic import BaseModel

from fcl_flower.core.diagnostics import Clustering, Diagnostics, Matrix, Points
from fcl_flower.core.types import Evaluation
from fcl_flower.results.events import (
    About,
    Begun,
    Evaluated,
    Event,
    Finished,
    Fraction,
    Round,
    ScenarioInfo,
    Summary,
    Traffic,
    Trained,
)
from fcl_flower.results.files import (
    csv_rows,
    json_lines,
    json_value,
    read_as,
    refused,
    require_below,
)

FINISHED, UNDER_WAY = "summary.json", "begun.json"
NAMES = (FINISHED, UNDER_WAY, "attention.json", "overlap.json", "concepts.json")


class _Measurement(BaseModel):
    round: int
    task_learned: int
    client: int
    task: int
    accuracy: Fraction


class _Pair(BaseModel):
    """A foreign adapter with its weight, or a candidate with its overlap."""

    client: int
    task: int
    weight: float = 0.0
    overlap: float = 0.0
    chosen: bool = False


class _OfTask(BaseModel):
    client: int
    task: int
    foreign: list[_Pair] = []
    candidates: list[_Pair] = []


def is_run(folder: Path) -> bool:
    """Tell whether a folder holds a run, finished or not."""
    return any((folder / name).is_file() for name in (FINISHED, UNDER_WAY))


def events(folder: Path, scenario: ScenarioInfo) -> Iterator[Event]:
    """Yield what happened in a run; the last line of a file counts when it is whole.

    Raises:
        ConfigError: a file is missing or not what it should be; names the file.
    """
    finished = (folder / FINISHED).is_file()
    start = folder / (FINISHED if finished else UNDER_WAY)
    about = read_as(About, start, json_value)
    yield Begun(about=about)
    if about.hidden is not None:
        counts = [*map(len, scenario.clients)]
        expected = [about.tasks] * about.clients
        if counts != expected:
            path = folder / "scenario.json"
            words = f"concepts: {expected!r:.60}"
            raise refused(path, "lengths of clients", counts, words)
    path = folder / "rounds.jsonl"
    rounds = read_as(list[Round], path, json_lines)
    numbers = [entry.round for entry in rounds]
    if numbers != [*range(1, len(rounds) + 1)]:
        raise refused(path, "round", numbers, "1, 2, 3 and so on")
    diagnostics = _diagnostics(folder, about)
    for one in rounds:
        yield _trained(one, diagnostics if one is rounds[-1] else {})
    yield from _tests(folder / "accuracy.csv", about)
    if finished:
        yield Finished(summary=read_as(Summary, start, json_value))


def _trained(one: Round, diagnostics: Diagnostics) -> Trained:
    """Undo `Trained.line`: of what clients have reported only means are known."""
    means, timing = (
        {key: value for key in keys if (value := getattr(one, key)) is not None}
        for keys in (
            ("loss", "valid_loss", "valid_accuracy"),
            ("staleness", "weight", "clock"),
        )
    )
    sizes = (Counter(one.bytes_up), Counter(one.bytes_down))
    nominal = (one.nominal_bytes_up, one.nominal_bytes_down)
    return Trained(
        round=one.round,
        task=one.task,
        replies=dict.fromkeys(one.clients, means),
        failed={client: one.reasons.get(client, "") for client in one.failed},
        traffic=Traffic(*sizes, *nominal),
        diagnostics={**one.diagnostics, **diagnostics},
        stages={},
        timing=timing,
        seconds=one.seconds,
    )


def _tests(path: Path, about: About) -> Iterator[Evaluated]:
    rows = read_as(list[_Measurement], path, csv_rows)
    found: dict[tuple[int, int], dict[int, list[float]]] = {}
    for line, m in enumerate(rows):
        learned = m.task_learned if about.hidden is None else about.tasks - 1
        require_below(path, f"{line}.client", [m.client], about.clients)
        require_below(path, f"{line}.task_learned", [learned], about.tasks)
        require_below(path, f"{line}.task", [m.task], learned + 1)
        test = found.setdefault((m.round, m.task_learned), {})
        values = test.setdefault(m.client, [])
        values += [float("nan")] * (m.task + 1 - len(values))
        values[m.task] = m.accuracy
    for (number, task), of_client in found.items():
        scores = {c: Evaluation(values, 0) for c, values in of_client.items()}
        yield Evaluated(round=number, task=task, scores=scores)


# ---- what methods had files for


def _diagnostics(folder: Path, about: About) -> Diagnostics:
    found: Diagnostics = {}
    if (path := folder / "attention.json").exists():
        used = read_as(list[_OfTask], path, json_value)
        found["attention"] = Matrix(
            title="Weight of each foreign adapter for each client and task",
            rows="who attends (client/task)",
            columns="whose adapter (client/task)",
            note="Mean |alpha| over the layers.",
            values={_name(e): {_name(f): f.weight for f in e.foreign} for e in used},
        )
    if (path := folder / "overlap.json").exists():
        new = read_as(list[_OfTask], path, json_value)
        found["overlap"] = Matrix(
            title="Overlap of each new task with the finished tasks of other clients",
            rows="new task (client/task)",
            columns="finished task (client/task)",
            note="A mark: chosen, that is, the client used its adapter.",
            values={_name(e): {_name(c): c.overlap for c in e.candidates} for e in new},
            marked={
                _name(e): [_name(c) for c in e.candidates if c.chosen] for e in new
            },
        )
    path = folder / "concepts.json"
    if about.hidden is not None and path.exists():
        frames = read_as(list[Clustering], path, json_value)
        for i, one in enumerate(frames):
            require_below(path, f"{i}.clients", one.clients, about.clients)
            require_below(path, f"{i}.concept", one.concept, about.tasks)
            require_below(path, f"{i}.round", [one.round], about.total_rounds + 1)
        numbers = [one.round for one in frames]
        if any(later <= earlier for earlier, later in pairwise(numbers)):
            raise refused(path, "round", numbers, "ascending ones")
        found["map"] = Points(title="Map of the client models", frames=frames)
    return found


def _name(one: _OfTask | _Pair) -> str:
    return f"{one.client}/{one.task}"
