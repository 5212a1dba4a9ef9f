"""A service: it waits for new tasks, trains, and waits again.

One task is one run of `run_federation`, which goes on with the folder of the one
before. What shall be learned next, and by whom, stands in the folder's ``config.toml``
before the first round of it, so that a service that was killed goes on with the same
numbers: with the task that it was at, or with its waiting.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from logging import INFO, WARNING
from pathlib import Path

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.files import lock_folder
from fcl_flower.core.log import log
from fcl_flower.core.schedule import Schedule
from fcl_flower.results.record import read
from fcl_flower.results.service import (
    BEGIN_NOW,
    FILE,
    SERVICE_LOCK,
    ClientTasks,
    Policy,
    ServiceStatus,
    read_policy,
    read_status,
    write,
)
from fcl_flower.rounds import messages
from fcl_flower.rounds.clients import ClientRegistry
from fcl_flower.rounds.due import next_training
from fcl_flower.rounds.extend import extend, replace_config
from fcl_flower.rounds.given_numbers import NUMBERS_FILE
from fcl_flower.rounds.mailbox import Mailbox, reason
from fcl_flower.rounds.noted_runs import noted_run
from fcl_flower.rounds.run import run_federation
from fcl_flower.rounds.transport import QUERY, Reply, Request, Transport
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve

POLL_SECONDS = 0.2
PATIENCE = 60.0
"""What an earlier run of the service may take to end."""
MOST_CLIENTS = 10_000
"""Numbers from here on are nobody's: without keys a client may claim any."""


class TaskCounts:
    """What clients say of their tasks, asked again and again."""

    def __init__(
        self,
        transport: Transport,
        look: float,
        clock: Callable[[], float],
        folder: Path,
    ) -> None:
        """Ask each client that is connected every ``look`` seconds.

        The numbers that nodes are given are kept in ``folder``, as in a run.
        """
        self._clock = clock
        self._registry = ClientRegistry(transport, numbers=folder / NUMBERS_FILE)
        self._registry.keep_numbers(folder)
        self._mailbox = Mailbox(transport, max(look, 10.0))
        self._look = look
        self._asked = dict[int, float]()
        self._waiting = set[int]()
        self._answered = set[int]()
        self.told: dict[int, tuple[int, ...]] = {}

    @property
    def settled(self) -> bool:
        """Whether all that are connected have told something, or have failed to."""
        return self._answered.issuperset(self._registry.clients)

    def ask_again(self) -> None:
        """Let nobody have told anything yet: all are asked when looked at next."""
        self._asked.clear()
        self._answered.clear()

    @property
    def connected(self) -> tuple[int, ...]:
        """Clients that are connected, ascending."""
        return self._registry.clients

    def refresh(self) -> list[int]:
        """Look who is there, and ask and listen; list the clients that have told."""
        self._registry.refresh()
        now = self._clock()
        due = [
            client
            for client in self._registry.clients
            if client not in self._waiting
            and client < MOST_CLIENTS
            # A clock that is set back delays nothing.
            and abs(now - self._asked.get(client, -math.inf)) >= self._look
        ]
        self._asked |= dict.fromkeys(due, now)
        self._waiting.update(due)
        self._mailbox.send(
            Request(self._registry.node(client), f"{QUERY}.{messages.TASKS}")
            for client in due
        )
        heard = map(self._take, self._mailbox.collect())
        return [client for client in heard if client is not None]

    def _take(self, reply: Reply) -> int | None:
        client = self._registry.client(reply.node)
        self._waiting.discard(client)
        self._answered.add(client)
        # A peer's content may break what reads it in any way.
        try:
            self.told[client] = messages.finished_tasks(reply.content)
        except Exception as error:
            log(WARNING, "client %d does not tell its tasks: %s", client, reason(error))
            return None
        return client


class Service:
    """Trains on each new task as its policy says, without an end.

    The folder is that of the run; the policy stands there in ``service-policy.json``.
    """

    def __init__(
        self,
        config: RunConfig,
        transport: Transport,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take up the service in ``run.output``, or begin one of this configuration.

        ``scenario.clients`` are known from the beginning; 0 for none.
        """
        self._transport, self._clock, self._sleep = transport, clock, sleep
        self._first = config
        self._folder = Path(config.run.output)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._policy: Policy = read_policy(self._folder)
        self._now = self._folder / BEGIN_NOW
        self._status = self._kept_status()

    def run(self) -> None:
        """Train and wait until the process ends."""
        while True:
            self.step()

    def step(self) -> None:
        """Finish the task that is under way, or wait for the next one and plan it."""
        if self._planned is None or self._finished:
            self._plan(self._wait())
        else:
            self._train(self._planned)

    @property
    def _finished(self) -> bool:
        return (self._folder / "summary.json").exists()

    @property
    def _planned(self) -> RunConfig | None:
        path = self._folder / "config.toml"
        if not path.exists():
            return None
        return RunConfig.read(path, "run.output").replace(resume=True)

    def _kept_status(self) -> ServiceStatus:
        if (self._folder / FILE).exists():
            return read_status(self._folder)
        blank = ClientTasks(connected=False, tasks=0, learned=0, samples=0, told=None)
        known = dict.fromkeys(range(self._first.scenario.clients), blank)
        now = self._clock()
        return ServiceStatus(
            state="waiting", since=now, learned=0, sentence="", clients=known
        )

    def _note(self, **changes: object) -> None:
        before = self._status
        self._status = before.model_copy(update=changes)
        if self._status.state != before.state:
            self._status = self._status.model_copy(update={"since": self._clock()})
        if self._status != before:
            write(self._folder / FILE, self._status)

    # ---- waiting

    def _wait(self) -> tuple[int, ...]:
        """Wait until the next training is due; return who has a new task then."""
        self._give_back()
        schedule = self._schedule()
        counts = TaskCounts(
            self._transport, self._policy.look, self._clock, self._folder
        )
        began = self._clock()
        said, hurried = "", False
        while True:
            if self._now.exists() and not hurried:  # tasks may have come this moment
                counts.ask_again()
                hurried = True
            heard = counts.refresh()
            clients = self._known(counts, heard, schedule)
            now = self._clock()
            ready = tuple(sorted(c for c, found in clients.items() if found.ready))
            first_new = self._status.first_new
            if counts.settled:
                first_new = (first_new or now) if ready else None
            last = self._status.last_begun
            due = next_training(self._policy, clients, first_new, last)
            self._note(
                state="waiting",
                learned=schedule.tasks if schedule else 0,
                sentence=f"waits for {due.sentence}",
                due=due.at if math.isfinite(due.at) else None,
                first_new=first_new,
                clients=clients,
            )
            if due.sentence != said and due.at > now:
                log(INFO, "waiting for %s", due.sentence)
                said = due.sentence
            # Who is known and not here may be about to connect.
            here = all(found.connected for found in clients.values())
            if counts.settled and (here or now - began >= self._policy.look):
                if ready and (due.at <= now or hurried):
                    return ready
                if hurried:
                    log(INFO, "no client has a new task to begin with now")
                    self._now.unlink(missing_ok=True)
                    hurried = False
            self._sleep(POLL_SECONDS)

    def _known(
        self, counts: TaskCounts, heard: Sequence[int], schedule: Schedule | None
    ) -> Mapping[int, ClientTasks]:
        known = dict(self._status.clients)
        for client in sorted({*known, *counts.told}):
            learned = 0
            if schedule is not None and client < schedule.clients:
                learned = len(schedule.own_tasks(client))
            told = counts.told.get(client)
            if told is None:  # not yet, in this waiting
                known[client] = known[client].model_copy(
                    update={"connected": False, "learned": learned, "samples": 0}
                )
                continue
            known[client] = ClientTasks(
                connected=client in counts.connected,
                tasks=len(told),
                learned=learned,
                samples=told[learned] if learned < len(told) else 0,
                told=self._clock() if client in heard else known[client].told,
            )
        return known

    def _give_back(self) -> None:
        """Let the last task be none of those that were away for the whole of it.

        Such a client has been neither trained nor tested on it: it learns it next time.
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

    def _schedule(self) -> Schedule | None:
        planned = self._planned
        return None if planned is None else Built(resolve(planned)).schedule

    def _plan(self, ready: tuple[int, ...]) -> None:
        """Decide that these clients learn a task next, before anything else is done."""
        planned = self._planned
        known = max([*ready, *self._status.clients]) + 1
        task = 0 if planned is None else planned.scenario.tasks
        out = [client for client in range(known) if client not in ready]
        if planned is None:
            first = self._first.replace(tasks=1, clients=known)
            first = first.replace(sat_out=",".join(f"{client}:0" for client in out))
            replace_config(self._folder, resolve(first).config)
        else:
            extend(self._folder, tasks=task + 1, clients=known, sit_out=out)
        self._now.unlink(missing_ok=True)
        for client in out:
            found = self._status.clients.get(client)
            own = found.learned if found else 0
            log(INFO, "client %d has no task %d yet: it sits this one out", client, own)

    def _train(self, config: RunConfig) -> None:
        begun = self._status.last_begun
        if self._status.state == "waiting":  # else it goes on with it
            begun = self._clock()
        self._note(
            state="training",
            sentence=f"trains on task {config.scenario.tasks - 1}",
            due=None,
            first_new=None,
            last_begun=begun,
        )
        try:
            run_federation(config, self._transport)
        except Exception as error:
            self._note(state="failed", sentence=f"{type(error).__name__}: {error}")
            raise


def serve(config: RunConfig, transport: Transport) -> None:
    """Serve until the run is stopped; wait for an earlier run of it to end."""
    folder = Path(config.run.output)
    deadline = time.monotonic() + PATIENCE
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(lock_folder(folder, "run.output", SERVICE_LOCK))
                break
            except ConfigError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_SECONDS)
        stack.enter_context(noted_run(config))
        Service(config, transport).run()
