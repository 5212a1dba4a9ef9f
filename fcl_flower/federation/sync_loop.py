"""The synchronous loop: it drives a `ServerStrategy` over Flower's grid."""

import time
from collections.abc import Callable, Iterable
from logging import INFO, WARNING

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerBase
from typing_extensions import override

from fcl_flower.core.errors import RoundError
from fcl_flower.core.schedule import Schedule
from fcl_flower.core.types import Evaluation, TaskStage, Update
from fcl_flower.federation.server import FORGOTTEN, Server
from fcl_flower.federation.simulated_clock import SimulatedClock
from fcl_flower.federation.transport.mailbox import send_and_wait

POLL_SECONDS = 0.1


class SynchronousStrategy(FlowerBase):
    """A Flower strategy that speaks for one of ours.

    Clients may vanish, return and join late: a round asks those of its participants
    that are connected, and is tried again where too few of them answer.
    """

    def __init__(
        self,
        federation: Server,
        schedule: Schedule,
        clock: SimulatedClock,
        *,
        min_replies: int = 1,
        attempts: int = 1,
    ) -> None:
        """Prepare a run.

        Args:
            federation: the algorithm and its clients; `Server.begin` or
                `Server.resume` has been called.
            schedule: which rounds belong to which task, and who takes part.
            clock: how long clients take, where that is planted.
            min_replies: usable replies that a round needs.
            attempts: how often a round is tried before the run ends.
        """
        self._federation = federation
        self._schedule = schedule
        self._clock = clock
        self._min_replies = min_replies
        self._attempts = attempts
        self._stages: dict[int, TaskStage] = {}
        self._updates: dict[int, Update] = {}
        self._scores: dict[int, Evaluation] = {}
        self._failed: dict[int, str] = {}

    @override
    def summary(self) -> None:
        """Log who takes part in what."""
        log(
            INFO,
            "%s: %d clients, %d tasks of %d rounds",
            type(self._federation.strategy).__name__,
            self._schedule.clients,
            self._schedule.tasks,
            self._schedule.rounds_per_task,
        )

    @override
    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds up to ``num_rounds`` that are not done yet.

        Args:
            grid: connects to the nodes.
            initial_arrays: not used; the federation has its state.
            num_rounds: of the whole run.
            timeout: seconds to wait for the replies of a round.
            train_config: not used; a stage travels instead.
            evaluate_config: not used.
            evaluate_fn: not used; tests belong to the clients.

        Raises:
            RoundError: a round brought fewer usable replies than needed, as often as
                it was tried.
        """
        self.summary()
        federation, config, result = self._federation, ConfigRecord(), Result()
        for number in range(federation.done + 1, num_rounds + 1):
            metrics = self._trained(grid, number, initial_arrays, timeout)
            result.train_metrics_clientapp[number] = metrics
            asked = self.configure_evaluate(number, initial_arrays, config, grid)
            replies = self._ask(grid, asked, number, timeout)
            scores = self.aggregate_evaluate(number, replies)
            if scores is not None:
                result.evaluate_metrics_clientapp[number] = scores
            federation.close_round(
                self._schedule.task(number),
                self._updates,
                self._failed,
                federation.diagnostics(self._schedule.stage(number)),
                self._clock.round(self._stages),
            )
        return result

    @override
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message for each connected client that takes part."""
        tested = self._tested(server_round)
        return [
            self._federation.training(client, stage, evaluate=tested)
            for client, stage in self._stages.items()
        ]

    @override
    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message for each client whose scores are not there yet."""
        if not self._schedule.evaluates(server_round):
            return []
        federation = self._federation
        federation.registry.refresh()
        return [
            federation.evaluation(client, self._schedule.stage(server_round, client))
            for client in federation.registry.clients
            if client not in self._scores
        ]

    @override
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold the usable updates into the state; say who was left out, and why.

        Raises:
            RoundError: there are too few.
        """
        federation, answers = self._federation, list(replies)
        stage = self._schedule.stage(server_round)
        self._updates, failed = federation.open(answers, federation.update)
        self._failed |= failed
        if len(self._updates) < self._min_replies:
            raise RoundError(
                f"round {server_round}: {len(self._updates)} usable replies, "
                f"{self._min_replies} needed; left out: {self._failed}"
            )
        if self._tested(server_round):
            used = [r for r in answers if federation.client(r) in self._updates]
            self._scores, _ = federation.scores(
                used, self._schedule.evaluated(server_round), counted=True
            )
        federation.state = federation.strategy.aggregate_train(
            federation.state, stage, self._updates
        )
        told = [update.metrics for update in self._updates.values()]
        losses = [metrics["loss"] for metrics in told if "loss" in metrics]
        loss = sum(losses) / len(losses) if losses else float("nan")
        log(
            INFO,
            "round %d of %d, task %d: %d clients, loss %.4f",
            server_round,
            self._schedule.num_rounds,
            stage.task + 1,
            len(self._updates),
            loss,
        )
        return None, MetricRecord({"loss": loss, "clients": len(self._updates)})

    @override
    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Record every client's accuracies; return their mean by task."""
        tasks = self._schedule.evaluated(server_round)
        scores, failed = self._federation.scores(replies, tasks)
        for client, why in failed.items():
            self._failed.setdefault(client, f"evaluation: {why}")
        scores = dict(sorted((self._scores | scores).items()))
        if not scores:
            return None
        task = self._schedule.task(server_round)
        self._federation.recorder.record_evaluation(server_round, task, scores)
        rows = [found.accuracy for found in scores.values()]
        means = [sum(column) / len(column) for column in zip(*rows, strict=True)]
        log(INFO, "accuracy by task: %s", " ".join(f"{mean:.3f}" for mean in means))
        return MetricRecord({f"task-{i}": mean for i, mean in enumerate(means)})

    def _trained(
        self, grid: Grid, number: int, arrays: ArrayRecord, timeout: float
    ) -> MetricRecord:
        """Train and aggregate one round, as often as it takes.

        An attempt does not count in which a client found its memory gone, once each.
        """
        attempt, excused = 1, set[int]()
        while True:
            self._meet(number, timeout)
            self._survey(grid, number, timeout)
            asked = self.configure_train(number, arrays, ConfigRecord(), grid)
            replies = self._ask(grid, asked, number, timeout)
            try:
                _, metrics = self.aggregate_train(number, replies)
            except RoundError as error:
                forgot = {c for c, why in self._failed.items() if why == FORGOTTEN}
                if forgot <= excused:
                    if attempt == self._attempts:
                        raise
                    attempt += 1
                excused |= forgot
                log(WARNING, "%s; trying again: %d", error, attempt)
            else:
                return metrics or MetricRecord()

    def _meet(self, number: int, timeout: float) -> None:
        """Note who takes part: of the round's participants those that are connected."""
        roster, participants = self._federation.registry, self._schedule.participants
        deadline = time.monotonic() + timeout
        while True:
            roster.refresh()
            here = set(roster.clients).intersection(participants(number))
            if len(here) >= self._min_replies or time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
        stage, begins = self._schedule.stage, self._federation.stage_for
        self._stages = {c: begins(c, stage(number, c)) for c in sorted(here)}
        absent = set(participants(number)).difference(here)
        self._failed = dict.fromkeys(sorted(absent), "is not connected")
        self._scores = {}

    def _survey(self, grid: Grid, number: int, timeout: float) -> None:
        """Ask what the algorithm wants to know before a task, if there is anything."""
        federation = self._federation
        questions = [
            federation.configure_query(c, stage) for c, stage in self._stages.items()
        ]
        asked = [message for message in questions if message is not None]
        if asked:
            replies = send_and_wait(grid, asked, timeout)
            self._failed |= federation.aggregate_query(replies, self._stages)

    def _ask(
        self, grid: Grid, messages: Iterable[Message], number: int, timeout: float
    ) -> list[Message]:
        """Return one answer for each message; tell the progress as they arrive."""
        asked, replies = list(messages), list[Message]()
        if asked:
            self._federation.recorder.progress(number, 0, len(asked))
        for reply in send_and_wait(grid, asked, timeout):
            replies.append(reply)
            self._federation.recorder.progress(number, len(replies), len(asked))
        return replies

    def _tested(self, server_round: int) -> bool:
        """Return whether clients are tested in the message that trains them.

        What a client keeps does not change between its training and its test.
        """
        personal = self._federation.strategy.evaluates_locally
        return personal and self._schedule.evaluates(server_round)
