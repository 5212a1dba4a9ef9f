"""One run as its events add up: what is written, resumed and read alike."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fcl_flower.core.diagnostics import (
    NONE,
    Clustering,
    Diagnostics,
    Points,
    merged,
)
from fcl_flower.core.errors import ConfigError, config_error
from fcl_flower.core.types import Array, Evaluation
from fcl_flower.results import journal, measures
from fcl_flower.results.events import (
    EPSILON,
    LABEL_EPSILON,
    MULTIPLY_ADDS,
    About,
    Begun,
    BytesByKind,
    ClassResult,
    Discovery,
    Evaluated,
    EvaluatedBefore,
    Event,
    Extended,
    Finished,
    Measures,
    Progress,
    Round,
    ScenarioInfo,
    Summary,
    Traffic,
    Trained,
)
from fcl_flower.results.files import json_value, read_as
from fcl_flower.results.measures import Accuracy

MEASURES = {
    "average_accuracy": measures.average_accuracy,
    "forgetting": measures.forgetting,
    "backward_transfer": measures.backward_transfer,
    "learning_accuracy": measures.learning_accuracy,
}


@dataclass(frozen=True, slots=True)
class Lateness:
    """The lateness of a client since its last update that was used.

    In which round it was last, how many times in a row (rounds in which it was not
    asked do not count), and at which simulated time it is ready for another, 0 without
    any.
    """

    round: int
    times: int
    busy_until: float


@dataclass(slots=True, eq=False)
class Accuracies:
    """The sum of all evaluations of one kind.

    Attributes:
        matrix: ``a`` of `measures`, shape (clients, tasks, tasks).
        evaluations: mean over clients of the row of ``a`` that each evaluation wrote,
            shape (tasks,).
    """

    matrix: Accuracy
    evaluations: list[Accuracy] = field(default_factory=list)

    def add(self, row: int, scores: Mapping[int, Evaluation], about: About) -> None:
        """Write every client's scores into row ``row`` of its matrix."""
        for client, found in scores.items():
            columns = about.own_tasks(client)[: len(found.accuracy)]
            self.matrix[client, row, columns] = found.accuracy
        self.evaluations.append(measures.mean_measured(self.matrix[:, row], axis=0))

    def grow(self, clients: int, tasks: int) -> None:
        """Make room for more clients and tasks, of which nothing is measured."""
        more = [
            (0, size - have)
            for size, have in zip(
                (clients, tasks, tasks), self.matrix.shape, strict=True
            )
        ]
        self.matrix = np.pad(self.matrix, more, constant_values=np.nan)


class Record:
    """The sum of all events of a run so far.

    Attributes:
        rounds: the finished ones, as ``rounds.jsonl`` has them.
        tests: the evaluations, as ``accuracy.csv`` has them.
        outcome: None before the end.
        tested: with the models that clients would use.
        tested_before: with what each client has trained itself, before its update was
            aggregated.
        failures: the last reason by client why an update or an evaluation was not used.
        clock: simulated time at the end of the last round; 0 without any.
        trained: client and task of every update that was used.
        model_bytes: what each client has to keep, by its last evaluation.
        inferred: what each client with heads by task has told last as
            `Evaluation.inferred`.
        class_counts: of each client's last evaluation, with its row in ``a``.
        balanced: likewise `Evaluation.balanced`, where clients tell it.
        unbalanced: a client has said that a test set of its is `Evaluation.unbalanced`.
        reported: the largest epsilon that each client has reported, by its metric.
        multiply_adds: of all updates that were used.
    """

    def __init__(self, scenario: ScenarioInfo, begun: Begun) -> None:
        """Begin without a round."""
        self.folder, self.scenario, self.begun = Path(), scenario, begun
        self.rounds: list[Round] = []
        self.tests: list[Evaluated] = []
        self.diagnostics: Diagnostics = {}
        self.progress: Progress | None = None
        self.outcome: Summary | None = None
        about = begun.about
        blank = np.full((about.clients, about.tasks, about.tasks), np.nan)
        self.tested, self.tested_before = Accuracies(blank), Accuracies(blank.copy())
        self.traffic = Traffic()
        self.failures: dict[int, str] = {}
        self.lateness: dict[int, Lateness] = {}
        self.clock = 0.0
        self.reported: dict[str, dict[int, float]] = {EPSILON: {}, LABEL_EPSILON: {}}
        self.multiply_adds = 0.0
        self.trained: set[tuple[int, int]] = set()
        self.late_replies: Counter[int] = Counter()
        self.model_bytes: dict[int, int] = {}
        self.inferred: dict[int, Sequence[float]] = {}
        self.class_counts: dict[int, tuple[int, measures.Counts]] = {}
        self.balanced: dict[int, tuple[int, Sequence[float]]] = {}
        self.unbalanced = False

    def add(self, event: Event) -> None:
        """Add what has happened."""
        match event:
            case Trained():
                self._add_round(event)
            case EvaluatedBefore():
                row = self._row(event.task)
                self.tested_before.add(row, event.scores, self.about)
            case Evaluated():
                self._add_test(event)
            case Finished():
                self.outcome = event.summary
            case Begun():
                self.begun = event
            case Extended():
                self.begun = event.begun
                for found in (self.tested, self.tested_before):
                    found.grow(self.about.clients, self.about.tasks)

    @property
    def about(self) -> About:
        """The description of the run."""
        return self.begun.about

    @property
    def summary(self) -> Summary:
        """Outcome of a finished run, or what has come out so far."""
        return self.outcome or summarize(self, so_far=True)

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return self.outcome is not None

    @property
    def accuracy(self) -> Accuracy:
        """Test accuracies ``a``, shape (clients, tasks, tasks); NaN: not measured."""
        return self.tested.matrix

    @property
    def latest(self) -> Accuracy:
        """Row of ``a`` after the last task, or the last so far: (clients, tasks)."""
        if self.finished or np.isnan(self.accuracy).all():
            return self.accuracy[:, -1]
        learned = measures.trim_unlearned(self.accuracy).shape[1]
        return self.accuracy[:, learned - 1]

    @property
    def average_accuracy(self) -> float | None:
        """Average accuracy over the tasks learned so far; None before any test."""
        if np.isnan(self.accuracy).all():
            return None
        return measures.average_accuracy(measures.trim_unlearned(self.accuracy))

    def evaluations(self) -> tuple[npt.NDArray[np.int64], Accuracy]:
        """Collect every evaluation, in place of a matrix where concepts are hidden.

        Rounds, ascending, and accuracies of shape (evaluations, clients, tasks), NaN
        where nothing was measured.
        """
        rounds = sorted({test.round for test in self.tests})
        shape = (len(rounds), self.about.clients, self.about.tasks)
        accuracy = np.full(shape, np.nan)
        for test in self.tests:
            place = rounds.index(test.round)
            for client, found in test.scores.items():
                columns = self.about.own_tasks(client)[: len(found.accuracy)]
                accuracy[place, client, columns] = found.accuracy
        return np.array(rounds, np.int64), accuracy

    def _add_round(self, event: Trained) -> None:
        self.rounds.append(event.line())
        self.traffic.add(event.traffic)
        self.trained.update((c, stage.task) for c, stage in event.stages.items())
        self.failures.update(event.failed)
        self.clock = event.timing.get("clock", 0.0)
        for client in event.stages:
            self.lateness.pop(client, None)
        for client, busy_until in event.late.items():
            before = self.lateness.get(client)
            times = 1 + (before.times if before else 0)
            self.lateness[client] = Lateness(event.round, times, busy_until)
        self.late_replies.update(event.late.keys())
        for client, metrics in event.replies.items():
            self.multiply_adds += metrics.get(MULTIPLY_ADDS, 0.0)
            for name, most in self.reported.items():
                # A client that has lost its state begins to count anew.
                if name in metrics:
                    most[client] = max(most.get(client, 0.0), metrics[name])
        for name, found in event.diagnostics.items():
            if not isinstance(found, float):
                self.diagnostics[name] = merged(self.diagnostics.get(name), found)

    def _add_test(self, event: Evaluated) -> None:
        row, scores = self._row(event.task), event.scores
        self.tested.add(row, scores, self.about)
        self.model_bytes.update((c, found.model_bytes) for c, found in scores.items())
        told = ((c, found.inferred) for c, found in scores.items() if found.inferred)
        self.inferred.update(told)
        self.balanced.update({c: (row, one.balanced) for c, one in scores.items()})
        self.unbalanced |= any(one.unbalanced for one in scores.values())
        self.tests.append(event)
        if self.begun.counts_classes:
            for client, found in scores.items():
                counts = np.array(found.by_class, np.int64)  # (tasks, 3, classes)
                self.class_counts[client] = row, counts.swapaxes(0, 1)

    def _row(self, task: int) -> int:
        """Choose the row of the matrices for an evaluation after a task.

        Where concepts are hidden there is no order of learning: each evaluation takes
        the place of the one before, in the last row.
        """
        return task if self.about.hidden is None else self.about.tasks - 1


# ---- the summary


def summarize(record: Record, *, so_far: bool = False) -> Summary:
    """Sum up a run: a pure function of its events; the same seed gives the same.

    The recorder adds what is not here: duration, memory, privacy, further remarks and
    the environment at the end. Of a run that goes on (``so_far``) only measures that
    ask for no end are known.
    """
    begun, traffic = record.begun, record.traffic
    sizes = record.model_bytes.values()
    used = {client for client, _ in record.trained}
    honest = None
    if begun.attackers and not so_far:
        clients = record.accuracy[: -begun.attackers]
        honest = _or_none(measures.average_accuracy(clients))
    found: dict[str, Any] = dict(begun.about)
    found |= _measures(record, record.tested, so_far)
    found |= {
        "clock": record.clock or None,
        "honest_accuracy": honest,
        "untrained_client_tasks": None if so_far else _untrained(record),
        "late_replies": dict(sorted(record.late_replies.items())),
        "left_out": {
            client: why
            for client, why in sorted(record.failures.items())
            if client not in used
        },
        "before_aggregation": Measures(
            **_measures(record, record.tested_before, so_far)
        ),
        "bytes_up": traffic.up.total(),
        "bytes_down": traffic.down.total(),
        "nominal_bytes_up": traffic.nominal_up,
        "nominal_bytes_down": traffic.nominal_down,
        "bytes_by_kind": BytesByKind(
            up=dict(sorted(traffic.up.items())),
            down=dict(sorted(traffic.down.items())),
        ),
        "model_bytes": round(sum(sizes) / len(sizes)) if sizes else 0,
        "concepts": discovery(
            [
                frame
                for found in record.diagnostics.values()
                if isinstance(found, Points)
                for frame in found.frames
            ]
        ),
        "remarks": begun.remarks,
        "seconds": sum(one.seconds for one in record.rounds),
    }
    # A run that goes on with more tasks, or a client that left, has figures of fewer.
    known = [
        sum(told) / len(told)
        for client, told in record.inferred.items()
        if len(told) == len(begun.about.own_tasks(client))
    ]
    if known:
        found["inferred_task_accuracy"] = sum(known) / len(known)
    if begun.counts_classes and not so_far:
        found |= _by_class(record)
    elif record.unbalanced and not so_far:
        found["balanced_accuracy"] = _balanced_accuracy(record)
    if record.reported[LABEL_EPSILON]:
        found["label_epsilon"] = dict(sorted(record.reported[LABEL_EPSILON].items()))
    return Summary(**found)


def _measures(record: Record, tested: Accuracies, so_far: bool) -> dict[str, Any]:
    """Compute the measures that the scenario allows; None where not known.

    Hidden concepts have no moment at which they were learned: only the accuracy at the
    end and what was lost since the best evaluation.
    """
    accuracy = tested.matrix
    by_samples: Array = np.full(record.about.tasks, np.nan)
    if record.scenario.datasets:  # else only the clients know how many samples
        counts = [[task.test for task in tasks] for tasks in record.scenario.clients]
        by_samples = measures.sample_accuracy(accuracy, np.array(counts))
    # Elsewhere a sample may be tested by several clients, or a head knows its task.
    average = math.nan
    if record.about.incremental and not so_far:
        average = measures.average_incremental_accuracy(by_samples)
    known = {
        **dict.fromkeys(MEASURES),
        "average_incremental_accuracy": _or_none(average),
        "sample_accuracy": _nested(by_samples),
        "accuracy_matrix": _nested(measures.mean_measured(accuracy, axis=0)),
        "client_accuracy": _nested(accuracy),
    }
    if np.isnan(accuracy).all():
        return known
    hidden = record.about.hidden is not None
    names: Collection[str] = MEASURES
    if so_far:
        accuracy = measures.trim_unlearned(accuracy)
        names = ("average_accuracy", "learning_accuracy")
    if hidden:
        names = ("average_accuracy",)
    known |= {name: _or_none(MEASURES[name](accuracy)) for name in names}
    if hidden and not so_far:
        lost = measures.forgetting_of_concepts(np.array(tested.evaluations))
        known["forgetting"] = _or_none(lost)
    return known


def _untrained(record: Record) -> int | None:
    """Count the tasks of clients on which no update that was used was trained.

    They are tested all the same. None where concepts are hidden, which clients meet by
    chance.
    """
    about = record.about
    if about.hidden is not None:
        return None
    every = about.clients * about.tasks - sum(map(len, about.sat_out.values()))
    if record.begun.joint:  # every round trains on all tasks
        clients = {client for client, _ in record.trained}
        return every - len(clients) * about.tasks
    return every - len(record.trained)


def discovery(frames: Sequence[Clustering]) -> Discovery:
    """Sum up how clusterings go together with the hidden concepts; empty without."""
    judged = [frame for frame in frames if frame.ari is not None]
    if not judged:
        return Discovery()
    indices = [frame.ari or 0.0 for frame in judged]
    updates = [len(frame.clients) for frame in judged]
    returned = sum(len(f.clients) * (f.effectiveness or 0.0) for f in judged)
    reached = {model for frame in judged for model in frame.reached}
    return Discovery(
        ari=sum(indices) / len(indices),
        ari_least=min(indices),
        perfect_rounds=sum(value == 1 for value in indices) / len(indices),
        effectiveness=returned / sum(updates),
        models=len(reached - {NONE}),
    )


def _by_class(record: Record) -> dict[str, Any]:
    """Compute what is known of classes by the evaluation after the last task.

    ``balanced_accuracy`` is the mean of `measures.recall` over the classes of a task,
    ``macro_f1`` that of `measures.f1`; both the mean over tasks, and over clients.
    """
    last = record.about.tasks - 1
    known = {
        c: counts for c, (row, counts) in record.class_counts.items() if row == last
    }
    found: dict[str, Any] = {"balanced_accuracy": None, "macro_f1": None}
    for key, measure in (
        ("balanced_accuracy", measures.recall),
        ("macro_f1", measures.f1),
    ):
        if known:
            by_class = np.array([measure(one) for one in known.values()])
            by_task = measures.mean_measured(by_class, axis=2)
            found[key] = _or_none(measures.mean_over_clients(by_task))
    total: dict[str, measures.Counts] = {}
    for client, counts in sorted(known.items()):
        for task, label in np.argwhere(counts.any(0)).tolist():
            name = _class_name(record, client, task, label)
            total[name] = total.get(name, 0) + counts[:, task, label]
    found["per_class"] = [
        ClassResult(
            name=name,
            tested=int(counts[1]),
            recall=float(measures.recall(counts)),
            precision=_or_none(measures.precision(counts)),
            f1=float(measures.f1(counts)),
        )
        for name, counts in total.items()
        if counts[1]
    ]
    return found


def _balanced_accuracy(record: Record) -> float | None:
    """Average what clients have told after the last task: over tasks, then clients."""
    last = record.about.tasks - 1
    told = [values for row, values in record.balanced.values() if row == last]
    means = [sum(values) / len(values) for values in told if values]
    return sum(means) / len(means) if means else None


def _class_name(record: Record, client: int, task: int, label: int) -> str:
    """Name what a logit stands for; by its number where only clients know."""
    if label < len(record.begun.class_names):
        return record.begun.class_names[label]
    known = record.scenario.clients[client][task]
    if label >= len(known.class_names):
        return f"task {task}, class {label}"
    source = f"{known.dataset}/" if len(record.scenario.datasets) > 1 else ""
    return source + known.class_names[label]


def _nested(values: Array) -> list[Any]:
    """List numbers as JSON knows them: None for NaN."""
    found = values.astype(object)
    found[np.isnan(values)] = None
    nested: list[Any] = found.tolist()
    return nested


def _or_none(value: float | Array) -> float | None:
    return None if np.isnan(value) else float(value)


# ---- folders


def is_run(folder: Path) -> bool:
    """Tell whether a folder holds a run, finished or not."""
    return journal.is_journal(folder / journal.FILE)


def runs_in(folder: Path) -> list[Path]:
    """List the folders of runs, finished or not: this one, or those in a study's."""
    return [folder] if is_run(folder) else sorted(filter(is_run, folder.glob("*")))


def read(folder: Path) -> Record:
    """Read a run that has finished, or what there is of one that is under way.

    Nothing here waits for who writes the files: the last line of one counts when it is
    whole. A file that is missing, of another format, or not what it should be is a
    `ConfigError`.
    """
    if not is_run(folder):
        raise config_error("folder", str(folder), "that of a run")
    path = folder / journal.FILE
    try:
        events = journal.replay(path)
        begun = next(events)
        assert isinstance(begun, Begun)
        scenario = read_as(ScenarioInfo, folder / "scenario.json", json_value)
        record = Record(scenario, begun)
        record.folder = folder
        for event in events:
            record.add(event)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}: got {error!r:.200}, expected the events of a run"
        ) from error
    if record.outcome is None:
        record.progress = _progress(folder / "progress.json")
    return record


def _progress(path: Path) -> Progress | None:
    if not path.exists():
        return None
    found = read_as(Progress, path, json_value)
    return found.model_copy(update={"at": path.stat().st_mtime})
