"""The loop without rounds: every client goes through its tasks at its own pace.

FedWeIT (Yoon et al., ICML 2021, figure 9) compares it with the synchronous one. An
update is folded in as it comes: what the algorithm averages over clients moves from x
to (1 - w) x + w x', with x' what it makes of this update alone and
w = mixing * (1 + staleness) ** -exponent, the polynomial rule of FedAsync (Xie, Koyejo
and Gupta, 2019, https://arxiv.org/abs/1903.03934, section 5.2). Staleness counts the
updates of others that were folded in while the client was busy.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from logging import INFO, WARNING

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from typing_extensions import override

from fcl_flower.core.errors import RoundError
from fcl_flower.core.schedule import Schedule
from fcl_flower.core.types import Arrays, Payload, Update, group_kind
from fcl_flower.federation.server import Server
from fcl_flower.federation.simulated_clock import SimulatedClock
from fcl_flower.federation.sync_loop import SynchronousStrategy
from fcl_flower.federation.transport.mailbox import Mailbox, send_and_wait


@dataclass
class _Walk:
    """One client's way through its stream.

    Attributes:
        done: its last round whose update is folded in, counted by itself.
        waits_for: ``survey``, ``update`` or ``scores``; empty: for nothing.
        due: when it answers, in the clock's time.
        asked: the last round for which a survey was made.
        misses: failures since its last success.
        idle_since: since when nothing is asked of it, in seconds.
    """

    done: int
    waits_for: str = ""
    due: float = 0.0
    asked: int = 0
    misses: int = 0
    idle_since: float = 0.0


class AsynchronousStrategy(SynchronousStrategy):
    """Nobody waits for anybody; a client that fails is asked again."""

    def __init__(
        self,
        federation: Server,
        schedule: Schedule,
        clock: SimulatedClock,
        *,
        mixing: float,
        exponent: float,
        min_replies: int = 1,
        attempts: int = 1,
    ) -> None:
        """Prepare a run.

        Args:
            federation: see `SynchronousStrategy`.
            schedule: of each client by itself.
            clock: see `SynchronousStrategy`.
            mixing: w of an update without staleness, in (0, 1].
            exponent: how fast w falls with the staleness, at least 0.
            min_replies: clients that have to come to the end of their streams.
            attempts: how often a client may fail in a row before it is given up.
        """
        super().__init__(
            federation, schedule, clock, min_replies=min_replies, attempts=attempts
        )
        self._mixing = mixing
        self._exponent = exponent
        self._walks: dict[int, _Walk] = {}
        self._insights: dict[str, float] = {}
        self._given_up: dict[int, str] = {}

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
        """Lead every client through the ``num_rounds`` rounds of its own stream.

        Args:
            grid: connects to the nodes.
            initial_arrays: not used; the federation has its state.
            num_rounds: of each client.
            timeout: seconds to wait for an answer, or for a client to return.
            train_config: not used; a stage travels instead.
            evaluate_config: not used.
            evaluate_fn: not used; tests belong to the clients.

        Raises:
            RoundError: fewer clients than needed came to the end.
        """
        self.summary()
        federation, box = self._federation, Mailbox(grid, timeout)
        federation.registry.refresh()
        self._walks = {
            client: _Walk(federation.last_round(client), idle_since=time.monotonic())
            for client in range(self._schedule.clients)
        }
        inbox: dict[int, Message] = {}
        while underway := self._underway(num_rounds):
            federation.registry.refresh()
            self._send(box, underway, timeout)
            inbox |= {federation.client(answer): answer for answer in box.collect()}
            client = self._next(inbox)
            if client is None:
                box.pause()
            else:
                self._take(box, client, inbox.pop(client))
        finished = sum(walk.done >= num_rounds for walk in self._walks.values())
        if finished < self._min_replies:
            raise RoundError(
                f"{finished} clients came to the end of their tasks, "
                f"{self._min_replies} needed; given up: {self._given_up}"
            )
        self._test_everyone(grid, timeout)
        return Result()

    def _underway(self, num_rounds: int) -> list[int]:
        """Return the clients that are neither at the end nor given up."""
        return [
            client
            for client, walk in self._walks.items()
            if walk.waits_for
            or (walk.done < num_rounds and walk.misses < self._attempts)
        ]

    def _send(self, box: Mailbox, underway: Sequence[int], timeout: float) -> None:
        """Ask every client that is connected and has nothing to do."""
        connected = self._federation.registry.clients
        now = time.monotonic()
        for client in underway:
            walk = self._walks[client]
            if walk.waits_for:
                continue
            if client in connected:
                box.send([self._question(client)])
            elif now - walk.idle_since > timeout:
                self._miss(client, "is not connected")

    def _question(self, client: int) -> Message:
        """Return the next message for a client: a survey, or a round of training."""
        federation, walk = self._federation, self._walks[client]
        own = federation.stage_for(client, self._schedule.stage(walk.done + 1))
        stage = replace(own, round=federation.done + 1)
        if walk.asked < own.round:
            walk.asked = own.round
            survey = federation.configure_query(client, stage, own)
            if survey is not None:
                walk.waits_for, walk.due = "survey", self._clock.now
                return survey
        walk.waits_for = "update"
        walk.due = self._clock.now + self._clock.duration(client)
        tested = federation.strategy.evaluates_locally and own.ends_task
        return federation.training(client, stage, evaluate=tested, own=own)

    def _next(self, inbox: dict[int, Message]) -> int | None:
        """Return whose answer is taken now, None if it is not there yet."""
        if not self._clock.enabled:
            return next(iter(inbox), None)
        waiting = {c: walk.due for c, walk in self._walks.items() if walk.waits_for}
        client = min(waiting, key=lambda c: (waiting[c], c), default=None)
        return client if client in inbox else None

    def _take(self, box: Mailbox, client: int, answer: Message) -> None:
        """Use an answer, whatever it answers."""
        federation, walk = self._federation, self._walks[client]
        self._clock.now = max(self._clock.now, walk.due)
        kind_of_answer, walk.waits_for = walk.waits_for, ""
        walk.idle_since = time.monotonic()
        if kind_of_answer == "scores":
            self._score(client, walk.done, [answer])
            return
        own = self._schedule.stage(walk.done + 1)
        if kind_of_answer == "survey":
            stage = replace(own, round=federation.done + 1)
            self._failed |= federation.aggregate_query([answer], {client: stage})
            self._insights |= federation.diagnostics(stage)
        else:
            updates, failed = federation.open([answer], federation.update)
            if failed:
                self._miss(client, failed[client])
                return
            self._fold(client, updates[client])
            walk.done, walk.misses = own.round, 0
            if own.ends_task and federation.strategy.evaluates_locally:
                self._score(client, own.round, [answer], counted=True)
            elif own.ends_task and client in federation.registry.clients:
                walk.waits_for, walk.due = "scores", self._clock.now
                box.send([federation.evaluation(client, own)])

    def _miss(self, client: int, why: str) -> None:
        walk = self._walks[client]
        walk.misses += 1
        walk.idle_since = time.monotonic()
        self._failed[client] = why
        if walk.misses >= self._attempts:
            log(WARNING, "client %d is given up after %d failures", client, walk.misses)
            self._given_up[client] = why

    def _fold(self, client: int, update: Update) -> None:
        """Move the state towards what the algorithm makes of one update."""
        federation = self._federation
        number, asked = federation.done + 1, update.stage
        assert asked is not None  # Federation.update says where a client stood
        staleness = number - asked.round
        weight = self._mixing * (1 + staleness) ** -self._exponent
        stage = replace(asked, round=number)
        inner = federation.strategy
        after = inner.aggregate_train(federation.state, stage, {client: update})
        federation.state = interpolate(
            federation.state, after, weight, inner.averaged_groups
        )
        timing = {"staleness": float(staleness), "weight": weight}
        if self._clock.enabled:
            timing["clock"] = self._clock.now
        diagnostics = {**self._insights, **federation.diagnostics(stage)}
        federation.close_round(
            asked.task, {client: update}, self._failed, diagnostics, timing
        )
        log(INFO, "update %d: client %d, task %d", number, client, asked.task + 1)
        self._failed, self._insights = {}, {}
        federation.recorder.progress(number, 0, 0)

    def _score(
        self, client: int, step: int, answers: list[Message], *, counted: bool = False
    ) -> None:
        """Record what a client knows after a task of its own."""
        federation = self._federation
        tasks = self._schedule.evaluated(step)
        scores, failed = federation.scores(answers, tasks, counted=counted)
        if failed:
            self._failed[client] = f"evaluation: {failed[client]}"
        else:
            federation.recorder.record_evaluation(federation.done, tasks - 1, scores)

    def _test_everyone(self, grid: Grid, timeout: float) -> None:
        """Test all with what there is when the slowest has come to the end."""
        federation = self._federation
        if federation.strategy.evaluates_locally:
            return
        stage = self._schedule.stage(self._schedule.num_rounds)
        finished = [c for c, walk in self._walks.items() if walk.done >= stage.round]
        asked = [
            federation.evaluation(client, stage)
            for client in federation.registry.clients
            if client in finished
        ]
        answers = list(send_and_wait(grid, asked, timeout))
        scores, _ = federation.scores(answers, self._schedule.tasks)
        federation.recorder.record_evaluation(
            federation.done, self._schedule.tasks - 1, scores
        )


def interpolate(
    before: Payload, after: Payload, weight: float, kinds: Sequence[str]
) -> Payload:
    """Return ``after``, with the groups of some kinds only part of the way there.

    Args:
        before: the state, with dense tensors in those groups.
        after: what an algorithm makes of it.
        weight: the part of the way, in (0, 1].
        kinds: of the groups; a group that is new counts whole.
    """
    return {
        group: _between(before[group], arrays, weight)
        if group_kind(group) in kinds and group in before
        else arrays
        for group, arrays in after.items()
    }


def _between(before: Arrays, after: Arrays, weight: float) -> Arrays:
    found = {}
    for name, tensor in after.items():
        old, new = np.asarray(before[name]), np.asarray(tensor)
        between = old + weight * (new.astype(np.float64) - old)
        whole = new.dtype.kind in "iu"  # BatchNorm counts its batches
        found[name] = (np.rint(between) if whole else between).astype(new.dtype)
    return found
