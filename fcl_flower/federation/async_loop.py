"""The asynchronous loop: every client goes through its tasks at its own speed.

FedWeIT (Yoon et al., ICML 2021, figure 9) compares it with the synchronous one. Each
update is aggregated when it arrives: what the algorithm averages over clients moves
from x to (1 - w) x + w x', with x' what it makes of this update alone and
w = mixing * (1 + staleness) ** -exponent, the polynomial rule of FedAsync (Xie, Koyejo
and Gupta, 2019, https://arxiv.org/abs/1903.03934, section 5.2). Staleness counts the
updates of other clients that were aggregated while the client was busy.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from typing_extensions import override

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import RoundError
from fcl_flower.core.types import Update
from fcl_flower.federation.in_flight import InFlight, Question
from fcl_flower.federation.loop import EvaluateFn, FederatedStrategy
from fcl_flower.federation.mailbox import Mailbox, send_and_wait
from fcl_flower.federation.messages import (
    evaluate_metrics,
    to_array_record,
    train_metrics,
)
from fcl_flower.federation.replies import QUERY, Received
from fcl_flower.flower.identity import log


@dataclass
class ClientProgress:
    """How far one client is.

    Attributes:
        done: its last round whose update is aggregated, in its own count.
        due: when it replies to what it was asked, in simulated time.
        queried: the last round before which a query was made.
        failures: since its last update.
        excused: one loss of its state since its last update was not counted.
        ended_task: it shall be tested, as its last update ended a task.
        given_up: why it is asked no more; empty while it is.
        idle_since: since when nothing is asked of it, in seconds of this process.
    """

    done: int
    due: float = 0.0
    queried: int = 0
    failures: int = 0
    excused: bool = False
    ended_task: bool = False
    given_up: str = ""
    idle_since: float = field(default_factory=time.monotonic)

    def aggregated(self, *, shall_be_tested: bool) -> None:
        """Note that its next update is aggregated."""
        self.done += 1
        self.failures, self.excused = 0, False
        self.ended_task = shall_be_tested

    def to_notes(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of it."""
        notes = asdict(self)
        del notes["idle_since"]
        return notes

    @classmethod
    def of_notes(cls, notes: Mapping[str, Any]) -> "ClientProgress":
        """Return what `to_notes` was made of."""
        return cls(**notes)


class AsynchronousStrategy(FederatedStrategy):
    """A Flower strategy for an algorithm of ours, without rounds.

    Where Flower counts rounds, this counts updates. A client that fails is asked
    again, and given up after ``attempts`` failures in a row.
    """

    def __init__(self, config: RunConfig) -> None:
        """Prepare a strategy; nothing is loaded before `start`."""
        super().__init__(config)
        self._clients: dict[int, ClientProgress] = {}
        self._num_rounds = 0
        self._timeout = 0.0
        self._failures: dict[int, str] = {}
        self._questions: dict[int, Question] = {}

    @override
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the next message, a test, a query or a round, for idle clients.

        Args:
            server_round: the number of the next update.
            arrays: not read, as messages are made of the server's state.
            config: empty.
            grid: not asked, since the clients are known.
        """
        connected = self.run.server.refresh_clients()
        now = time.monotonic()
        messages = []
        for client in self._unfinished():
            if client in self._questions:
                continue
            if client in connected:
                messages.append(self._next_request(client))
            elif now - self._clients[client].idle_since > self._timeout:
                self._fail(client, self.run.registry.why_absent(client))
        return messages

    @override
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the update in a reply, and close the round that it is.

        Returns:
            The global model, empty if there is none, and the loss; or None twice.
        """
        server = self.run.server
        received = server.receive(replies)
        for client, why in received.failures.items():
            self._fail(client, why, excused=client in received.state_lost)
        for client in received.updates:
            progress = self._clients[client]
            stage = self.run.schedule.stage(progress.done + 1)
            tested = stage.ends_task and not server.predicts_locally
            progress.aggregated(shall_be_tested=tested)
        # Before the checkpoint: what came with an update is not asked for again.
        if server.predicts_locally:
            self._record_scores(server_round, received)
        elif received.scores:
            task = self._task_of(received)
            server.record_before_aggregation(server_round, task, received.scores)
        for client, update in received.updates.items():
            self._aggregate(client, update)
        if not received.updates:
            return None, None
        metrics = train_metrics(received.updates)
        return to_array_record(server.global_model), metrics

    @override
    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return a message for each connected client whose last update ended a task.

        Args:
            server_round: the number of the last update.
            arrays: see `configure_train`.
            config: empty.
            grid: not asked, since the clients are known.
        """
        return [
            self._evaluate_request(client)
            for client, progress in self._clients.items()
            if progress.ended_task and client in self.run.server.clients
        ]

    @override
    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Record the test accuracies of clients after a task of their own.

        Returns:
            Their means over clients, ``accuracy`` and by task; None without any.
        """
        return self._record_scores(server_round, self.run.server.receive(replies))

    @override
    def _loop(
        self,
        grid: Grid,
        num_rounds: int,
        timeout: float,
        evaluate_fn: EvaluateFn | None,
    ) -> None:
        server, result = self.run.server, self._result
        self._num_rounds, self._timeout = num_rounds, timeout
        mailbox, inbox = Mailbox(grid, timeout), dict[int, Message]()
        self._clients = {
            client: ClientProgress(server.last_round(client))
            for client in range(self.run.schedule.clients)
        }
        again = self._asked_before()
        again += self.configure_evaluate(
            server.done, result.arrays, ConfigRecord(), grid
        )
        if again:
            mailbox.send(again)
        while self._unfinished():
            for asked in self.configure_train(
                server.done + 1, result.arrays, ConfigRecord(), grid
            ):
                mailbox.send([asked])  # one by one, as each may block
            inbox |= {server.client(reply): reply for reply in mailbox.collect()}
            client = self._next_client(inbox)
            if client is None:
                mailbox.pause()
                continue
            self._take(client, inbox.pop(client), evaluate_fn)
            for asked in self.configure_evaluate(
                server.done, result.arrays, ConfigRecord(), grid
            ):
                mailbox.send([asked])
        given_up = {c: p.given_up for c, p in self._clients.items() if p.given_up}
        server.note_given_up(given_up)
        finished = sum(found.done >= num_rounds for found in self._clients.values())
        if finished < self._min_updates:
            raise RoundError(
                f"{finished} clients came to the end of their tasks, "
                f"{self._min_updates} needed; given up: {given_up}"
            )
        self._evaluate_finished(grid)

    def _unfinished(self) -> list[int]:
        """Return the clients that are neither at the end nor given up."""
        return [
            client
            for client, progress in self._clients.items()
            if client in self._questions
            or (
                progress.done < self._num_rounds
                and progress.failures < self._max_attempts
            )
        ]

    def _evaluate_request(self, client: int) -> Message:
        """Return the test of a client after a task of its own."""
        server, schedule = self.run.server, self.run.schedule
        progress = self._clients[client]
        progress.ended_task, progress.due = False, self.run.clock.now
        stage, tasks = schedule.stage(progress.done), schedule.evaluated(progress.done)
        message = server.evaluate_request(client, stage, tasks)
        self._questions[client] = Question.of(message, stage, tasks, server.made_of)
        return message

    def _next_request(self, client: int) -> Message:
        """Return a test, a query or a round of training for an idle client."""
        server, schedule, clock = self.run.server, self.run.schedule, self.run.clock
        progress = self._clients[client]
        if progress.ended_task:  # it was not there to be tested
            return self._evaluate_request(client)
        own = server.stage_for(client, schedule.stage(progress.done + 1))
        stage = replace(own, round=server.done + 1)
        if progress.queried < own.round:
            progress.queried = own.round
            query = server.query_request(client, stage, own)
            if query is not None:
                progress.due = clock.now
                self._questions[client] = Question.of(query, stage, 0, server.made_of)
                return query
        progress.due = clock.now + clock.duration(client)
        with_scores = server.evaluates_after_training and own.ends_task
        tasks = schedule.evaluated(own.round) if with_scores else 0
        message = server.train_request(client, stage, tasks=tasks, client_stage=own)
        self._questions[client] = Question.of(message, stage, tasks, server.made_of)
        return message

    def _next_client(self, inbox: dict[int, Message]) -> int | None:
        """Return whose reply is used next, None while it is not there."""
        if not self.run.clock.enabled:
            return next(iter(inbox), None)
        due = {client: self._clients[client].due for client in self._questions}
        client = min(due, key=lambda c: (due[c], c), default=None)
        return client if client in inbox else None

    def _take(
        self, client: int, reply: Message, evaluate_fn: EvaluateFn | None
    ) -> None:
        """Use a reply, whatever it replies to."""
        server, result, clock = self.run.server, self._result, self.run.clock
        progress = self._clients[client]
        clock.now = max(clock.now, progress.due)
        question = self._questions.pop(client)
        progress.idle_since = time.monotonic()
        if question.message_type == QUERY:
            self._aggregate_query(client, reply)
        elif question.message_type == MessageType.EVALUATE:
            self.aggregate_evaluate(server.done, [reply])
        else:
            arrays, metrics = self.aggregate_train(server.done + 1, [reply])
            if arrays is not None and metrics is not None:
                result.arrays = arrays
                result.train_metrics_clientapp[server.done] = metrics
                self._evaluate(server.done, evaluate_fn)

    def _aggregate_query(self, client: int, reply: Message) -> None:
        server = self.run.server
        received = server.receive([reply])
        server.aggregate_query(received.query_replies)
        for failed, why in received.failures.items():
            self._failures[failed] = f"query: {why}"

    def _aggregate(self, client: int, update: Update) -> None:
        """Move the state towards what the algorithm makes of one update."""
        server, clock, asked = self.run.server, self.run.clock, update.stage
        assert asked is not None  # Server.receive says what was asked for
        number = server.done + 1
        staleness = number - asked.round
        weight = (
            self._config.asynchronous.mixing
            * (1 + staleness) ** -self._config.asynchronous.staleness_exponent
        )
        stage = replace(asked, round=number)
        server.aggregate(stage, {client: update}, weight)
        timing = {"staleness": float(staleness), "weight": weight}
        if clock.enabled:
            timing["clock"] = clock.now
        self.run.checkpoint.in_flight = self._in_flight()
        server.close_round(stage, {client: update}, self._failures, timing)
        log(INFO, "update %d: client %d, task %d", number, client, asked.task)
        self._failures = {}
        server.report_progress(number, 0, self._questions)

    def _fail(self, client: int, why: str, *, excused: bool = False) -> None:
        """Count a failure; the first loss of a client's state is excused."""
        progress = self._clients[client]
        progress.idle_since = time.monotonic()
        self._failures[client] = why
        if excused and not progress.excused:
            progress.excused = True
            return
        progress.failures += 1
        if progress.failures >= self._max_attempts:
            log(WARNING, "client %d: %d failures, given up", client, progress.failures)
            progress.given_up = why

    def _in_flight(self) -> InFlight:
        """Return what a checkpoint has to know of this loop."""
        notes = {c: progress.to_notes() for c, progress in self._clients.items()}
        return InFlight(dict(self._questions), notes)

    def _asked_before(self) -> list[Message]:
        """Restore what a checkpoint knows; ask who is here the same again."""
        server, kept = self.run.server, self.run.checkpoint.in_flight
        if kept is None:
            return []
        kept = kept.without_questions(kept.questions.keys() - set(server.clients))
        self._clients |= {c: ClientProgress.of_notes(n) for c, n in kept.notes.items()}
        self._questions = dict(kept.questions)
        return [server.ask_again(c, asked) for c, asked in self._questions.items()]

    def _record_scores(
        self, server_round: int, received: Received
    ) -> MetricRecord | None:
        """Record test accuracies after the last task of each client."""
        server = self.run.server
        for client, why in received.score_failures.items():
            self._failures[client] = f"evaluation: {why}"
        if not received.scores:
            return None
        task = self._task_of(received)
        server.record_evaluation(server_round, task, received.scores)
        metrics = evaluate_metrics(received.scores)
        self._result.evaluate_metrics_clientapp[server_round] = metrics
        return metrics

    def _task_of(self, received: Received) -> int:
        """Return after which task there are scores: of one client, or of all alike."""
        (task,) = {
            self.run.schedule.task(self._clients[client].done)
            for client in received.scores
        }
        return task

    def _evaluate_finished(self, grid: Grid) -> None:
        """Score all clients with the final state, when the slowest has finished."""
        server, schedule = self.run.server, self.run.schedule
        if server.predicts_locally:
            return
        stage = schedule.stage(self._num_rounds)
        tasks = schedule.evaluated(self._num_rounds)
        asked = [
            server.evaluate_request(client, stage, tasks)
            for client in server.clients
            if self._clients[client].done >= self._num_rounds
        ]
        self.aggregate_evaluate(server.done, send_and_wait(grid, asked, self._timeout))
