"""What a run leaves behind: a folder of files that a reader can trust.

``config.toml`` (runs it again), ``scenario.json`` (who had what), ``rounds.jsonl``,
``accuracy.csv``, the files of diagnostics, ``summary.json``, ``journal.jsonl`` (what
the others are made of, so that an interrupted run can be resumed) and, while it runs,
``progress.json``.
"""

import csv
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.types import Array, Evaluation, TaskStage
from fcl_flower.data.scenarios.registry import Scenario
from fcl_flower.results import metrics
from fcl_flower.results.diagnostics.base import Diagnostics
from fcl_flower.results.event_log import EventLog
from fcl_flower.results.summary import measures
from fcl_flower.results.traffic import Traffic

TRAINING = (
    *("training.epochs", "training.batch_size", "training.learning_rate"),
    *("training.lr_patience", "training.early_stopping_patience"),
    *("federation.client_fraction", "model.head"),
)
COLUMNS = ("round", "task_learned", "client", "task", "task_name", "accuracy")


class Recorder:
    """Writes a run's files as it goes; the server is its only user.

    Attributes:
        accuracy: by client, task learned last and task; NaN where not measured.
        clock: the planted time at the end of the last round, 0 without any.
    """

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        scenario: Scenario,
        diagnostics: Sequence[Diagnostics],
        remarks: Mapping[str, str] = {},
        counterpart: str | None = None,
    ) -> None:
        """Begin a record.

        Args:
            folder: may exist, but must be writable.
            config: of the run.
            scenario: who learns what.
            diagnostics: collectors of scalars (`build_diagnostics`).
            remarks: what else a reader should know, by topic; for the summary.
            counterpart: title of the same run without communication; None where
                there is none.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._config, self._scenario = folder, config, scenario
        self._diagnostics = diagnostics
        self._remarks = dict(remarks)
        self._counterpart = counterpart
        clients, tasks = config.scenario.clients, config.scenario.tasks
        hidden = scenario.stream is not None
        rounds = config.federation.rounds_per_task
        self._total = rounds if hidden else rounds * tasks
        if config.asynchronous.enabled:  # every update counts as a round
            self._total *= clients
        self._tasks = 1 if hidden else tasks
        self.accuracy: Array = np.full((clients, tasks, tasks), np.nan)
        self._evaluations: list[Array] = []
        self._up: Counter[str] = Counter()
        self._down: Counter[str] = Counter()
        self._paper = Counter({"up": 0, "down": 0})
        self._model_bytes: dict[int, int] = {}
        self.clock = 0.0
        self._started = self._round_started = time.monotonic()
        (folder / "config.toml").write_text(config.replace(resume=False).to_toml())
        scenario.save(folder / "scenario.json")
        (folder / "rounds.jsonl").write_text("")
        self._event_log = EventLog(folder / "journal.jsonl")
        if not config.run.resume:
            self._event_log.clear()
        with (folder / "accuracy.csv").open("w", newline="") as file:
            csv.writer(file).writerow(COLUMNS)
        self.progress(0, 0, 0, "starting")

    def progress(
        self, server_round: int, done: int, expected: int, state: str = "training"
    ) -> None:
        """Say where the run stands, for whoever watches ``progress.json``."""
        task = max(0, server_round - 1) * self._tasks // self._total
        _replace(
            self._folder / "progress.json",
            {
                "state": state,
                "round": server_round,
                "rounds": self._total,
                "task": task,
                "tasks": self._tasks,
                "clients_done": done,
                "clients": expected,
                "accuracy": None
                if np.isnan(self.accuracy).all()
                else metrics.average_accuracy(metrics.so_far(self.accuracy)),
                "bytes_up": self._up.total(),
                "bytes_down": self._down.total(),
                "seconds": time.monotonic() - self._started,
            },
        )

    def check_metrics(self, scalars: Mapping[str, float]) -> None:
        """Refuse metrics of a client's update that cannot be recorded.

        Raises:
            WireError: some diagnostics cannot take them.
        """
        for diagnostics in self._diagnostics:
            diagnostics.check(scalars)

    def record_evaluation(
        self, server_round: int, task: int, scores: Mapping[int, Evaluation]
    ) -> None:
        """Add every client's scores after learning ``task``.

        Where concepts are hidden there is no order of learning: each evaluation takes
        the place of the one before, in the last row, and ``accuracy.csv`` has all.
        """
        told = {client: asdict(found) for client, found in scores.items()}
        self._event_log.add("evaluated", server_round, {"task": task, "scores": told})
        self._add_evaluation(server_round, task, scores)

    def _add_evaluation(
        self, server_round: int, task: int, scores: Mapping[int, Evaluation]
    ) -> None:
        row = task if self._scenario.stream is None else self._config.scenario.tasks - 1
        with (self._folder / "accuracy.csv").open("a", newline="") as file:
            lines = csv.writer(file)
            for client, found in scores.items():
                self._model_bytes[client] = found.model_bytes
                for i, value in enumerate(found.accuracy):
                    self.accuracy[client, row, i] = value
                    name = self._scenario.clients[client][i].name
                    lines.writerow([server_round, task, client, i, name, value])
        self._evaluations.append(metrics.mean_measured(self.accuracy[:, row], axis=0))

    def record_round(
        self,
        server_round: int,
        task: int,
        replies: Mapping[int, Mapping[str, float]],
        failed: Mapping[int, str],
        traffic: Traffic,
        diagnostics: Mapping[str, float] = {},
        stages: Mapping[int, TaskStage] = {},
        timing: Mapping[str, float] = {},
    ) -> None:
        """Add a finished round.

        Args:
            server_round: counted from 1.
            task: that the round belongs to.
            replies: scalars by client whose update was aggregated.
            failed: reason by client whose update, or whose evaluation, was not.
            traffic: of the round, an evaluation after it included.
            diagnostics: finite scalars that the server half says about the round.
            stages: where these clients stood, each in its own count.
            timing: ``clock`` (planted time), ``staleness`` and ``weight`` (of an
                asynchronous update).
        """
        now = time.monotonic()
        told: dict[str, Any] = {
            "task": task,
            "replies": {client: dict(scalars) for client, scalars in replies.items()},
            "failed": dict(failed),
            "traffic": traffic.to_dict(),
            "diagnostics": dict(diagnostics),
            "stages": {client: asdict(stage) for client, stage in stages.items()},
            "timing": dict(timing),
            "seconds": now - self._round_started,
        }
        self._round_started = now
        self._event_log.add("trained", server_round, told)
        self._add_round(server_round, **told)

    def _add_round(
        self,
        server_round: int,
        task: int,
        replies: Mapping[int, Mapping[str, float]],
        failed: Mapping[int, str],
        traffic: Mapping[str, Any],
        diagnostics: Mapping[str, float],
        stages: Mapping[int, Mapping[str, int]],
        timing: Mapping[str, float],
        seconds: float,
    ) -> None:
        self._up.update(traffic["up"])
        self._down.update(traffic["down"])
        self._paper.update(up=traffic["nominal_up"], down=traffic["nominal_down"])
        at = {client: stage["task"] for client, stage in stages.items()}
        by_task = {(c, at.get(c, task)): scalars for c, scalars in replies.items()}
        for one in self._diagnostics:
            one.add_round(server_round, by_task, diagnostics)
        self.clock = timing.get("clock", 0.0)
        row = {
            "round": server_round,
            "task": task,
            "clients": sorted(replies),
            "failed": sorted(failed),
            "reasons": {str(client): why for client, why in failed.items()},
            "loss": _mean(replies, "loss"),
            "valid_loss": _mean(replies, "valid_loss"),
            "valid_accuracy": _mean(replies, "valid_accuracy"),
            "bytes_up": traffic["up"],
            "bytes_down": traffic["down"],
            "nominal_bytes_up": traffic["nominal_up"],
            "nominal_bytes_down": traffic["nominal_down"],
            "seconds": seconds,
            **timing,
            **({"diagnostics": dict(diagnostics)} if diagnostics else {}),
        }
        with (self._folder / "rounds.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def restore(self, last: int) -> list[dict[int, TaskStage]]:
        """Take up an earlier record of the run, up to the end of round ``last``.

        Returns:
            for each of the rounds, where the clients stood whose updates were used.

        Raises:
            WireError: the journal in the folder is damaged or too short.
        """
        stages: list[dict[int, TaskStage]] = []
        for event in self._event_log.until(last):
            told = event.told
            if event.what == "trained":
                found = told["stages"].items()
                stages.append({c: TaskStage(**stage) for c, stage in found})
                self._started -= told["seconds"]
                self._add_round(event.round, **told)
            else:
                found = told["scores"].items()
                told["scores"] = {c: Evaluation(**scores) for c, scores in found}
                self._add_evaluation(event.round, **told)
        return stages

    def finish(self) -> dict[str, Any]:
        """Write and return the summary; the same seed gives the same, time aside."""
        config = self._config
        seconds = time.monotonic() - self._started
        stream = self._scenario.stream
        found: dict[str, Any] = {}
        remarks = dict(self._remarks)
        for diagnostics in self._diagnostics:
            for name, content in diagnostics.files().items():
                _replace(self._folder / name, content)
            found |= diagnostics.summary()
            remarks |= diagnostics.remarks()
        sizes = list(self._model_bytes.values())
        summary = {
            "label": config.title,
            "counterpart": self._counterpart,
            "strategy": config.strategy.name,
            "local_only": config.strategy.local_only,
            "params": dict(config.strategy.params),
            "training": {key.partition(".")[2]: config.flat()[key] for key in TRAINING},
            "scenario": config.scenario.name,
            "dataset": config.data.datasets,
            "model": config.model.name,
            "seed": config.run.seed,
            "clients": config.scenario.clients,
            "tasks": config.scenario.tasks,
            "rounds": config.federation.rounds_per_task,
            "total_rounds": self._total,
            "mode": "asynchronous" if config.asynchronous.enabled else "synchronous",
            "clock": self.clock or None,
            **measures(self._scenario, self.accuracy, self._evaluations),
            "bytes_up": self._up.total(),
            "bytes_down": self._down.total(),
            "nominal_bytes_up": self._paper["up"],
            "nominal_bytes_down": self._paper["down"],
            "bytes_by_kind": {
                "up": dict(sorted(self._up.items())),
                "down": dict(sorted(self._down.items())),
            },
            "model_bytes": round(sum(sizes) / len(sizes)) if sizes else 0,
            "seconds": seconds,
            "hidden": None
            if stream is None
            else {
                **stream.to_dict(),
                "ids": bool(config.scenario.params.get("reveal_ids")),
            },
            **found,
            "remarks": remarks,
            "command": "fcl simulate --config config.toml",
        }
        _replace(self._folder / "summary.json", summary)
        return summary


def _mean(replies: Mapping[int, Mapping[str, float]], name: str) -> float | None:
    values = [scalars[name] for scalars in replies.values() if name in scalars]
    return sum(values) / len(values) if values else None


def _replace(path: Path, content: object) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(path)
