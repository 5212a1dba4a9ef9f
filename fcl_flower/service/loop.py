"""A service: it waits for new tasks, trains, and waits again.

One task is one run of `run_federation`, which goes on with the folder of the run
before. The next task and its clients stand in the folder's ``config.toml`` before its
first round. So a service that was killed goes on with the same numbers, in its task or
in its waiting.
"""

import math
import time
from collections.abc import Callable, Sequence
from logging import INFO
from pathlib import Path

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.log import log
from fcl_flower.core.schedule import Schedule
from fcl_flower.results.record import read
from fcl_flower.rounds import messages
from fcl_flower.rounds.clients import NUMBERS_FILE, Asker, ClientRegistry
from fcl_flower.rounds.run import run_federation
from fcl_flower.rounds.transport import QUERY, Content, Transport
from fcl_flower.service.changes import extend, replace_config
from fcl_flower.service.status import BEGIN_NOW, ClientTasks, Policy, ServiceStatus
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve

POLL_SECONDS = 0.2
SHORTEST_WAIT, LONGEST_WAIT = 10.0, 120.0
"""Bounds of the seconds for an answer, which are otherwise those between two looks."""
MOST_CLIENTS = 10_000
"""Clients with larger numbers are not asked: without keys a client may claim any."""


class TaskCounts:
    """The counts of clients' tasks, asked again and again.

    Attributes:
        answers: the time of each client's last answer, and the samples of each of its
            tasks.
    """

    def __init__(
        self,
        transport: Transport,
        look: float,
        clock: Callable[[], float],
        folder: Path,
    ) -> None:
        """Ask each client that is connected every ``look`` seconds.

        The numbers of nodes are kept in ``folder``, as in a run.
        """
        self._registry = ClientRegistry(transport, numbers=folder / NUMBERS_FILE)
        self._registry.keep_numbers(folder)
        seconds = min(max(look, SHORTEST_WAIT), LONGEST_WAIT)
        self._asker = Asker(self._registry, seconds)
        self._look, self._clock = look, clock
        self._asked = dict[int, float]()
        self.answers: dict[int, tuple[float, Sequence[int]]] = {}

    @property
    def connected(self) -> tuple[int, ...]:
        """Clients that are connected, ascending."""
        return self._registry.clients

    def refresh(self, *, everybody: bool = False) -> None:
        """Ask clients whose turn it is, or all, and those that connect meanwhile."""
        now, asked = self._clock(), set[int]()
        while True:
            self._registry.refresh()
            due = [
                client
                for client in self.connected
                if client not in asked
                and client < MOST_CLIENTS
                and (everybody or self._is_due(client, now))
            ]
            if not due:
                return
            asked.update(due)
            self._asked |= dict.fromkeys(due, now)
            kind, questions = f"{QUERY}.{messages.TASKS}", dict.fromkeys(due, Content())
            counts, _ = self._asker.ask(
                kind, questions, lambda _, content: messages.finished_tasks(content)
            )
            self.answers |= {
                client: (now, samples) for client, samples in counts.items()
            }

    def _is_due(self, client: int, now: float) -> bool:
        # A clock that is set back delays nothing.
        return abs(now - self._asked.get(client, -math.inf)) >= self._look


class Service:
    """Trains on each new task by its policy, without an end.

    Its folder is that of the run, and has the policy, too.
    """

    def __init__(
        self,
        config: RunConfig,
        transport: Transport,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take up the service in ``run.output``, or begin one with this configuration.

        It knows ``scenario.clients`` clients from the beginning, if that is above 0.
        """
        self._transport, self._clock, self._sleep = transport, clock, sleep
        self._first, self._folder = config, Path(config.run.output)
        self._now = self._folder / BEGIN_NOW
        self._policy = Policy.read(self._folder)
        if (self._folder / ServiceStatus.name).exists():
            self._status = ServiceStatus.read(self._folder)
            return
        clients = dict.fromkeys(range(config.scenario.clients), ClientTasks())
        self._status = ServiceStatus(
            state="waiting", since=clock(), learned=0, sentence="", clients=clients
        )

    def run(self) -> None:
        """Train and wait until the process ends."""
        while True:
            self.step()

    def step(self) -> None:
        """Finish the task that is under way, or wait for the next one and plan it."""
        planned = self._planned
        if planned is None or (self._folder / "summary.json").exists():
            self._plan(self._wait())
        else:
            self._train(planned)

    @property
    def _planned(self) -> RunConfig | None:
        path = self._folder / "config.toml"
        if not path.exists():
            return None
        return RunConfig.read(path, "run.output").replace(resume=True)

    def _schedule(self) -> Schedule | None:
        planned = self._planned
        return None if planned is None else Built(resolve(planned)).schedule

    def _note(self, state: str, sentence: str, **changes: object) -> None:
        before = self._status
        if state != before.state:
            changes["since"] = self._clock()
        changes |= {"state": state, "sentence": sentence}
        self._status = before.model_copy(update=changes)
        if self._status != before:
            self._status.write(self._folder)

    # ---- waiting

    def _wait(self) -> tuple[int, ...]:
        """Wait until the next training is due; return the clients with a new task."""
        self._postpone_missed()
        schedule, look = self._schedule(), self._policy.look
        counts = TaskCounts(self._transport, look, self._clock, self._folder)
        began, logged, hurried = self._clock(), "", False
        while True:
            before, hurried = hurried, self._now.exists()
            counts.refresh(everybody=hurried and not before)  # tasks may have just come
            clients = self._clients(counts, schedule)
            ready = tuple(number for number, client in clients.items() if client.ready)
            now, begun = self._clock(), self._status.last_begun
            first_new = (self._status.first_new or now) if ready else None
            due, waited = self._policy.next_training(clients, first_new, begun)
            self._note(
                "waiting",
                f"waits for {waited}",
                learned=schedule.tasks if schedule else 0,
                due=due if math.isfinite(due) else None,
                first_new=first_new,
                clients=clients,
            )
            if waited != logged and due > now:
                log(INFO, "waiting for %s", waited)
                logged = waited
            # A known client that is not connected may be about to connect.
            here = all(client.connected for client in clients.values())
            if here or now - began >= look:
                if ready and (due <= now or hurried):
                    return ready
                if hurried:
                    log(INFO, "no client has a new task to begin with now")
                    self._now.unlink(missing_ok=True)
            self._sleep(POLL_SECONDS)

    def _clients(
        self, counts: TaskCounts, schedule: Schedule | None
    ) -> dict[int, ClientTasks]:
        """Join the clients' answers in this waiting with their earlier answers."""

        def learned(client: int) -> int:
            if schedule is None or client >= schedule.clients:
                return 0
            return len(schedule.own_tasks(client))

        by_client = {
            client: tasks.model_copy(
                update={"connected": False, "learned": learned(client), "samples": 0}
            )
            for client, tasks in self._status.clients.items()
        }
        for client, (told, samples) in counts.answers.items():
            by_client[client] = ClientTasks(
                connected=client in counts.connected,
                tasks=len(samples),
                learned=learned(client),
                samples=next(iter(samples[learned(client) :]), 0),
                told=told,
            )
        return dict(sorted(by_client.items()))

    def _postpone_missed(self) -> None:
        """Take the last task from clients that were away for the whole of it.

        Such a client was neither trained nor tested on it, and learns it next time.
        """
        planned, plan = self._planned, self._schedule()
        if planned is None or plan is None:
            return
        record, last = read(self._folder), plan.tasks - 1
        tested = {c for test in record.tests if test.task == last for c in test.scores}
        away = [
            f"{client}:{last}"
            for client in range(plan.clients)
            if last in (own := plan.own_tasks(client))
            and client not in tested
            and (client, len(own) - 1) not in record.trained
        ]
        if away:
            listed = ",".join(filter(None, [planned.scenario.sat_out, *away]))
            replace_config(self._folder, planned.replace(sat_out=listed))

    # ---- training

    def _plan(self, ready: tuple[int, ...]) -> None:
        """Write the next task and its clients down, before its first round."""
        planned, clients = self._planned, self._status.clients
        count = max([*ready, *clients]) + 1
        out = [client for client in range(count) if client not in ready]
        if planned is None:
            sat_out = ",".join(f"{client}:0" for client in out)
            first = self._first.replace(tasks=1, clients=count, sat_out=sat_out)
            replace_config(self._folder, resolve(first).config)
        else:
            more = {"tasks": planned.scenario.tasks + 1, "clients": count}
            extend(self._folder, **more, sit_out=out)
        self._now.unlink(missing_ok=True)
        for client in out:
            own = clients[client].learned if client in clients else 0
            log(INFO, "client %d has no task %d yet: it sits this one out", client, own)

    def _train(self, config: RunConfig) -> None:
        begun = self._status.last_begun
        if self._status.state == "waiting":  # else it goes on with the task
            begun = self._clock()
        sentence = f"trains on task {config.scenario.tasks - 1}"
        self._note("training", sentence, due=None, first_new=None, last_begun=begun)
        try:
            run_federation(config, self._transport)
        except Exception as error:
            self._note("failed", f"{type(error).__name__}: {error}")
            raise
