"""Writes the files of a run folder while the run goes on."""

import csv
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
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
    LABEL_EPSILON,
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
"""Rounds whose mean duration foretells that of the others."""

HARDWARE = ("training.device", "training.threads")
"""Keys of the configuration that say where training runs, not what it does."""
OF_OTHER_SECTIONS = ("federation.client_fraction", "model.head")
"""Keys of the configuration that a summary has under ``training`` all the same."""


class Recorder:
    """Records what happens in one run; used by the server.

    Every event is a line of ``journal.jsonl`` first. Then it is added to the record,
    and what it changes is written: ``rounds.jsonl``, ``accuracy.csv``, at the end
    ``diagnostics.json`` and ``summary.json``. All of them follow from the journal, so
    that an interrupted run can be resumed. ``config.toml`` runs it again,
    ``scenario.json`` has the tasks of every client, and ``progress.json`` says how far
    it is.
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

        No file of the folder changes before: a run may be refused yet.

        Args:
            folder: may exist, but must be writable.
            config: of the run.
            scenario: the tasks of every client.
            remarks: what else a reader should know, by topic; for the summary.
            counterpart: title of the same run without communication, if any.
            single_task: each task is learned alone, by a fresh model.
            ledger: what clients' data have cost, if the server counts that.
            listeners: called with each event, those before a resumption too.
            classes: by how many classes clients count their answers; 0: not at all.
            class_names: of a single head; empty where each task has one.
            simulated: noise of privacy follows from the run's seed.
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
        """Write the files of a run without rounds, and forget an earlier one's."""
        self._journal.clear()
        self._write_files()
        self._journal.begin(self._begun)
        self._apply(self._begun)
        self.progress(0, 0, 0, "starting")

    def restore(self, last: int) -> list[Trained]:
        """Continue an earlier record up to the end of round ``last``; give its rounds.

        Where the run has more tasks, clients or rounds now, that is an event.

        Raises:
            FormatError: the journal in the folder is of another format.
            WireError: it is damaged or too short.
        """
        events = self._journal.resume(last)
        first = events[0]
        assert isinstance(first, Begun)  # so a journal begins
        known = [first, *(e.begun for e in events if isinstance(e, Extended))]
        told = {"class_holders": known[-1].class_holders}
        self._begun = self._begun.model_copy(update=told)
        if _size(known[-1]) != _size(self._begun):
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
        """Record after a round that the first tasks have other numbers of rounds."""
        config = self._config.replace(rounds_by_task=",".join(map(str, rounds_by_task)))
        plan = _plan(config)
        told = {"rounds_by_task": [*rounds_by_task], "total_rounds": plan.num_rounds}
        about = self._begun.about.model_copy(update=told)
        self._extend(last, config, about=about)

    def name_classes(self, names: Sequence[str], holders: ClassHolders) -> None:
        """Record the classes of a single head from now on, and who has which."""
        config = self._config.replace(class_names=",".join(names))
        held = {name: sorted(clients) for name, clients in holders.items()}
        told = {"class_names": list(names), "class_holders": held}
        self._extend(len(self.record.rounds), config, **told)

    def _extend(self, last: int, config: RunConfig, **told: object) -> None:
        self._config, self._begun = config, self._begun.model_copy(update=told)
        self._write_config()
        self.add(Extended(round=last, begun=self._begun))

    def _write_config(self) -> None:
        settings = self._config.replace(resume=False).to_file()
        made = f"# Run: {self._begun.about.environment.describe()}\n"
        # In one step: a service that is killed here reads it when it starts again.
        replace_file(self.folder / "config.toml", made + settings)

    def _write_files(self) -> None:
        self._write_config()
        folder = self.folder
        self._scenario.save(folder / "scenario.json")
        (folder / "rounds.jsonl").write_text("")
        with (folder / "accuracy.csv").open("w", newline="") as file:
            csv.writer(file).writerow(COLUMNS)

    def add(self, event: Event) -> None:
        """Record an event; a round gets its duration and its hidden concepts here."""
        if isinstance(event, Trained):
            now = time.monotonic()
            seconds, self._round_started = now - self._round_started, now
            found = dict(event.diagnostics)
            for name, one in found.items():
                if isinstance(one, Points) and self._scenario.stream is not None:
                    frames = [with_truth(f, self._scenario.stream) for f in one.frames]
                    found[name] = one.model_copy(update={"frames": frames})
            added = {"seconds": seconds, "diagnostics": found}
            event = event.model_copy(update=added)
        self._journal.add(event)
        self._apply(event)

    def note_failures(self, reasons: Mapping[int, str]) -> None:
        """Note why clients failed since the last round, for the summary."""
        self.record.failures.update(reasons)

    def _apply(self, event: Event) -> None:
        """Add an event to the record, and what it changes to the files."""
        self.record.add(event)
        if isinstance(event, Trained):
            line = self.record.rounds[-1].model_dump(exclude_unset=True)
            with (self.folder / "rounds.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
        elif isinstance(event, Evaluated):
            with (self.folder / "accuracy.csv").open("a", newline="") as file:
                lines = csv.writer(file)
                for client, found in event.scores.items():
                    tasks = self._scenario.clients[client]
                    own = self.record.about.own_tasks(client)
                    for i, value in zip(own, found.accuracy, strict=False):
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
        """Write ``progress.json``, but not for every client that answers in a round.

        Of a thousand, most are done before anybody could have read of the one before.
        The round is 0 before the first; the state is starting, training or finished;
        who works has been asked and has not answered.
        """
        now, record = time.monotonic(), self.record
        if 0 < done < expected and now - self._progress_written < PROGRESS_SECONDS:
            return
        self._progress_written = now
        about = record.about
        tasks = about.tasks if about.hidden is None else 1
        write_json(
            self.folder / "progress.json",
            {
                "state": state,
                "round": server_round,
                "rounds": about.total_rounds,
                "task": _task_of(about, server_round),
                "tasks": tasks,
                "clients_done": done,
                "clients": expected,
                "working": sorted(working),
                "accuracy": record.average_accuracy,
                "bytes_up": record.traffic.up.total(),
                "bytes_down": record.traffic.down.total(),
                "seconds": now - self._started,
                "left": time_left(
                    [one.seconds for one in record.rounds],
                    about.total_rounds,
                    now - self._round_started,
                ),
            },
        )

    def finish(self, traffic: Traffic | None = None, advice: str = "") -> Summary:
        """Write ``diagnostics.json`` and the summary, and return the summary.

        The same seed gives the same, but for ``seconds``, ``peak_memory`` and
        ``environment``. ``traffic`` is that after the last round, as of the last tests
        of an asynchronous run; ``advice`` is the strategy's for the next run.
        """
        record, section = self.record, self._config.privacy
        if traffic is not None:
            record.traffic.add(traffic)
        of_labels = record.reported[LABEL_EPSILON]
        remarks = _privacy_remarks(
            section, self._ledger, of_labels, simulated=self._simulated
        )
        if early := _ended_early(self._config):
            remarks["early stop"] = early
        diverged = [str(c) for c, why in record.failures.items() if DIVERGED in why]
        if diverged:
            rate = self._config.training.learning_rate
            remarks["divergence"] = (
                f"the training of client {', '.join(sorted(diverged))} has diverged in "
                f"at least one round; training.learning_rate was {rate:g}"
            )
        if advice:
            remarks["advice"] = advice
        found: dict[str, Any] = {
            "remarks": self._begun.remarks | remarks,
            "peak_memory": self._memory.bytes(),
            "seconds": time.monotonic() - self._started,
            "environment": current_environment(),
        }
        if self._config.training.count_multiply_adds:
            found["multiply_adds"] = int(record.multiply_adds)
        if section.unit != "none":
            reported = record.reported[EPSILON]
            privacy = _privacy_costs(
                section, self._ledger, reported, simulated=self._simulated
            )
            found["privacy"] = privacy
        summary = summarize(record).model_copy(update=found)
        self._journal.add(Finished(summary=summary))
        record.outcome = summary
        if record.diagnostics:
            content = {n: d.model_dump() for n, d in record.diagnostics.items()}
            write_json(self.folder / "diagnostics.json", content)
        write_json(self.folder / "summary.json", summary.content())
        return summary

    def tell_end(self, summary: Summary) -> None:
        """Tell all listeners that the run is over, once its page is there, too."""
        self._tell(Finished(summary=summary))


def time_left(took: Sequence[float], total: int, running: float = 0.0) -> float | None:
    """Foretell the seconds that are left of a run by the mean of its last rounds.

    Of ``total`` rounds some ``took`` seconds each, and one is ``running``. The first
    one does not count if there are others: it loads what they find loaded.

    >>> time_left([9.0, 1.0, 2.0], 10, running=0.5)
    10.0
    """
    if not took:
        return None
    recent = took[1:][-RECENT:] or took
    mean = sum(recent) / len(recent)
    return max(0.0, (total - len(took)) * mean - min(running, mean))


def _privacy_costs(
    section: PrivacySection,
    ledger: Ledger | None,
    reported: Mapping[int, float],
    *,
    simulated: bool,
) -> Privacy:
    """Sum up what differential privacy has cost each client, in epsilon.

    Without a ledger of the server clients account for themselves: what they
    ``reported``. In a simulation noise follows from the run's seed.
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


def _privacy_remarks(
    section: PrivacySection,
    ledger: Ledger | None,
    of_labels: Mapping[int, float],
    *,
    simulated: bool,
) -> dict[str, str]:
    """Say what a reader must know of the privacy of a run, by topic."""
    found = {}
    if of_labels:
        most = f"epsilon {max(of_labels.values()):.3g} at delta {section.delta:g}"
        said = f"noised statistics, at most {most} for a client"
        found["privacy of labels"] = said
    if section.unit == "none":
        return found
    if simulated:
        found["privacy noise"] = "from the run's seed, as in every simulation"
    if section.scores:
        found["privacy of scores"] = (
            "none: accuracies on clients' test data are exact, and no epsilon "
            "covers them (privacy.scores)"
        )
    if ledger is not None and ledger.stopped:
        found["privacy budget"] = ledger.stopped
    return found


def _size(begun: Begun) -> tuple[object, ...]:
    """Take what of a run may become more."""
    about = begun.about
    shape = about.clients, about.tasks, about.rounds, about.rounds_by_task
    return *shape, about.sat_out, begun.class_names


def _ended_early(config: RunConfig) -> str:
    section = config.federation
    found = [
        f"task {task} after {rounds} rounds"
        for task, rounds in enumerate(section.listed_rounds)
        if section.patience and rounds < section.rounds_per_task
    ]
    most = f" of at most {section.rounds_per_task}, by federation.patience"
    return "; ".join(found) + most if found else ""


def _not_own(plan: Schedule, client: int) -> list[int]:
    return sorted({*range(plan.tasks)}.difference(plan.own_tasks(client)))


def _task_of(about: About, number: int) -> int:
    """Find the task of a round; of an update, how far the run would be by its share."""
    if about.hidden is not None:
        return 0
    if about.mode == "asynchronous":
        return max(0, number - 1) * about.tasks // about.total_rounds
    plan = Schedule(about.clients, about.tasks, about.rounds, 1.0, 0)
    listed = tuple(about.rounds_by_task)
    return replace(plan, rounds_by_task=listed).task(max(1, number))


def with_truth(frame: Clustering, stream: ConceptStream) -> Clustering:
    """Hold the clusters of a round against the hidden concepts of its clients.

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
    stream, flat = scenario.stream, config.flat()
    reveal = bool(config.scenario.params.get("reveal_ids"))
    # Every setting of training, so that none is forgotten that comes later.
    told = [key for key in flat if key.startswith("training.") and key not in HARDWARE]
    plan = _plan(config, hidden=stream is not None)
    clients = range(plan.clients)
    asynchronous = config.asynchronous.enabled
    own = [plan.num_rounds - plan.rounds_before(client) for client in clients]
    return About(
        label=config.title,
        strategy=config.strategy.name,
        local_only=config.strategy.local_only,
        params=dict(config.strategy.params),
        training={k.partition(".")[2]: flat[k] for k in (*told, *OF_OTHER_SECTIONS)},
        scenario=config.scenario.name,
        dataset=config.data.datasets,
        model=config.model.name,
        seed=config.run.seed,
        clients=config.scenario.clients,
        tasks=config.scenario.tasks,
        rounds=plan.rounds_per_task,
        total_rounds=sum(own) if asynchronous else plan.num_rounds,
        rounds_by_task=list(plan.rounds_by_task),
        sat_out={c: out for c in clients if (out := _not_own(plan, c))},
        mode="asynchronous" if asynchronous else "synchronous",
        hidden=None
        if stream is None
        else Hidden(**stream.to_dict(), reveal_ids=reveal),
        command="fcl simulate --config config.toml",
        counterpart=counterpart,
        single_task=single_task,
        environment=current_environment(),
    )
