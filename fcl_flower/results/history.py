"""The rounds and evaluations of a run so far: all that its results follow from."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fcl_flower.core.types import Array, Evaluation, TaskStage
from fcl_flower.results import metrics
from fcl_flower.results.diagnostics.base import Scalars, TaskId
from fcl_flower.results.traffic import Traffic


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One finished round; an asynchronous update counts as a round.

    Attributes:
        round: counted from 1.
        task: that the round belongs to, counted from 0.
        client_metrics: scalars by client whose update was aggregated.
        failed: reason by client whose update, or whose evaluation, was not used.
        traffic: of the round, including an evaluation after it.
        diagnostics: finite scalars of the server side.
        stages: where these clients stood, each in its own count of rounds.
        timing: ``clock`` (simulated time), and ``staleness`` and ``weight`` of an
            asynchronous update.
        seconds: that it took.
        late: clients whose reply was not waited for, with the simulated time at which
            they are ready for another round, 0 without any.
        state_lost: clients that told the loss of their private state, before any
            update of theirs that was aggregated.
    """

    round: int
    task: int
    client_metrics: Mapping[int, Scalars]
    failed: Mapping[int, str]
    traffic: Traffic
    diagnostics: Scalars
    stages: Mapping[int, TaskStage]
    timing: Scalars
    seconds: float
    late: Mapping[int, float] = field(default_factory=dict)
    state_lost: Collection[int] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return what the event log keeps of it, beside its number."""
        return {
            "task": self.task,
            "replies": {c: dict(scalars) for c, scalars in self.client_metrics.items()},
            "failed": dict(self.failed),
            "traffic": self.traffic.to_dict(),
            "diagnostics": dict(self.diagnostics),
            "stages": {client: asdict(stage) for client, stage in self.stages.items()},
            "timing": dict(self.timing),
            "seconds": self.seconds,
            "late": dict(self.late),
            "state_lost": sorted(self.state_lost),
        }

    @classmethod
    def from_dict(cls, server_round: int, kept: Mapping[str, Any]) -> "RoundRecord":
        """Return the round that the event log has kept."""
        return cls(
            server_round,
            kept["task"],
            kept["replies"],
            kept["failed"],
            Traffic.from_dict(kept["traffic"]),
            kept["diagnostics"],
            {client: TaskStage(**stage) for client, stage in kept["stages"].items()},
            kept["timing"],
            kept["seconds"],
            kept.get("late", {}),  # which earlier versions did not know, nor the next
            kept.get("state_lost", ()),
        )

    def metrics_by_task(self) -> dict[TaskId, Scalars]:
        """Return ``client_metrics`` by client and the task that it trained on."""
        return {
            (client, self._task_of(client)): scalars
            for client, scalars in self.client_metrics.items()
        }

    def line(self) -> dict[str, Any]:
        """Return the line of ``rounds.jsonl``."""
        return {
            "round": self.round,
            "task": self.task,
            "clients": sorted(self.client_metrics),
            "failed": sorted(self.failed),
            "reasons": {str(client): why for client, why in self.failed.items()},
            "loss": self._mean("loss"),
            "valid_loss": self._mean("valid_loss"),
            "valid_accuracy": self._mean("valid_accuracy"),
            "bytes_up": dict(sorted(self.traffic.up.items())),
            "bytes_down": dict(sorted(self.traffic.down.items())),
            "nominal_bytes_up": self.traffic.nominal_up,
            "nominal_bytes_down": self.traffic.nominal_down,
            "seconds": self.seconds,
            **self.timing,
            **({"diagnostics": dict(self.diagnostics)} if self.diagnostics else {}),
        }

    def _task_of(self, client: int) -> int:
        stage = self.stages.get(client)
        return self.task if stage is None else stage.task

    def _mean(self, name: str) -> float | None:
        """Return the mean over the clients that have a scalar; None if none has it."""
        scalars = self.client_metrics.values()
        values = [one[name] for one in scalars if name in one]
        return sum(values) / len(values) if values else None


@dataclass(frozen=True, slots=True)
class Lateness:
    """That a client was late since its last update that was used.

    Attributes:
        round: in which it was last.
        times: in a row; rounds in which it was not asked do not count.
        busy_until: simulated time at which it is ready for another, 0 without any.
    """

    round: int
    times: int
    busy_until: float


@dataclass(slots=True, eq=False)
class Accuracies:
    """What evaluations of one kind add up to.

    Attributes:
        matrix: ``a`` of `metrics`, shape (clients, tasks, tasks); NaN where not
            measured.
        evaluations: mean over clients of the row of ``a`` that each evaluation wrote,
            shape (tasks,).
    """

    matrix: Array
    evaluations: list[Array] = field(default_factory=list)

    def add(self, row: int, scores: Mapping[int, Evaluation]) -> None:
        """Add every client's scores in row ``row`` of its matrix of accuracies."""
        for client, found in scores.items():
            self.matrix[client, row, : len(found.accuracy)] = found.accuracy
        self.evaluations.append(metrics.mean_measured(self.matrix[:, row], axis=0))


@dataclass(slots=True, eq=False)
class RunHistory:
    """What all rounds and evaluations add up to.

    Attributes:
        accuracy: with the models that clients would use.
        before_aggregation: with what each client has trained itself, before its update
            was aggregated.
        trained: client and task of every update that was used.
        failures: the last reason by client why an update or an evaluation was not.
        traffic: of the whole run.
        model_bytes: what each client must keep from its finished tasks, to predict and
            to go on learning.
        clock: simulated time at the end of the last round; 0 without any.
        lateness: of the clients whose last update was late.
        late_replies: how many of each client.
    """

    accuracy: Accuracies
    before_aggregation: Accuracies
    trained: set[TaskId] = field(default_factory=set)
    failures: dict[int, str] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    model_bytes: dict[int, int] = field(default_factory=dict)
    clock: float = 0.0
    lateness: dict[int, Lateness] = field(default_factory=dict)
    late_replies: Counter[int] = field(default_factory=Counter)

    @classmethod
    def empty(cls, clients: int, tasks: int) -> "RunHistory":
        """Return that of a run before its first round."""
        blank = np.full((clients, tasks, tasks), np.nan)
        return cls(Accuracies(blank), Accuracies(blank.copy()))

    @property
    def average_accuracy(self) -> float | None:
        """Return that over the tasks learned so far; None before any evaluation."""
        if np.isnan(self.accuracy.matrix).all():
            return None
        return metrics.average_accuracy(metrics.so_far(self.accuracy.matrix))

    @property
    def left_out(self) -> dict[int, str]:
        """Return why no update of a client was used, by client, where there was one."""
        used = {client for client, _ in self.trained}
        return {c: why for c, why in sorted(self.failures.items()) if c not in used}

    def add_round(self, record: RoundRecord) -> None:
        """Add a finished round."""
        self.traffic.add(record.traffic)
        self.trained.update((c, stage.task) for c, stage in record.stages.items())
        self.failures.update(record.failed)
        self.clock = record.timing.get("clock", 0.0)
        for client in record.stages:
            self.lateness.pop(client, None)
        for client, busy_until in record.late.items():
            before = self.lateness.get(client)
            times = 1 + (before.times if before else 0)
            self.lateness[client] = Lateness(record.round, times, busy_until)
        self.late_replies.update(record.late.keys())

    def add_evaluation(self, row: int, scores: Mapping[int, Evaluation]) -> None:
        """Add every client's scores, see `Accuracies.add`, and what they took."""
        self.accuracy.add(row, scores)
        self.model_bytes.update((c, found.model_bytes) for c, found in scores.items())
