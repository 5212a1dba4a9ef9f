"""Writes the files of a run folder while the run goes on.

``config.toml`` (runs it again), ``scenario.json`` (the tasks of every client),
``rounds.jsonl``, ``accuracy.csv``, the files of diagnostics, ``summary.json``,
``journal.jsonl`` (the events that the others follow from, so that an interrupted run
can be resumed) and, while it runs, ``progress.json`` and ``begun.json`` (the summary
of a run before its first round, without accuracies).
"""

import csv
import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import DIVERGED
from fcl_flower.core.types import Array, Evaluation, TaskStage
from fcl_flower.data.scenarios.registry import Scenario
from fcl_flower.results.diagnostics.base import Diagnostics
from fcl_flower.results.environment import environment, told
from fcl_flower.results.event_log import (
    BEFORE_AGGREGATION,
    EVALUATION,
    ROUND,
    EventLog,
)
from fcl_flower.results.history import Lateness, RoundRecord, RunHistory
from fcl_flower.results.measures.by_class import ClassMeasures
from fcl_flower.results.measures.memory import PeakMemory
from fcl_flower.results.monitoring.listener import Listener
from fcl_flower.results.monitoring.progress_file import ProgressFile
from fcl_flower.results.run_folder import BEGUN, write_json
from fcl_flower.results.summary import summarize, total_rounds
from fcl_flower.results.traffic import Traffic

COLUMNS = ("round", "task_learned", "client", "task", "task_name", "accuracy")
"""Of ``accuracy.csv``."""


class Recorder:
    """Keeps the history of one run, and its files up to date; used by the server.

    Attributes:
        folder: where the files are.
    """

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        scenario: Scenario,
        diagnostics: Sequence[Diagnostics],
        remarks: Mapping[str, str] = {},
        counterpart: str | None = None,
        listeners: Sequence[Listener] = (),
        single_task: bool = False,
        by_class: ClassMeasures | None = None,
    ) -> None:
        """Create a record without rounds; call `begin` or `restore` next.

        No file of the folder changes before: a run may be refused yet.

        Args:
            folder: may exist, but must be writable.
            config: of the run.
            scenario: the tasks of every client.
            diagnostics: collectors of scalars (`build_diagnostics`).
            remarks: what else a reader should know, by topic; for the summary.
            counterpart: title of the same run without communication; None where
                there is none.
            listeners: hear of what is recorded, that before a resumption too.
            single_task: each task is learned alone, by a fresh model.
            by_class: collects counts by class; None where clients send none.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._config, self._scenario = folder, config, scenario
        self._diagnostics = diagnostics
        self._remarks = dict(remarks)
        self._counterpart, self._single_task = counterpart, single_task
        self._memory = PeakMemory()
        self._listeners, self._by_class = listeners, by_class
        for listener in listeners:
            listener.begin(total_rounds(config, scenario))
        self._history = RunHistory.empty(config.scenario.clients, config.scenario.tasks)
        self._started = self._round_started = time.monotonic()
        self._progress = ProgressFile(folder / "progress.json", config, scenario)
        self._event_log = EventLog(folder / "journal.jsonl")

    @property
    def accuracy(self) -> Array:
        """Return the accuracies by client, task learned last and task; NaN if none."""
        return self._history.accuracy.matrix

    @property
    def failures(self) -> Mapping[int, str]:
        """The last reason by client why an update or an evaluation was not used."""
        return self._history.failures

    @property
    def clock(self) -> float:
        """Return the simulated time at the end of the last round; 0 without any."""
        return self._history.clock

    @property
    def lateness(self) -> Mapping[int, Lateness]:
        """Return that of the clients whose last update was late, kept up to date."""
        return self._history.lateness

    def begin(self) -> None:
        """Write the files of a run without rounds, and forget an earlier one's."""
        self._event_log.clear()
        self._write_files()

    def progress(
        self,
        server_round: int,
        done: int,
        expected: int,
        state: str = "training",
        working: Collection[int] = (),
    ) -> None:
        """Write ``progress.json``; the arguments are those of `ProgressFile.write`."""
        now = time.monotonic()
        taken = now - self._started, now - self._round_started
        self._progress.write(
            self._history, taken, server_round, done, expected, state, working
        )

    def check_metrics(self, client_metrics: Mapping[str, float]) -> None:
        """Refuse metrics of a client's update that cannot be recorded.

        Raises:
            WireError: some diagnostics cannot take them.
        """
        for diagnostics in self._diagnostics:
            diagnostics.check(client_metrics)

    @property
    def classes(self) -> int:
        """Return by how many classes clients count samples; 0 for not at all."""
        return 0 if self._by_class is None else self._by_class.classes

    def check_scores(self, client: int, found: Evaluation) -> None:
        """Refuse scores of a client that cannot be recorded.

        Raises:
            WireError: they are counts of other samples than the client's.
        """
        if self._by_class is not None:
            self._by_class.check(client, found)

    def record_evaluation(
        self, server_round: int, task: int, scores: Mapping[int, Evaluation]
    ) -> None:
        """Add every client's scores after learning ``task``.

        Where concepts are hidden there is no order of learning: each evaluation takes
        the place of the one before, in the last row, and ``accuracy.csv`` has all.
        """
        self._event_log.add(EVALUATION, server_round, _evaluation_event(task, scores))
        self._add_evaluation(server_round, task, scores)

    def record_before_aggregation(
        self, server_round: int, task: int, scores: Mapping[int, Evaluation]
    ) -> None:
        """Add the scores of what each client has trained itself in a round."""
        content = _evaluation_event(task, scores)
        self._event_log.add(BEFORE_AGGREGATION, server_round, content)
        self._history.before_aggregation.add(self._row(task), scores)

    def record_round(
        self,
        server_round: int,
        task: int,
        client_metrics: Mapping[int, Mapping[str, float]],
        failed: Mapping[int, str],
        traffic: Traffic,
        diagnostics: Mapping[str, float] = {},
        stages: Mapping[int, TaskStage] = {},
        timing: Mapping[str, float] = {},
        late: Mapping[int, float] = {},
        state_lost: Collection[int] = (),
    ) -> None:
        """Add a finished round; the arguments are those of `RoundRecord`."""
        now = time.monotonic()
        seconds, self._round_started = now - self._round_started, now
        record = RoundRecord(
            server_round,
            task,
            client_metrics,
            failed,
            traffic,
            diagnostics,
            stages,
            timing,
            seconds,
            late,
            state_lost,
        )
        self._event_log.add(ROUND, server_round, record.to_dict())
        self._add_round(record)

    def restore(self, last: int) -> list[RoundRecord]:
        """Continue an earlier record of the run, up to the end of round ``last``.

        Returns:
            the rounds.

        Raises:
            WireError: the event log in the folder is damaged or too short.
        """
        rounds: list[RoundRecord] = []
        events = self._event_log.until(last)
        self._write_files()
        for event in events:
            if event.name == ROUND:
                record = RoundRecord.from_dict(event.round, event.content)
                rounds.append(record)
                self._started -= record.seconds
                self._add_round(record)
            else:
                kept = event.content["scores"].items()
                scores = {client: Evaluation(**found) for client, found in kept}
                task = event.content["task"]
                if event.name == EVALUATION:
                    self._add_evaluation(event.round, task, scores)
                else:
                    self._history.before_aggregation.add(self._row(task), scores)
        return rounds

    def note_failures(self, reasons: Mapping[int, str]) -> None:
        """Note why clients failed since the last round, for the summary."""
        self._history.failures.update(reasons)

    def finish(self, traffic: Traffic | None = None) -> dict[str, Any]:
        """Write the files of diagnostics and the summary, and return the summary.

        The same seed gives the same, but for ``seconds``, ``peak_memory``
        and ``environment``.

        Args:
            traffic: after the last round, as of the last tests of an asynchronous run.
        """
        if traffic is not None:
            self._history.traffic.add(traffic)
        summary = summarize(self._config, self._scenario, self._history)
        summary["counterpart"] = self._counterpart
        summary["single_task"] = self._single_task
        if self._by_class is not None:
            summary |= self._by_class.summary()
        remarks = dict(self._remarks)
        for diagnostics in self._diagnostics:
            for name, content in diagnostics.files().items():
                write_json(self.folder / name, content)
            summary |= diagnostics.summary()
            remarks |= diagnostics.remarks()
        diverged = [str(c) for c, why in self.failures.items() if DIVERGED in why]
        if diverged:
            rate = self._config.training.learning_rate
            remarks["divergence"] = (
                f"the training of client {', '.join(sorted(diverged))} has diverged in "
                f"at least one round; training.learning_rate was {rate:g}"
            )
        summary["remarks"] = remarks
        summary["peak_memory"] = self._memory.bytes()
        summary["seconds"] = time.monotonic() - self._started
        summary["environment"] = environment()
        write_json(self.folder / "summary.json", summary)
        (self.folder / BEGUN).unlink()
        return summary

    def hand_over(self, summary: Mapping[str, Any], report: Path) -> None:
        """Tell all listeners that the run is over, and where its page is."""
        for listener in self._listeners:
            listener.finish(summary, report)

    def _write_files(self) -> None:
        """Write the files of a run without rounds, those of a record as empty ones."""
        config, folder = self._config, self.folder
        settings = config.replace(resume=False).to_toml()
        made = f"# Run: {told(environment())}\n"
        (folder / "config.toml").write_text(made + settings)
        self._scenario.save(folder / "scenario.json")
        (folder / "rounds.jsonl").write_text("")
        with (folder / "accuracy.csv").open("w", newline="") as file:
            csv.writer(file).writerow(COLUMNS)
        begun = summarize(config, self._scenario, self._history)
        begun |= {"client_accuracy": [], "accuracy_matrix": [], "seconds": 0.0}
        begun |= {"counterpart": self._counterpart, "environment": environment()}
        write_json(folder / BEGUN, begun)
        self.progress(0, 0, 0, "starting")

    def _add_evaluation(
        self, server_round: int, task: int, scores: Mapping[int, Evaluation]
    ) -> None:
        self._history.add_evaluation(self._row(task), scores)
        if self._by_class is not None:
            self._by_class.add(self._row(task), scores)
        with (self.folder / "accuracy.csv").open("a", newline="") as file:
            lines = csv.writer(file)
            for client, found in scores.items():
                for i, value in enumerate(found.accuracy):
                    name = self._scenario.clients[client][i].name
                    lines.writerow([server_round, task, client, i, name, value])
        for listener in self._listeners:
            listener.add_evaluation(server_round, scores)

    def _row(self, task: int) -> int:
        """Return in which row of the matrices an evaluation after a task is."""
        hidden = self._scenario.stream is not None
        return self._config.scenario.tasks - 1 if hidden else task

    def _add_round(self, record: RoundRecord) -> None:
        self._history.add_round(record)
        self._progress.add_round(record.round, record.seconds)
        by_task = record.metrics_by_task()
        for diagnostics in self._diagnostics:
            diagnostics.add_round(record.round, by_task, record.diagnostics)
        with (self.folder / "rounds.jsonl").open("a") as file:
            file.write(json.dumps(record.line()) + "\n")
        for listener in self._listeners:
            listener.add_round(record)


def _evaluation_event(task: int, scores: Mapping[int, Evaluation]) -> dict[str, object]:
    kept = {client: asdict(found) for client, found in scores.items()}
    return {"task": task, "scores": kept}
