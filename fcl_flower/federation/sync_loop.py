"""The synchronous loop: rounds in which all participants train at the same time."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from logging import INFO, WARNING

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from typing_extensions import override

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import BudgetError, RoundError
from fcl_flower.core.failures import BUSY
from fcl_flower.core.types import Evaluation, TaskStage, Update
from fcl_flower.federation import mailbox, pacing
from fcl_flower.federation.loop import EvaluateFn, FederatedStrategy
from fcl_flower.federation.messages import (
    evaluate_metrics,
    to_array_record,
    train_metrics,
)
from fcl_flower.federation.pacing import Quorum
from fcl_flower.flower.identity import log

POLL_SECONDS = 0.1


class SynchronousStrategy(FederatedStrategy):
    """A Flower strategy for an algorithm of ours, in rounds.

    Clients may vanish, return and join late: a round asks those of its participants
    that are connected, and is tried again where too few of them answer. With a quorum
    neither training nor test waits for the others; who was late is not asked while it
    is busy, and less often if its update is late again.
    """

    def __init__(self, config: RunConfig) -> None:
        """Prepare a strategy; nothing is loaded before `start`."""
        super().__init__(config)
        self._stages: dict[int, TaskStage] = {}
        self._updates: dict[int, Update] = {}
        self._scores: dict[int, Evaluation] = {}
        self._score_failures: dict[int, str] = {}
        self._failures: dict[int, str] = {}
        self._state_lost = frozenset[int]()
        section = config.federation
        self._quorum = Quorum(
            section.quorum, section.deadline_factor, self._min_updates
        )
        self._late: dict[int, float] = {}
        self._busy = set[int]()

    @override
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return one message for each connected participant of the round.

        Args:
            server_round: counted from 1.
            arrays: what `aggregate_train` returned last; the messages are made of the
                server's state, which holds more.
            config: empty.
            grid: not asked, since the clients are known.

        Raises:
            BudgetError: the round would exceed the privacy budget.
        """
        if self.run.ledger is not None:
            self.run.ledger.ask(server_round, self._stages)
        tasks = self._tasks_beside_update(server_round)
        return [
            self.run.server.train_request(client, stage, tasks=tasks)
            for client, stage in self._stages.items()
        ]

    @override
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Aggregate the usable updates.

        Returns:
            The global model, empty if there is none; mean loss and number of clients.

        Raises:
            RoundError: there are too few updates.
            BudgetError: what they would cost exceeds the privacy budget.
        """
        server, schedule = self.run.server, self.run.schedule
        stage = schedule.stage(server_round)
        received = server.receive(replies)
        self._updates = received.updates
        self._scores = received.scores if server.predicts_locally else {}
        self._failures |= received.failures
        self._score_failures = received.score_failures
        self._state_lost = received.state_lost
        if len(self._updates) < self._min_updates:
            raise RoundError(
                f"round {server_round}: {len(self._updates)} usable replies, "
                f"{self._min_updates} needed; left out: {self._failures}"
            )
        if self.run.ledger is not None:
            self.run.ledger.aggregate(server_round, self._updates)
        if received.scores and not server.predicts_locally:
            server.record_before_aggregation(server_round, stage.task, received.scores)
        server.aggregate(stage, self._updates)
        metrics = train_metrics(self._updates)
        # The record needs their scalars alone.
        self._updates = {c: replace(u, payload={}) for c, u in self._updates.items()}
        log(
            INFO,
            "round %d of %d, task %d: %d clients, loss %.4f",
            server_round,
            schedule.num_rounds,
            stage.task,
            len(self._updates),
            metrics["loss"],
        )
        return to_array_record(server.global_model), metrics

    @override
    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return one message for each connected client without scores yet.

        Args:
            server_round: counted from 1.
            arrays: see `configure_train`.
            config: empty.
            grid: not asked, since the clients are known.
        """
        schedule, server = self.run.schedule, self.run.server
        if not schedule.evaluates(server_round):
            return []
        tasks = schedule.evaluated(server_round)
        return [
            server.evaluate_request(client, schedule.stage(server_round, client), tasks)
            for client in server.refresh_clients()
            if client not in (self._scores.keys() | self._late.keys() | self._busy)
        ]

    @override
    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Record every client's test accuracies.

        Returns:
            Their means over clients, ``accuracy`` and by task; None without any.
        """
        received = self.run.server.receive(replies)
        scores = dict(sorted((self._scores | received.scores).items()))
        for client, why in (self._score_failures | received.score_failures).items():
            if client not in scores:
                self._failures.setdefault(client, f"evaluation: {why}")
        if not scores:
            return None
        task = self.run.schedule.task(server_round)
        self.run.server.record_evaluation(server_round, task, scores)
        metrics = evaluate_metrics(scores)
        log(INFO, "task %d: test accuracy %.3f", task, metrics["accuracy"])
        return metrics

    @override
    def _loop(
        self,
        grid: Grid,
        num_rounds: int,
        timeout: float,
        evaluate_fn: EvaluateFn | None,
    ) -> None:
        server, schedule, result = self.run.server, self.run.schedule, self._result
        self._mailbox = mailbox.Mailbox(grid, timeout)
        for number in range(server.done + 1, num_rounds + 1):
            try:
                self._train(grid, number, timeout)
            except BudgetError as spent:
                log(WARNING, "%s", spent)
                break
            length = self._of_updates().closes_at(*self._simulated())
            asked = self.configure_evaluate(number, result.arrays, ConfigRecord(), grid)
            replies = self._ask(asked, number, self._quorum.closes_at)
            scores = self.aggregate_evaluate(number, replies)
            if scores is not None:
                result.evaluate_metrics_clientapp[number] = scores
            server.close_round(
                schedule.stage(number),
                self._updates,
                self._failures,
                self.run.clock.round(self._stages, length),
                late=self._late,
            )
            self._evaluate(number, evaluate_fn)

    def _train(self, grid: Grid, number: int, timeout: float) -> None:
        """Train and aggregate one round, in as many attempts as are allowed.

        An attempt does not count in which a client has lost its state, once each.
        """
        attempt, excused = 1, set[int]()
        self._state_lost = frozenset()
        while True:
            self._select_participants(number, timeout)
            self._query()
            try:
                self._agree_on_masks()
                asked = self.configure_train(
                    number, self._result.arrays, ConfigRecord(), grid
                )
                replies = self._ask(asked, number, self._of_updates().closes_at)
                replies = self._noting_late(self._in_simulated_time(asked, replies))
                arrays, metrics = self.aggregate_train(number, replies)
            except RoundError as error:
                if self._state_lost <= excused:
                    if attempt == self._max_attempts:
                        raise
                    attempt += 1
                excused |= self._state_lost
                log(WARNING, "%s; trying again: %d", error, attempt)
            else:
                self._result.arrays = arrays
                self._result.train_metrics_clientapp[number] = metrics
                return

    def _select_participants(self, number: int, timeout: float) -> None:
        """Note the stages of the round's participants that are connected."""
        server, schedule = self.run.server, self.run.schedule
        lateness, clock = self.run.lateness, self.run.clock
        participants = set(schedule.participants(number))
        deadline = time.monotonic() + timeout
        while True:
            here = participants.intersection(server.refresh_clients())
            nodes = self._mailbox.busy()
            busy = {c for c in here if self.run.registry.node(c) in nodes}
            clock.now = pacing.free_at(lateness, clock.now, here, self._min_updates)
            busy |= pacing.busy(lateness, clock.now, here)
            if len(here - busy) >= self._min_updates or time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
        resting = pacing.resting(lateness, number, here - busy)
        if len(here - busy) - len(resting) < self._min_updates:
            resting = {}
        self._stages = {
            client: server.stage_for(client, schedule.stage(number, client))
            for client in sorted(here - busy - resting.keys())
        }
        self._failures = {
            **{c: self.run.registry.why_absent(c) for c in sorted(participants - here)},
            **dict.fromkeys(sorted(busy), BUSY),
            **resting,
        }
        self._late, self._busy = {}, busy

    def _query(self) -> None:
        """Ask what the algorithm wants to know before a task, if there is anything."""
        server = self.run.server
        queries = [server.query_request(c, stage) for c, stage in self._stages.items()]
        asked = [message for message in queries if message is not None]
        if asked:
            replies = mailbox.ask(self._mailbox, asked, self._quorum.closes_at)
            if not self._quorum.waits_for_all:  # else it is asked to train all the same
                replies = self._noting_late(replies)
            received = server.receive(replies)
            server.aggregate_query(received.query_replies)
            for client, why in received.failures.items():
                self._failures[client] = f"query: {why}"
            self._stages = {
                client: stage
                for client, stage in self._stages.items()
                if client in server.clients and client not in self._late
            }

    def _agree_on_masks(self) -> None:
        """With secure aggregation leave out those who have agreed on no masks."""
        for client, why in self.run.agree_on_masks(sorted(self._stages)).items():
            self._failures[client] = why
            del self._stages[client]

    def _of_updates(self) -> Quorum:
        """Return the rule for updates, of which a sum under masks needs its own."""
        section = self._config.federation
        if not section.secure_aggregation:
            return self._quorum
        needed = section.sum_threshold(len(self._stages))
        return replace(self._quorum, least=max(self._min_updates, needed))

    def _in_simulated_time(
        self, asked: list[Message], replies: Iterable[Message]
    ) -> Iterator[Message]:
        """Yield the replies of a round, those late in simulated time left out."""
        length = self._of_updates().closes_at(*self._simulated())
        questions = {message.metadata.dst_node_id: message for message in asked}
        for reply in replies:
            if self.run.clock.duration(self.run.server.client(reply)) > length:
                yield mailbox.late_answer(questions[reply.metadata.src_node_id])
            else:
                yield reply

    def _simulated(self) -> tuple[list[float], int]:
        """Return how long each client trains in simulated time, and how many do."""
        return list(map(self.run.clock.duration, self._stages)), len(self._stages)

    def _noting_late(self, replies: Iterable[Message]) -> Iterator[Message]:
        """Note who was late, and when it is ready again."""
        clock = self.run.clock
        for reply in replies:
            if mailbox.is_late(reply):
                client = self.run.server.client(reply)
                self._late[client] = clock.now + clock.duration(client)
            yield reply

    def _ask(
        self, asked: list[Message], number: int, closes_at: mailbox.Closing
    ) -> Iterator[Message]:
        """Yield one reply to each message as it arrives; report the progress."""
        server, of_node = self.run.server, self.run.registry.client
        working = {of_node(message.metadata.dst_node_id) for message in asked}
        if asked:
            server.report_progress(number, len(asked), working)
        replies = mailbox.ask(self._mailbox, asked, closes_at)
        for reply in replies:
            working.discard(server.client(reply))
            server.report_progress(number, len(asked), working)
            yield reply

    def _tasks_beside_update(self, server_round: int) -> int:
        """Return how many accuracies come with the updates of a round; 0 for none.

        Private state does not change between a client's training and its test.
        """
        schedule, server = self.run.schedule, self.run.server
        if server.evaluates_after_training and schedule.evaluates(server_round):
            return schedule.evaluated(server_round)
        return 0
