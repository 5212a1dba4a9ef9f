"""The writer of a run's folder while the run goes on."""

import csv
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fcl_flower.config.run_config import PrivacySection, RunConfig
from fcl_flower.core.diagnostics import Clustering, Points
from fcl_flower.core.errors import DIVERGED
from fcl_flower.core.files import replace_file
from fcl_flower.core.schedule import Schedule
from fcl_flower.data.scenarios.plan import ConceptStream
from fcl_flower.data.scenarios.registry import Scenario
from fcl_flower.privacy.ledger import Ledger
from fcl_flower.results import journal
from fcl_flower.results.environment import PeakMemory, current_environment
from fcl_flower.results.events import (
    EPSILON,
    About,
    Begun,
    ClassHolders,
    Evaluated,
    Event,
    Extended,
    Finished,
    Hidden,
    Privacy,
    ScenarioInfo,
    Summary,
    Traffic,
    Trained,
)
from fcl_flower.results.files import write_json
from fcl_flower.results.record import Record, summarize

COLUMNS = ("round", "task_learned", "client", "task", "task_name", "accuracy")
"""The columns of ``accuracy.csv``."""
PROGRESS_SECONDS = 0.2
"""Seconds between two writings of ``progress.json`` within a round."""
RECENT = 10
"""Number of the last rounds whose mean duration foretells the others."""

HARDWARE = ("training.device", "training.threads")
"""Keys of the configuration that say where training runs, not what it does."""
OF_OTHER_SECTIONS = ("federation.client_fraction", "model.head")
"""Keys of other sections that a summary still has under ``training``."""


class Recorder:
    """The record of one run, which the server keeps.

    Each event first becomes a line of ``journal.jsonl``, then a part of the record and
    of the files that depend on it: ``rounds.jsonl``, ``accuracy.csv``, and at the end
    ``diagnostics.json`` and ``summary.json``. They all follow from the journal, so an
    interrupted run can be resumed. ``config.toml`` runs the same again,
    ``scenario.json`` has the tasks of every client, and ``progress.json`` tells how far
    the run is.
    """

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        scenario: Scenario,
        *,
        remarks: Mapping[str, str] = {},
        counterpart: str | None = None,
        single_task: bool = False,
        ledger: Ledger | None = None,
        listeners: Sequence[Callable[[Event], None]] = (),
        classes: int = 0,
        class_names: Sequence[str] = (),
        simulated: bool = False,
    ) -> None:
        """Create a record without rounds; call `begin` or `restore` next.

        Before that no file of the folder changes, since the run may still be refused.

        Args:
            folder: folder of the run, new or old, which must be writable.
            config: configuration of the run.
            scenario: tasks of every client.
            remarks: remarks for the reader of the summary, by topic.
            counterpart: title of the same run without communication, if any.
            single_task: whether a fresh model learns each task alone.
            ledger: the privacy costs of clients' data, if the server counts them.
            listeners: called with each event, and with those before a resumption.
            classes: number of classes by which clients count their answers; 0 if they
                do not.
            class_names: classes of a single head; empty where each task has a head.
            simulated: whether the noise of privacy follows from the run's seed.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._simulated = folder, simulated
        self._config, self._scenario, self._ledger = config, scenario, ledger
        self._listeners = listeners
        self._begun = Begun(
            about=_about(config, scenario, counterpart, single_task),
            attackers=config.federation.attackers,
            joint=config.scenario.joint,
            remarks=dict(remarks),
            counts_classes=classes > 0,
            class_names=list(class_names),
        )
        described = ScenarioInfo.model_validate(scenario.to_dict())
        self.record = Record(described, self._begun)
        self._memory = PeakMemory()
        self._started = self._round_started = time.monotonic()
        self._progress_written = self._started
        self._journal = journal.Journal(folder / journal.FILE)

    def begin(self) -> None:
        """Write the files of a run without rounds in place of an earlier run's."""
        (self.folder / journal.FILE).unlink(missing_ok=True)
        self._write_files()
        self._journal.begin(self._begun)
        self._apply(self._begun)
        self.progress(0, 0, 0, "starting")

    def restore(self, last: int) -> list[Trained]:
        """Continue an earlier record after round ``last``; return its rounds.

        Where the run has more tasks, clients or rounds now, that becomes an event.

        Raises:
            FormatError: the journal in the folder is of another format.
            WireError: the journal is damaged or too short.
        """
        events = self._journal.resume(last)
        first = events[0]
        assert isinstance(first, Begun)  # so a journal begins
        begun = [first, *(e.begun for e in events if isinstance(e, Extended))]
        holders = {"class_holders": begun[-1].class_holders}
        self._begun = self._begun.model_copy(update=holders)
        if _size(begun[-1]) != _size(self._begun):
            events.append(Extended(round=last, begun=self._begun))
            self._journal.add(events[-1])
        self._write_files()
        self.record = Record(self.record.scenario, first)
        for event in events:
            self._apply(event)
        rounds = [event for event in events if isinstance(event, Trained)]
        self._started -= sum(event.seconds for event in rounds)
        self.progress(0, 0, 0, "starting")
        return rounds

    def replan(self, last: int, rounds_by_task: Sequence[int]) -> None:
        """Record new numbers of rounds of the first tasks, after round ``last``."""
        config = self._config.replace(rounds_by_task=",".join(map(str, rounds_by_task)))
        rounds = {
            "rounds_by_task": [*rounds_by_task],
            "total_rounds": _plan(config).num_rounds,
        }
        about = self._begun.about.model_copy(update=rounds)
        self._extend(last, config, about=about)

    def name_classes(self, names: Sequence[str], holders: ClassHolders) -> None:
        """Record the classes of a single head from now on, and their clients."""
        config = self._config.replace(class_names=",".join(names))
        sorted_holders = {name: sorted(clients) for name, clients in holders.items()}
        self._extend(
            len(self.record.rounds),
            config,
            class_names=list(names),
            class_holders=sorted_holders,
        )

    def _extend(self, last: int, config: RunConfig, **changes: object) -> None:
        self._config, self._begun = config, self._begun.model_copy(update=changes)
        self._write_config()
        self.add(Extended(round=last, begun=self._begun))

    def _write_config(self) -> None:
        settings = self._config.replace(resume=False).to_file()
        comment = f"# Run: {self._begun.about.environment.describe()}\n"
        # In one step: a service that is killed here reads it when it starts again.
        replace_file(self.folder / "config.toml", comment + settings)

    def _write_files(self) -> None:
        self._write_config()
        self._scenario.save(self.folder / "scenario.json")
        (self.folder / "rounds.jsonl").write_text("")
        with (self.folder / "accuracy.csv").open("w", newline="") as file:
            csv.writer(file).writerow(COLUMNS)

    def add(self, event: Event) -> None:
        """Record an event; a round gets its duration and its hidden concepts here."""
        if isinstance(event, Trained):
            now = time.monotonic()
            seconds, self._round_started = now - self._round_started, now
            diagnostics, stream = dict(event.diagnostics), self._scenario.stream
            for name, report in diagnostics.items():
                if isinstance(report, Points) and stream is not None:
                    frames = [with_truth(frame, stream) for frame in report.frames]
                    diagnostics[name] = report.model_copy(update={"frames": frames})
            changes = {"seconds": seconds, "diagnostics": diagnostics}
            event = event.model_copy(update=changes)
        self._journal.add(event)
        self._apply(event)

    def note_failures(self, reasons: Mapping[int, str]) -> None:
        """Note for the summary why clients failed since the last round."""
        self.record.failures.update(reasons)

    def _apply(self, event: Event) -> None:
        """Add an event to the record, to the files, and tell the listeners."""
        self.record.add(event)
        if isinstance(event, Trained):
            with (self.folder / "rounds.jsonl").open("a") as file:
                file.write(json.dumps(event.line()) + "\n")
        elif isinstance(event, Evaluated):
            with (self.folder / "accuracy.csv").open("a", newline="") as file:
                lines = csv.writer(file)
                for client, evaluation in event.scores.items():
                    tasks = self._scenario.clients[client]
                    own = self.record.about.own_tasks(client)
                    for i, value in zip(own, evaluation.accuracy, strict=False):
                        place = [event.round, event.task, client, i, tasks[i].name]
                        lines.writerow([*place, value])
        self._tell(event)

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)

    def progress(
        self,
        server_round: int,
        done: int,
        expected: int,
        state: str = "training",
        working: Collection[int] = (),
    ) -> None:
        """Write ``progress.json``, but at most every `PROGRESS_SECONDS` in a round.

        Args:
            server_round: the round, from 1; 0 before the first.
            done: number of clients that have answered.
            expected: number of clients that were asked.
            state: ``starting``, ``training`` or ``finished``.
            working: clients that were asked and have not answered.
        """
        now, record = time.monotonic(), self.record
        if 0 < done < expected and now - self._progress_written < PROGRESS_SECONDS:
            return
        self._progress_written = now
        rounds, took = record.about.total_rounds, [r.seconds for r in record.rounds]
        write_json(
            self.folder / "progress.json",
            {
                "state": state,
                "round": server_round,
                "rounds": rounds,
                "task": self._task(server_round),
                "tasks": 1 if record.about.hidden else record.about.tasks,
                "clients_done": done,
                "clients": expected,
                "working": sorted(working),
                "accuracy": record.average_accuracy,
                "bytes_up": record.traffic.up.total(),
                "bytes_down": record.traffic.down.total(),
                "seconds": now - self._started,
                "left": time_left(took, rounds, now - self._round_started),
            },
        )

    def _task(self, number: int) -> int:
        """Find the task of a round; of an asynchronous update by its share of all."""
        about = self.record.about
        if about.hidden is not None:
            return 0
        if about.mode == "asynchronous":
            return max(0, number - 1) * about.tasks // about.total_rounds
        return _plan(self._config).task(max(1, number))

    def finish(self, traffic: Traffic | None = None, advice: str = "") -> Summary:
        """Write ``diagnostics.json`` and the summary, and return the summary.

        The same seed gives the same, except ``seconds``, ``peak_memory`` and
        ``environment``.

        Args:
            traffic: bytes after the last round, such as those of the last tests of an
                asynchronous run.
            advice: the strategy's advice for the next run.
        """
        record, section = self.record, self._config.privacy
        if traffic is not None:
            record.traffic.add(traffic)
        content: dict[str, Any] = {
            "remarks": {**self._begun.remarks, **self._remarks(advice)},
            "peak_memory": self._memory.bytes(),
            "seconds": time.monotonic() - self._started,
            "environment": current_environment(),
        }
        if self._config.training.count_multiply_adds:
            content["multiply_adds"] = int(record.multiply_adds)
        if section.unit != "none":
            reported = record.reported[EPSILON]
            content["privacy"] = _privacy(
                section, self._ledger, reported, simulated=self._simulated
            )
        summary = summarize(record).model_copy(update=content)
        self._journal.add(Finished(summary=summary))
        record.outcome = summary
        if record.diagnostics:
            reports = {n: d.model_dump() for n, d in record.diagnostics.items()}
            write_json(self.folder / "diagnostics.json", reports)
        write_json(self.folder / "summary.json", summary.content())
        return summary

    def tell_end(self, summary: Summary) -> None:
        """Tell all listeners that the run is over, once its page is there, too."""
        self._tell(Finished(summary=summary))

    def _remarks(self, advice: str) -> dict[str, str]:
        """Collect the remarks for a reader of the whole run, by topic."""
        record, config, remarks = self.record, self._config, dict[str, str]()
        most = config.federation.rounds_per_task
        ended_early = [
            f"task {task} after {rounds} rounds"
            for task, rounds in enumerate(config.federation.listed_rounds)
            if config.federation.patience and rounds < most
        ]
        if ended_early:
            remarks["early stop"] = (
                f"{'; '.join(ended_early)} of at most {most}, by federation.patience"
            )
        diverged = [str(c) for c, why in record.failures.items() if DIVERGED in why]
        if diverged:
            remarks["divergence"] = (
                f"the training of client {', '.join(sorted(diverged))} has diverged in "
                "at least one round; training.learning_rate was "
                f"{config.training.learning_rate:g}"
            )
        return remarks | ({"advice": advice} if advice else {})


def time_left(took: Sequence[float], total: int, running: float = 0.0) -> float | None:
    """Foretell the seconds that are left of a run from the mean of its last rounds.

    The first round does not count if there are others, since it also loads what they
    use.

    Args:
        took: seconds of the finished rounds.
        total: number of all rounds.
        running: seconds since the present round began.

    >>> time_left([9.0, 1.0, 2.0], 10, running=0.5)
    10.0
    """
    if not took:
        return None
    recent = took[1:][-RECENT:] or took
    mean = sum(recent) / len(recent)
    return max(0.0, (total - len(took)) * mean - min(running, mean))


def _privacy(
    section: PrivacySection,
    ledger: Ledger | None,
    reported: Mapping[int, float],
    *,
    simulated: bool,
) -> Privacy:
    """Sum up the cost of differential privacy for each client, in epsilon.

    Without a ledger of the server the clients account for themselves and report.
    """
    by_observer = {
        "server": reported if ledger is None else ledger.epsilons("server"),
        "clients": reported if ledger is None else ledger.epsilons("clients"),
    }
    by_client = by_observer[section.observer]
    return Privacy(
        **section.model_dump(exclude={"epsilon"}),
        budget=section.epsilon,
        epsilon=max(by_client.values(), default=0.0),
        epsilon_server=max(by_observer["server"].values(), default=0.0),
        epsilon_clients=max(by_observer["clients"].values(), default=0.0),
        by_client=dict(sorted(by_client.items())),
        simulated_noise=simulated,
        stopped="" if ledger is None else ledger.stopped,
    )


def with_truth(frame: Clustering, stream: ConceptStream) -> Clustering:
    """Judge the clusters of a round by the hidden concepts of its clients.

    The measures are those of Concept Matching (Jiang et al., 2025, tables II and III).
    Where a client has all concepts at once there is nothing to separate.
    """
    # Imported here since it takes a second, and most runs have no clusters.
    from sklearn.metrics import adjusted_rand_score

    concepts = [stream.concepts_at(client, frame.round) for client in frame.clients]
    if any(len(at_once) > 1 for at_once in concepts):
        return frame
    truth = [concept for (concept,) in concepts]
    pairs = zip(frame.origin, frame.reached, strict=True)
    returned = [origin == reached for origin, reached in pairs]
    return frame.model_copy(
        update={
            "concept": truth,
            "ari": float(adjusted_rand_score(truth, frame.cluster)),
            "effectiveness": sum(returned) / len(returned),
        }
    )


# ---- the description of a run


def _size(begun: Begun) -> tuple[object, ...]:
    """Take the parts of a run that may grow."""
    about = begun.about
    shape = about.clients, about.tasks, about.rounds, about.rounds_by_task
    return *shape, about.sat_out, begun.class_names


def _plan(config: RunConfig, *, hidden: bool = False) -> Schedule:
    return Schedule(
        config.scenario.clients,
        # Hidden concepts share all rounds; otherwise each task has its own.
        1 if hidden else config.scenario.tasks,
        config.federation.rounds_per_task,
        config.federation.client_fraction,
        config.run.seed,
        rounds_by_task=config.federation.listed_rounds,
        joined=config.scenario.joined_after,
        sat_out=config.scenario.tasks_sat_out,
    )


def _about(
    config: RunConfig, scenario: Scenario, counterpart: str | None, single_task: bool
) -> About:
    stream, flat, hidden = scenario.stream, config.flat(), None
    if stream is not None:
        reveal = bool(config.scenario.params.get("reveal_ids"))
        hidden = Hidden(**stream.to_dict(), reveal_ids=reveal)
    # Every setting of training, so that a new one is not forgotten.
    keys = [key for key in flat if key.startswith("training.") and key not in HARDWARE]
    plan = _plan(config, hidden=hidden is not None)
    clients, tasks = range(plan.clients), {*range(plan.tasks)}
    sat_out = {c: sorted(tasks.difference(plan.own_tasks(c))) for c in clients}
    asynchronous = config.asynchronous.enabled
    own = [plan.num_rounds - plan.rounds_before(client) for client in clients]
    return About(
        label=config.title,
        strategy=config.strategy.name,
        local_only=config.strategy.local_only,
        params=dict(config.strategy.params),
        training={k.partition(".")[2]: flat[k] for k in (*keys, *OF_OTHER_SECTIONS)},
        scenario=config.scenario.name,
        dataset=config.data.datasets,
        model=config.model.name,
        seed=config.run.seed,
        clients=config.scenario.clients,
        tasks=config.scenario.tasks,
        rounds=plan.rounds_per_task,
        total_rounds=sum(own) if asynchronous else plan.num_rounds,
        rounds_by_task=list(plan.rounds_by_task),
        sat_out={client: out for client, out in sat_out.items() if out},
        mode="asynchronous" if asynchronous else "synchronous",
        hidden=hidden,
        command="fcl simulate --config config.toml",
        counterpart=counterpart,
        single_task=single_task,
        environment=current_environment(),
    )
