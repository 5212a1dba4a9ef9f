"""The asynchronous loop: every client goes through its tasks at its own speed.

FedWeIT (Yoon et al., ICML 2021, figure 9) compares it with the synchronous loop. Each
update is aggregated when it arrives. Averaged groups move from x to (1 - w) x + w x'.
Here x' is the aggregate of this update alone, and w is
mixing * (1 + staleness) ** -exponent, the polynomial rule of FedAsync (Xie, Koyejo and
Gupta, 2019, https://arxiv.org/abs/1903.03934, section 5.2). Staleness counts the
updates of other clients that were aggregated while the client was busy.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from logging import INFO, WARNING
from typing import Any

from typing_extensions import override

from fcl_flower.core.errors import RoundError
from fcl_flower.core.log import log
from fcl_flower.core.types import Update
from fcl_flower.rounds.loop import EvaluateFn, Loop
from fcl_flower.rounds.mailbox import Mailbox, ask, wait_for_all
from fcl_flower.rounds.messages import evaluate_metrics, train_metrics
from fcl_flower.rounds.pending_requests import PendingRequest, PendingRequests
from fcl_flower.rounds.prepare import FederatedRun
from fcl_flower.rounds.replies import SURVEY, Replies
from fcl_flower.rounds.server import Sent
from fcl_flower.rounds.transport import EVALUATE, Reply, Request


@dataclass
class ClientProgress:
    """The progress of one client.

    Attributes:
        done: its last round whose update is aggregated, in its own count.
        due: when it replies to its request, in simulated time.
        queried: the last round with a query before it.
        failures: number of failures since its last update.
        excused: whether one loss of its state since its last update was not counted.
        ended_task: whether its last update ended a task, which is not tested yet.
        given_up: why it gets no more requests; empty while it gets some.
        idle_since: when its last request ended, in seconds of this process.
    """

    done: int
    due: float = 0.0
    queried: int = 0
    failures: int = 0
    excused: bool = False
    ended_task: bool = False
    given_up: str = ""
    idle_since: float = field(default_factory=time.monotonic)

    def to_json(self) -> dict[str, Any]:
        """Turn the progress into a table for a checkpoint."""
        table = asdict(self)
        del table["idle_since"]
        return table


class AsyncLoop(Loop):
    """Asks each client for its next round as soon as it has answered.

    It counts updates in place of rounds. A client that fails is asked again, and given
    up after ``max_attempts`` failures in a row.
    """

    def __init__(
        self, run: FederatedRun, evaluate_fn: EvaluateFn | None = None
    ) -> None:
        """Take up a run; see `Loop`."""
        super().__init__(run, evaluate_fn)
        self._mailbox = Mailbox(self._transport, run.timeout)
        self._clients = {
            client: ClientProgress(max(self._server.stages.last_round(client), before))
            for client in range(self._schedule.clients)
            for before in [self._schedule.rounds_before(client)]
        }
        self._pending: dict[int, PendingRequest] = {}
        self._failures: dict[int, str] = {}  # since the last update

    @override
    def _run_rounds(self) -> None:
        inbox = dict[int, Reply]()
        if again := self._pending_before() + self._tests():
            self._mailbox.send(again)
        while self._unfinished():
            self._ask_idle_clients()
            replies = self._mailbox.collect()
            inbox |= {self._registry.client(reply.node): reply for reply in replies}
            client = self._next_client(inbox)
            if client is None:
                self._mailbox.pause()
                continue
            self._use(client, inbox.pop(client))
            for request in self._tests():
                self._mailbox.send([request])
        given_up = {c: p.given_up for c, p in self._clients.items() if p.given_up}
        self._server.recorder.note_failures(given_up)
        finished = [c for c, p in self._clients.items() if self._at_end(p)]
        needed = self._section.updates_needed(self._schedule.clients)
        if len(finished) < needed:
            raise RoundError(
                f"{len(finished)} clients came to the end of their tasks, {needed} "
                f"needed; given up: {given_up}"
            )
        self._evaluate_finished(finished)

    def _at_end(self, progress: ClientProgress) -> bool:
        return progress.done >= self._schedule.num_rounds

    def _unfinished(self) -> list[int]:
        return [
            client
            for client, progress in self._clients.items()
            if client in self._pending
            or not (
                self._at_end(progress)
                or progress.failures >= self._section.max_attempts
            )
        ]

    # ---- requests

    def _ask_idle_clients(self) -> None:
        connected = self._registry.refresh()
        now = time.monotonic()
        requests = []
        for client in self._unfinished():
            if client in self._pending:
                continue
            if client in connected:
                requests.append(self._next_request(client))
            elif now - self._clients[client].idle_since > self._run.timeout:
                self._fail(client, self._registry.why_absent(client))
        for request in requests:
            self._mailbox.send([request])  # one by one, as each may block

    def _next_request(self, client: int) -> Request:
        server, schedule, clock = self._server, self._schedule, self._clock
        progress = self._clients[client]
        if progress.ended_task:  # it was away when it was to be tested
            return self._test(client)
        own = server.stages.stage_for(client, schedule.stage(progress.done + 1, client))
        stage = replace(own, round=server.done + 1)
        if progress.queried < own.round:
            progress.queried = own.round
            query = server.query_request(client, stage, own)
            if query is not None:
                return self._note(client, query, clock.now)
        tested = server.evaluates_after_training and own.ends_task
        tasks = schedule.evaluated(own.round, client) if tested else 0
        sent = server.train_request(client, stage, tasks=tasks, client_stage=own)
        return self._note(client, sent, clock.now + clock.duration(client))

    def _tests(self) -> list[Request]:
        return [
            self._test(client)
            for client, progress in self._clients.items()
            if progress.ended_task and client in self._registry.clients
        ]

    def _test(self, client: int) -> Request:
        progress, schedule = self._clients[client], self._schedule
        progress.ended_task = False
        stage = schedule.stage(progress.done, client)
        tasks = schedule.evaluated(progress.done, client)
        sent = self._server.evaluate_request(client, stage, tasks)
        return self._note(client, sent, self._clock.now)

    def _note(self, client: int, sent: Sent, due: float) -> Request:
        self._clients[client].due = due
        self._pending[client] = sent.pending
        return sent.request

    # ---- replies

    def _next_client(self, inbox: Mapping[int, Reply]) -> int | None:
        if not self._clock.enabled:
            return next(iter(inbox), None)
        due = {client: self._clients[client].due for client in self._pending}
        client = min(due, key=lambda c: (due[c], c), default=None)
        return client if client in inbox else None

    def _use(self, client: int, reply: Reply) -> None:
        progress = self._clients[client]
        self._clock.now = max(self._clock.now, progress.due)
        asked = self._pending.pop(client)
        progress.idle_since = time.monotonic()
        received = self._server.receive([reply])
        if asked.kind == SURVEY:
            self._server.aggregate_query(received.query_replies)
            for failed, why in received.failures.items():
                self._failures[failed] = f"query: {why}"
        elif asked.kind == EVALUATE:
            self._record_scores(self._server.done, received)
        else:
            self._aggregate_update(client, received)

    def _aggregate_update(self, client: int, received: Replies) -> None:
        server, number = self._server, self._server.done + 1
        for failed, why in received.failures.items():
            self._fail(failed, why, excused=failed in received.state_lost)
        update = received.updates.get(client)
        if update is not None:
            progress = self._clients[client]
            stage = self._schedule.stage(progress.done + 1, client)
            progress.done += 1
            progress.failures, progress.excused = 0, False
            progress.ended_task = stage.ends_task and not server.predicts_locally
        # Before the checkpoint: the scores with an update are not asked for again.
        if server.predicts_locally:
            self._record_scores(number, received)
        elif received.scores:
            task = self._task_of(received)
            server.record_before_aggregation(number, task, received.scores)
        if update is not None:
            self._aggregate(client, update)
            self._note_model()
            metrics = train_metrics(received.updates)
            self._result.train_metrics[number] = metrics
            self._evaluate_centrally()

    def _aggregate(self, client: int, update: Update) -> None:
        server, asked = self._server, update.stage
        assert asked is not None  # Server.receive sets it
        number = server.done + 1
        staleness = number - asked.round
        section = self._run.config.asynchronous
        weight = section.mixing * (1 + staleness) ** -section.staleness_exponent
        stage = replace(asked, round=number)
        server.aggregate(stage, {client: update}, weight)
        timing = {"staleness": float(staleness), "weight": weight}
        if self._clock.enabled:
            timing["clock"] = self._clock.now
        progress = {c: p.to_json() for c, p in self._clients.items()}
        server.close_round(
            stage,
            {client: update},
            self._failures,
            timing,
            pending=PendingRequests(dict(self._pending), progress),
        )
        log(INFO, "update %d: client %d, task %d", number, client, asked.task)
        self._failures = {}
        server.report_progress(number, 0, self._pending)

    def _fail(self, client: int, why: str, *, excused: bool = False) -> None:
        progress = self._clients[client]
        progress.idle_since = time.monotonic()
        self._failures[client] = why
        if excused and not progress.excused:
            progress.excused = True
            return
        progress.failures += 1
        if progress.failures >= self._section.max_attempts:
            log(WARNING, "client %d: %d failures, given up", client, progress.failures)
            progress.given_up = why

    def _record_scores(self, number: int, received: Replies) -> None:
        for client, why in received.score_failures.items():
            self._failures[client] = f"evaluation: {why}"
        if received.scores:
            task = self._task_of(received)
            self._server.record_evaluation(number, task, received.scores)
            metrics = evaluate_metrics(received.scores)
            self._result.evaluate_metrics[number] = metrics

    def _task_of(self, received: Replies) -> int:
        (task,) = {
            self._schedule.task(self._clients[client].done)
            for client in received.scores
        }
        return task

    # ---- beginning and end

    def _pending_before(self) -> list[Request]:
        server, earlier = self._server, self._server.pending
        if earlier is None:
            return []
        earlier = earlier.without(earlier.requests.keys() - set(self._registry.clients))
        for client, progress in earlier.progress.items():
            self._clients[client] = ClientProgress(**progress)
        self._pending = dict(earlier.requests)
        return [server.ask_again(c, asked) for c, asked in self._pending.items()]

    def _evaluate_finished(self, finished: list[int]) -> None:
        server, last = self._server, self._schedule.num_rounds
        if server.predicts_locally:
            return
        asked = [
            server.evaluate_request(
                client,
                self._schedule.stage(last, client),
                self._schedule.evaluated(last, client),
            ).request
            for client in self._registry.clients
            if client in finished
        ]
        replies = ask(self._mailbox, asked, wait_for_all)
        self._record_scores(server.done, server.receive(replies))
