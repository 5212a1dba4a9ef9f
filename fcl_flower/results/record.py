"""One run as the sum of its events, the same while it goes on and when it is read."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

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
    ClassResult,
    Discovery,
    Evaluated,
    EvaluatedBefore,
    Event,
    Extended,
    Finished,
    Measures,
    Progress,
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


AnyEvaluated: TypeAlias = Evaluated | EvaluatedBefore


@dataclass(frozen=True, slots=True)
class Lateness:
    """The lateness of a client since its last update that was used.

    Attributes:
        round: round in which the client was late most recently.
        times: times in a row, without rounds in which the client was not asked.
        busy_until: simulated time at which the client is ready for another round; 0
            without simulated time.
    """

    round: int
    times: int
    busy_until: float


@dataclass(slots=True, eq=False)
class Record:
    """The sum of all events of a run so far.

    Attributes:
        rounds: finished rounds; of their diagnostics only the numbers.
        tests: evaluations of the models that clients would use.
        tests_before: evaluations, before the aggregation, of the models that clients
            trained.
        accuracy: test accuracies ``a`` of `measures`, NaN where not measured.
        outcome: summary of a finished run.
        failures: last reason for each client whose update or evaluation was not used.
        clock: simulated time at the end of the last round; 0 without simulated time.
        reported: largest epsilon that each client has reported, by its metric.
        multiply_adds: multiply-adds behind all updates that were used.
        trained: client and task of every update that was used.
    """

    scenario: ScenarioInfo
    begun: Begun
    folder: Path = Path()
    rounds: list[Trained] = field(default_factory=list)
    tests: list[Evaluated] = field(default_factory=list)
    tests_before: list[EvaluatedBefore] = field(default_factory=list)
    accuracy: Accuracy = field(init=False)
    diagnostics: Diagnostics = field(default_factory=dict)
    progress: Progress | None = None
    outcome: Summary | None = None
    traffic: Traffic = field(default_factory=Traffic)
    failures: dict[int, str] = field(default_factory=dict)
    lateness: dict[int, Lateness] = field(default_factory=dict)
    late_replies: Counter[int] = field(default_factory=Counter)
    clock: float = 0.0
    reported: dict[str, dict[int, float]] = field(
        default_factory=lambda: {EPSILON: {}, LABEL_EPSILON: {}}
    )
    multiply_adds: float = 0.0
    trained: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Begin without a measured accuracy."""
        self.accuracy = self.by_task(self.tests)

    def add(self, event: Event) -> None:
        """Add an event."""
        match event:
            case Trained():
                self._add_round(event)
            case EvaluatedBefore():
                self.tests_before.append(event)
            case Evaluated():
                self.tests.append(event)
                self._fill(self.accuracy[:, self.row(event.task)], event)
            case Finished():
                self.outcome = event.summary
            case Begun():
                self.begun = event
            case Extended():
                self.begun = event.begun
                self.accuracy = self.by_task(self.tests)

    @property
    def about(self) -> About:
        """The description of the run."""
        return self.begun.about

    @property
    def summary(self) -> Summary:
        """The summary of a finished run, or of the run so far."""
        return self.outcome or summarize(self, so_far=True)

    @property
    def finished(self) -> bool:
        """Whether the run has finished."""
        return self.outcome is not None

    @property
    def unbalanced(self) -> bool:
        """Whether a client has reported an unbalanced test set."""
        return any(
            evaluation.unbalanced
            for test in self.tests
            for evaluation in test.scores.values()
        )

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

    def by_task(self, tests: Sequence[AnyEvaluated], key: str = "accuracy") -> Accuracy:
        """Collect what was measured after each task, shape (clients, tasks, tasks)."""
        values = self._unknown(self.about.tasks)
        for test in tests:
            self._fill(values[self.row(test.task)], test, key)
        return values.swapaxes(0, 1)

    def by_round(self) -> tuple[npt.NDArray[np.int64], Accuracy]:
        """Collect every evaluation, which hidden concepts have in place of a matrix.

        Returns:
            the rounds, ascending, and accuracies of shape (evaluations, clients,
            tasks), NaN where nothing was measured.
        """
        rounds = sorted({test.round for test in self.tests})
        values = self._unknown(len(rounds))
        for test in self.tests:
            self._fill(values[rounds.index(test.round)], test)
        return np.array(rounds, np.int64), values

    def after_each(self, tests: Sequence[AnyEvaluated]) -> Accuracy:
        """Average each task over clients after every evaluation, by their last values.

        The shape is (evaluations, tasks).
        """
        means, (last,) = [], self._unknown(1)
        for test in tests:
            self._fill(last, test)
            means.append(measures.mean_measured(last, axis=0))
        return np.array(means)

    def _unknown(self, rows: int) -> Accuracy:
        return np.full((rows, self.about.clients, self.about.tasks), np.nan)

    def _fill(self, row: Accuracy, test: AnyEvaluated, key: str = "accuracy") -> None:
        """Write values into an array (clients, tasks), each client's at its tasks."""
        for client, evaluation in test.scores.items():
            values = getattr(evaluation, key)
            row[client, self.about.own_tasks(client)[: len(values)]] = values

    def last_evaluations(self, *, at_end: bool = False) -> dict[int, Evaluation]:
        """Find each client's last evaluation; ``at_end``: only after the last task."""
        last = {client: test for test in self.tests for client in test.scores}
        return {
            client: test.scores[client]
            for client, test in last.items()
            if not at_end or self.row(test.task) == self.about.tasks - 1
        }

    def _add_round(self, event: Trained) -> None:
        # Reports are merged below, and a long run would hold each of them twice.
        numbers = {k: v for k, v in event.diagnostics.items() if isinstance(v, float)}
        self.rounds.append(event.model_copy(update={"diagnostics": numbers}))
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
            for name, largest in self.reported.items():
                # A client that has lost its state counts from 0 again.
                if name in metrics:
                    largest[client] = max(largest.get(client, 0.0), metrics[name])
        for name, report in event.diagnostics.items():
            if not isinstance(report, float):
                self.diagnostics[name] = merged(self.diagnostics.get(name), report)

    def row(self, task: int) -> int:
        """Choose the row of the matrices for an evaluation after a task.

        Hidden concepts have no order of learning. There each evaluation replaces the
        one before, in the last row.
        """
        return task if self.about.hidden is None else self.about.tasks - 1


# ---- the summary


def summarize(record: Record, *, so_far: bool = False) -> Summary:
    """Sum up a run: a pure function of its events; the same seed gives the same.

    The recorder adds the rest: duration, memory, privacy, further remarks and the
    environment at the end. With ``so_far`` the run goes on, and only measures that need
    no end are known.
    """
    begun, traffic = record.begun, record.traffic
    content: dict[str, Any] = dict(begun.about)
    content |= _measures(record, record.tests, so_far)
    content["honest_accuracy"] = None
    if begun.attackers and not so_far:
        honest = record.accuracy[: -begun.attackers]
        content["honest_accuracy"] = _or_none(measures.average_accuracy(honest))
    sizes = [last.model_bytes for last in record.last_evaluations().values()]
    used = {client for client, _ in record.trained}
    clusterings = [
        frame
        for report in record.diagnostics.values()
        if isinstance(report, Points)
        for frame in report.frames
    ]
    before = _measures(record, record.tests_before, so_far)
    content |= {
        "clock": record.clock or None,
        "untrained_client_tasks": None if so_far else _untrained(record),
        "late_replies": dict(sorted(record.late_replies.items())),
        "left_out": {
            client: reason
            for client, reason in sorted(record.failures.items())
            if client not in used
        },
        "before_aggregation": Measures(**before),
        "bytes_up": traffic.up.total(),
        "bytes_down": traffic.down.total(),
        "nominal_bytes_up": traffic.nominal_up,
        "nominal_bytes_down": traffic.nominal_down,
        "bytes_by_kind": traffic.by_kind(),
        "model_bytes": round(sum(sizes) / len(sizes)) if sizes else 0,
        "concepts": discovery(clusterings),
        "remarks": begun.remarks,
        "seconds": sum(line.seconds for line in record.rounds),
    }
    if (inferred := _inferred(record)) is not None:
        content["inferred_task_accuracy"] = inferred
    if begun.counts_classes and not so_far:
        content |= _by_class(record)
    elif record.unbalanced and not so_far:
        final = record.last_evaluations(at_end=True).values()
        content["balanced_accuracy"] = _mean_of_means(each.balanced for each in final)
    losses = record.by_task(record.tests, "losses")
    if not np.isnan(losses).all():
        content["token_loss"] = _or_none(measures.mean_over_clients(losses[:, -1]))
        content["token_loss_matrix"] = _nested(measures.mean_measured(losses, axis=0))
    if of_labels := record.reported[LABEL_EPSILON]:
        content["label_epsilon"] = dict(sorted(of_labels.items()))
    return Summary(**content)


def _measures(
    record: Record, tests: Sequence[AnyEvaluated], so_far: bool
) -> dict[str, Any]:
    """Compute the measures that the scenario allows; the others are None.

    Hidden concepts have no moment at which they were learned. Their measures are the
    accuracy at the end and the loss since the best evaluation.
    """
    accuracy = record.by_task(tests)
    by_samples: Array = np.full(record.about.tasks, np.nan)
    if record.scenario.datasets:  # otherwise only the clients know their sample counts
        counts = [[task.test for task in tasks] for tasks in record.scenario.clients]
        by_samples = measures.sample_accuracy(accuracy, np.array(counts))
    # In other scenarios several clients test the same sample, or a head knows its task.
    average = math.nan
    if record.about.incremental and not so_far:
        average = measures.average_incremental_accuracy(by_samples)
    values = {
        **dict.fromkeys(MEASURES),
        "average_incremental_accuracy": _or_none(average),
        "sample_accuracy": _nested(by_samples),
        "accuracy_matrix": _nested(measures.mean_measured(accuracy, axis=0)),
        "client_accuracy": _nested(accuracy),
    }
    if np.isnan(accuracy).all():
        return values
    hidden, names = record.about.hidden is not None, [*MEASURES]
    if so_far:
        accuracy = measures.trim_unlearned(accuracy)
        names = ["average_accuracy", "learning_accuracy"]
    if hidden:
        names = ["average_accuracy"]
    values |= {name: _or_none(MEASURES[name](accuracy)) for name in names}
    if hidden and not so_far:
        lost = measures.forgetting_of_concepts(record.after_each(tests))
        values["forgetting"] = _or_none(lost)
    return values


def _untrained(record: Record) -> int | None:
    """Count the tested tasks of clients on which no used update was trained.

    None with hidden concepts, which clients meet by chance.
    """
    about = record.about
    if about.hidden is not None:
        return None
    every = about.clients * about.tasks - sum(map(len, about.sat_out.values()))
    if record.begun.joint:  # every round trains on all tasks
        clients = {client for client, _ in record.trained}
        return every - len(clients) * about.tasks
    return every - len(record.trained)


def _inferred(record: Record) -> float | None:
    """Average each client's accuracy without a given task, as reported at its end.

    A client that left, or that gets more tasks, has reported on fewer tasks.
    """
    reports = {
        client: evaluation.inferred
        for test in record.tests
        for client, evaluation in test.scores.items()
        if evaluation.inferred
    }
    return _mean_of_means(
        report
        for client, report in reports.items()
        if len(report) == len(record.about.own_tasks(client))
    )


def _mean_of_means(reports: Iterable[Sequence[float]]) -> float | None:
    """Average over the tasks of each client, and then over clients."""
    means = [sum(report) / len(report) for report in reports if report]
    return sum(means) / len(means) if means else None


def discovery(frames: Sequence[Clustering]) -> Discovery:
    """Sum up how clusterings agree with the hidden concepts; empty without concepts."""
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
    """Compute the measures of classes from the evaluations after the last task.

    ``balanced_accuracy`` averages `measures.recall`, and ``macro_f1`` `measures.f1`,
    over the classes of a task, then over tasks and over clients.
    """
    final = {  # each of shape (3, tasks, classes)
        client: np.array(evaluation.by_class, np.int64).swapaxes(0, 1)
        for client, evaluation in record.last_evaluations(at_end=True).items()
    }

    def mean(measure: Callable[[measures.Counts], Accuracy]) -> float | None:
        by_class = np.array([measure(counts) for counts in final.values()])
        by_task = measures.mean_measured(by_class, axis=2)
        return _or_none(measures.mean_over_clients(by_task))

    total: dict[str, measures.Counts] = {}
    for client, counts in sorted(final.items()):
        for task, label in np.argwhere(counts.any(0)).tolist():
            name = _class_name(record, client, task, label)
            total[name] = total.get(name, 0) + counts[:, task, label]
    per_class = [
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
    return {
        "balanced_accuracy": mean(measures.recall) if final else None,
        "macro_f1": mean(measures.f1) if final else None,
        "per_class": per_class,
    }


def _class_name(record: Record, client: int, task: int, label: int) -> str:
    """Name the class of a logit; by its number where only clients know the name."""
    if label < len(record.begun.class_names):
        return record.begun.class_names[label]
    info = record.scenario.clients[client][task]
    if label >= len(info.class_names):
        return f"task {task}, class {label}"
    source = f"{info.dataset}/" if len(record.scenario.datasets) > 1 else ""
    return source + info.class_names[label]


def _nested(values: Array) -> list[Any]:
    """List numbers as JSON knows them: None for NaN."""
    entries = values.astype(object)
    entries[np.isnan(values)] = None
    nested: list[Any] = entries.tolist()
    return nested


def _or_none(value: float | Array) -> float | None:
    return None if np.isnan(value) else float(value)


# ---- folders


def is_run(folder: Path) -> bool:
    """Tell whether a folder holds a run, finished or not."""
    return journal.is_journal(folder / journal.FILE)


def runs_in(folder: Path) -> list[Path]:
    """List the folders of runs, finished or not: this one, or those of a study."""
    return [folder] if is_run(folder) else sorted(filter(is_run, folder.glob("*")))


def read(folder: Path) -> Record:
    """Read a finished run, or the beginning of a run under way.

    Another process may write the files meanwhile: a last line counts once it is whole.

    Raises:
        ConfigError: a file is missing, damaged, or of another format.
    """
    if not is_run(folder):
        raise config_error("folder", str(folder), "that of a run")
    path = folder / journal.FILE
    try:
        events = journal.replay(path)
        begun = next(events)
        assert isinstance(begun, Begun)
        scenario = read_as(ScenarioInfo, folder / "scenario.json", json_value)
        record = Record(scenario, begun, folder)
        for event in events:
            record.add(event)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}: got {error!r:.200}, expected the events of a run"
        ) from error
    progress = folder / "progress.json"
    if record.outcome is None and progress.exists():
        content = read_as(Progress, progress, json_value)
        at = progress.stat().st_mtime
        record.progress = content.model_copy(update={"at": at})
    return record
