"""The synchronous loop: rounds in which all participants train at the same time."""

import math
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from logging import INFO, WARNING

from typing_extensions import override

from fcl_flower.core.errors import BudgetError, RoundError, StatesLostError
from fcl_flower.core.failures import BUSY, told
from fcl_flower.core.log import log
from fcl_flower.core.schedule import stagnates
from fcl_flower.core.types import Evaluation, TaskStage, Update
from fcl_flower.rounds import mailbox, pacing
from fcl_flower.rounds.loop import EvaluateFn, Loop
from fcl_flower.rounds.messages import evaluate_metrics, train_metrics
from fcl_flower.rounds.pacing import Quorum
from fcl_flower.rounds.prepare import FederatedRun
from fcl_flower.rounds.transport import Reply, Request


class SyncLoop(Loop):
    """Runs rounds of training, aggregation and, after a task, tests.

    Clients may vanish, return and join late. A round asks its connected participants,
    and is tried again if too few of them answer. With a quorum neither training nor
    test waits for the other clients. A late client is not asked while it is busy, and
    less often if its update is late again.
    """

    def __init__(
        self, run: FederatedRun, evaluate_fn: EvaluateFn | None = None
    ) -> None:
        """Take up a run; see `Loop`."""
        super().__init__(run, evaluate_fn)
        section = self._section
        self._quorum = Quorum(section.quorum, section.deadline_factor)
        self._mailbox = mailbox.Mailbox(self._transport, run.timeout)
        # Of the round under way, by client:
        self._stages: dict[int, TaskStage] = {}
        self._updates: dict[int, Update] = {}
        self._scores: dict[int, Evaluation] = {}
        self._score_failures: dict[int, str] = {}
        self._failures: dict[int, str] = {}
        self._late: dict[int, float] = {}
        self._state_lost = frozenset[int]()
        self._busy = set[int]()
        # Clients that have been connected, and until when rounds wait for missing ones:
        self._met = set[int]()
        self._awaited: dict[int, float] = {}

    @override
    def _run_rounds(self) -> None:
        server = self._server
        self._end_early()  # killed between a round and this
        while (number := server.done + 1) <= self._schedule.num_rounds:
            try:
                self._train(number)
            except BudgetError as spent:
                log(WARNING, "%s", spent)
                break
            length = self._update_quorum().closes_at(*self._durations())
            self._evaluate(number)
            server.close_round(
                self._schedule.stage(number),
                self._updates,
                self._failures,
                self._clock.round(self._stages, length),
                late=self._late,
            )
            self._evaluate_centrally()
            self._end_early()

    def _end_early(self) -> None:
        """Let the current task end with the next round if its loss stagnates."""
        done, plan, patience = self._server.done, self._schedule, self._section.patience
        if not (patience and done):
            return
        task = plan.task(done)
        losses = self._server.valid_losses[plan.end(task - 1) : done]
        if done + 1 < plan.end(task) and stagnates(losses, patience):
            self._schedule = plan.closed_after(done)
            log(
                INFO,
                "task %d: no lower validation loss in %d rounds, ends with round %d",
                task,
                patience,
                done + 1,
            )
            self._server.recorder.replan(done, self._schedule.rounds_by_task)

    # ---- training

    def _train(self, number: int) -> None:
        # An attempt does not count if a client loses its state for the first time.
        attempt, excused = 1, set[int]()
        self._state_lost = frozenset()
        while True:
            self._select_participants(number)
            self._agree_on_classes(number)
            self._query()
            try:
                self._agree_on_masks()
                asked = self._train_requests(number)
                replies = self._ask(asked, number, self._update_quorum().closes_at)
                replies = self._note_late(self._in_simulated_time(asked, replies))
                self._aggregate(number, replies)
            except StatesLostError:
                raise
            except RoundError as error:
                if self._state_lost <= excused:
                    if attempt == self._section.max_attempts:
                        raise
                    attempt += 1
                excused |= self._state_lost
                log(WARNING, "%s; trying again: %d", error, attempt)
            else:
                return

    def _select_participants(self, number: int) -> None:
        lateness, clock = self._server.recorder.record.lateness, self._clock
        participants = set(self._schedule.participants(number))
        needed = self._section.updates_needed(len(participants))
        self._quorum = replace(self._quorum, least=needed)
        deadline = time.monotonic() + self._run.timeout
        while True:
            here = participants.intersection(self._registry.refresh())
            nodes = self._mailbox.busy()
            busy = {c for c in here if self._registry.node(c) in nodes}
            clock.now = pacing.next_free_time(lateness, clock.now, here, needed)
            busy |= pacing.busy(lateness, clock.now, here)
            awaited = self._waits_for(participants - here, here)
            enough = len(here - busy) >= needed and not awaited
            if enough or time.monotonic() > deadline:
                break
            self._mailbox.pause()
        backing_off = pacing.backing_off(lateness, number, here - busy)
        if len(here - busy) - len(backing_off) < needed:
            backing_off = {}
        self._stages = {
            client: self._server.stages.stage_for(
                client, self._schedule.stage(number, client)
            )
            for client in sorted(here - busy - backing_off.keys())
        }
        self._failures = {
            **{c: self._registry.why_absent(c) for c in sorted(participants - here)},
            **dict.fromkeys(sorted(busy), BUSY),
            **backing_off,
        }
        self._late, self._busy = {}, busy

    def _waits_for(self, missing: set[int], here: set[int]) -> bool:
        """Tell whether a missing client may return; each has one time of grace."""
        self._met |= here
        for client in here & self._awaited.keys():
            del self._awaited[client]
        now, grace = time.monotonic(), self._section.grace
        for client in sorted(missing & self._met - self._awaited.keys()):
            self._awaited[client] = now + grace
            if grace:
                log(INFO, "waiting up to %g s for client %d to return", grace, client)
        return any(now < self._awaited.get(client, 0.0) for client in missing)

    def _agree_on_classes(self, number: int) -> None:
        schedule = self._schedule
        stages = {
            client: schedule.stage(number, client)
            for client in self._registry.clients
            if schedule.has_joined(client, number)
            and schedule.task(number) in schedule.own_tasks(client)
        }
        self._failures |= self._run.agree_on_classes(stages)
        self._leave_out(self._failures)

    def _query(self) -> None:
        server = self._server
        queries = [server.query_request(c, stage) for c, stage in self._stages.items()]
        asked = [sent.request for sent in queries if sent is not None]
        if not asked:
            return
        replies = mailbox.ask(self._mailbox, asked, self._quorum.closes_at)
        if not self._quorum.waits_for_all:  # else the client trains without the query
            replies = self._note_late(replies)
        received = server.receive(replies)
        server.aggregate_query(received.query_replies)
        for client, why in received.failures.items():
            self._failures[client] = f"query: {why}"
        self._leave_out(self._late)

    def _leave_out(self, clients: Collection[int]) -> None:
        """Leave some clients out of the round, and all that are not connected."""
        connected = self._registry.clients
        self._stages = {
            client: stage
            for client, stage in self._stages.items()
            if client in connected and client not in clients
        }

    def _agree_on_masks(self) -> None:
        for client, why in self._run.agree_on_masks(sorted(self._stages)).items():
            self._failures[client] = why
            del self._stages[client]

    def _train_requests(self, number: int) -> list[Request]:
        server, schedule = self._server, self._schedule
        if self._run.ledger is not None:
            self._run.ledger.ask(number, self._stages)
        # Private state does not change between a client's training and its test.
        tested = server.evaluates_after_training and schedule.evaluates(number)
        tasks = {c: schedule.evaluated(number, c) * tested for c in self._stages}
        return [
            server.train_request(client, stage, tasks=tasks[client]).request
            for client, stage in self._stages.items()
        ]

    def _aggregate(self, number: int, replies: Iterable[Reply]) -> None:
        server, stage = self._server, self._schedule.stage(number)
        received = server.receive(replies)
        self._updates = received.updates
        self._scores = received.scores if server.predicts_locally else {}
        self._failures |= received.failures
        self._score_failures = received.score_failures
        self._state_lost = received.state_lost
        if len(self._updates) < self._quorum.least:
            raise RoundError(
                f"round {number}: {len(self._updates)} usable replies, "
                f"{self._quorum.least} needed; left out: {told(self._failures)}"
            )
        if self._run.ledger is not None:
            self._run.ledger.aggregate(number, self._updates)
        if received.scores and not server.predicts_locally:
            server.record_before_aggregation(number, stage.task, received.scores)
        server.aggregate(stage, self._updates)
        metrics = train_metrics(self._updates)
        # The record needs only their scalars.
        self._updates = {c: replace(u, payload={}) for c, u in self._updates.items()}
        loss = metrics["loss"]
        has_loss = not math.isnan(loss)
        log(
            INFO,
            "round %d of %d, task %d: %d clients%s",
            number,
            self._schedule.num_rounds,
            stage.task,
            len(self._updates),
            # A method that solves equations in place of training has no loss.
            f", loss {loss:.4f}" if has_loss else "",
        )
        self._note_model()
        self._result.train_metrics[number] = metrics

    # ---- tests

    def _evaluate(self, number: int) -> None:
        server, schedule = self._server, self._schedule
        asked: list[Request] = []
        if schedule.evaluates(number) or self._sends_models(number):
            out = self._scores.keys() | self._late.keys() | self._busy
            for client in self._registry.refresh():
                tasks = schedule.evaluated(number, client)
                there = tasks > 0 and schedule.has_joined(client, number)
                if there and client not in out:
                    stage = schedule.stage(number, client)
                    tasks = tasks if schedule.scores else 0
                    asked += [server.evaluate_request(client, stage, tasks).request]
        received = server.receive(self._ask(asked, number, self._quorum.closes_at))
        scores = dict(sorted((self._scores | received.scores).items()))
        for client, why in (self._score_failures | received.score_failures).items():
            if client not in scores:
                self._failures.setdefault(client, f"evaluation: {why}")
        if scores and schedule.scores:
            task = schedule.task(number)
            server.record_evaluation(number, task, scores)
            metrics = evaluate_metrics(scores)
            log(INFO, "task %d: test accuracy %.3f", task, metrics["accuracy"])
            self._result.evaluate_metrics[number] = metrics

    def _sends_models(self, number: int) -> bool:
        """Tell whether clients get the final models of a task without a test."""
        ends_task = self._schedule.stage(number).ends_task
        local = self._server.predicts_locally or self._transport.simulated
        return not self._schedule.scores and ends_task and not local

    # ---- time

    def _update_quorum(self) -> Quorum:
        if not self._section.secure_aggregation:
            return self._quorum
        needed = self._section.sum_threshold(len(self._stages))
        return replace(self._quorum, least=max(self._quorum.least, needed))

    def _in_simulated_time(
        self, asked: list[Request], replies: Iterable[Reply]
    ) -> Iterator[Reply]:
        length = self._update_quorum().closes_at(*self._durations())
        requests = {request.node: request for request in asked}
        for reply in replies:
            if self._clock.duration(self._registry.client(reply.node)) > length:
                yield mailbox.late_answer(requests[reply.node])
            else:
                yield reply

    def _durations(self) -> tuple[list[float], int]:
        return list(map(self._clock.duration, self._stages)), len(self._stages)

    def _note_late(self, replies: Iterable[Reply]) -> Iterator[Reply]:
        for reply in replies:
            if mailbox.is_late(reply):
                client = self._registry.client(reply.node)
                self._late[client] = self._clock.now + self._clock.duration(client)
            yield reply

    def _ask(
        self, asked: list[Request], number: int, closes_at: mailbox.Deadline
    ) -> Iterator[Reply]:
        server = self._server
        working = {self._registry.client(request.node) for request in asked}
        if asked:
            server.report_progress(number, len(asked), working)
        for reply in mailbox.ask(self._mailbox, asked, closes_at):
            working.discard(self._registry.client(reply.node))
            server.report_progress(number, len(asked), working)
            yield reply
