"""The schedule of a run: tasks of rounds, participants, evaluations, and seeds."""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Self

import numpy as np

from fcl_flower.core.types import TaskStage


class SimulatedClock:
    """A clock that orders the replies of clients, in the same way on every machine.

    The unit of time is that of the durations. Without durations the clock is off.
    """

    def __init__(self, pace: Sequence[float] = (), now: float = 0.0) -> None:
        """Start at ``now`` with each client's training time, above 0, or with none."""
        self._pace = tuple(pace)
        self.now = now

    @property
    def enabled(self) -> bool:
        """Whether the clock decides which client answers first."""
        return bool(self._pace)

    def duration(self, client: int) -> float:
        """Look up a client's training time; 0 while the clock is off."""
        return self._pace[client] if self._pace else 0.0

    def round(self, clients: Iterable[int], most: float = math.inf) -> dict[str, float]:
        """Advance by the time of the slowest client, at most ``most``.

        Returns:
            the new time under ``clock``; empty while the clock is off.
        """
        self.now += min(most, max(map(self.duration, clients), default=0.0))
        return {"clock": self.now} if self._pace else {}


def derive(seed: int, purpose: str, *key: int) -> int:
    """Derive a 63-bit seed for one purpose, such as ``"shuffle"``.

    The same arguments give the same seed on every machine, whatever the node id, the
    time, or the order in which messages arrive. Two purposes never share a stream.
    ``key`` holds the other numbers that the stream depends on, such as client and
    round.

    >>> derive(1, "shuffle", 0, 3) == derive(1, "shuffle", 0, 3)
    True
    >>> derive(1, "shuffle", 0, 3) == derive(1, "dropout", 0, 3)
    False
    """
    text = "/".join([str(seed), purpose, *map(str, key)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@dataclass(frozen=True, slots=True)
class Schedule:
    """The plan of a synchronous run; the only place where rounds become tasks.

    Attributes:
        rounds_per_task: rounds of each task that ``rounds_by_task`` does not list.
        fraction: share of the clients that take part in a round, in (0, 1].
        seed: the run's seed; with ``fraction`` it draws the participants of a round.
        evaluate_every: rounds between evaluations, beside the evaluation at the end of
            each task; 0 evaluates at the end of tasks only.
        concepts: number of concepts hidden behind the only task; 0 if tasks are known.
            With concepts each round is both the first and the last round in which a
            client trains on its data.
        concept_at: maps client and round to the client's concept, which then is its
            task; None unless concept ids are revealed.
        scores: whether clients are evaluated at all.
        rounds_by_task: rounds of the first tasks, where they differ.
        joined: for each client, the number of rounds that were over when it joined;
            empty if all clients are there from the start. The client's first task is
            the task of the next round.
        sat_out: pairs of a client and a task for which the client had no data.
    """

    clients: int
    tasks: int
    rounds_per_task: int
    fraction: float
    seed: int
    evaluate_every: int = 0
    concepts: int = 0
    concept_at: Callable[[int, int], int] | None = None
    scores: bool = True
    rounds_by_task: tuple[int, ...] = ()
    joined: tuple[int, ...] = ()
    sat_out: frozenset[tuple[int, int]] = frozenset()

    @property
    def num_rounds(self) -> int:
        """The number of rounds of the whole run."""
        return self.end(self.tasks - 1)

    def end(self, task: int) -> int:
        """Find the last round of a task; 0 for task -1."""
        listed = self.rounds_by_task[: task + 1]
        return sum(listed) + (task + 1 - len(listed)) * self.rounds_per_task

    def task(self, server_round: int) -> int:
        """Find the task of a round; rounds count from 1, as in Flower, tasks from 0."""
        if not 1 <= server_round <= self.num_rounds:
            raise ValueError(f"round {server_round} outside 1..{self.num_rounds}")
        for task in range(len(self.rounds_by_task)):
            if server_round <= self.end(task):
                return task
        listed = len(self.rounds_by_task)
        rest = server_round - 1 - self.end(listed - 1)
        return listed + rest // self.rounds_per_task

    def first_task(self, client: int) -> int:
        """Find the task in which a client joined, which is the client's first task."""
        return self.task(self.joined[client] + 1) if self.joined else 0

    def rounds_before(self, client: int) -> int:
        """Count the rounds of all tasks before a client's first task."""
        return self.end(self.first_task(client) - 1)

    def own_tasks(self, client: int, until: int | None = None) -> tuple[int, ...]:
        """List a client's own tasks up to ``until``; None lists all of them."""
        last = self.tasks - 1 if until is None else until
        tasks = range(self.first_task(client), last + 1)
        return tuple(task for task in tasks if (client, task) not in self.sat_out)

    def has_joined(self, client: int, server_round: int) -> bool:
        """Tell whether a client belongs to the federation in a round."""
        return not self.joined or self.joined[client] < server_round

    def participants(self, server_round: int) -> tuple[int, ...]:
        """Draw the participants of a round, in ascending order; at least one."""
        if not (self.joined or self.sat_out):
            return _sample(self.clients, self.fraction, self.seed, server_round)
        # Later clients come behind all others, so that they do not change old draws.
        joined = [c for c in range(self.clients) if self.has_joined(c, server_round)]
        if self.sat_out:
            task = self.task(server_round)
            joined = [c for c in joined if (c, task) not in self.sat_out]
        chosen = _sample(len(joined), self.fraction, self.seed, server_round)
        return tuple(joined[place] for place in chosen)

    def evaluates(self, server_round: int) -> bool:
        """Tell whether clients are evaluated after a round."""
        interval = self.evaluate_every
        ends_task = server_round == self.end(self.task(server_round))
        due = ends_task or (interval > 0 and server_round % interval == 0)
        return self.scores and due

    def evaluated(self, server_round: int, client: int) -> int:
        """Count a client's test sets: its own tasks so far, or all concepts."""
        if self.concepts:
            return self.concepts
        return len(self.own_tasks(client, self.task(server_round)))

    def stage(self, server_round: int, client: int | None = None) -> TaskStage:
        """Place a client in its own stream of tasks; None places the round itself.

        ``starts_task`` and ``ends_task`` look only at rounds in which the client takes
        part. So a client that sits out the task's last round still uploads its
        adapters. With revealed concept ids each round ends a task, to which the client
        may return. A task then starts only in the client's first round on it.
        """
        task = self.task(server_round)
        if self.concept_at and client is not None:
            concept = self.concept_at(client, server_round)
            starts = not any(
                client in self.participants(r) and self.concept_at(client, r) == concept
                for r in range(1, server_round)
            )
            return TaskStage(server_round, concept, starts_task=starts, ends_task=True)
        if self.concepts:
            return TaskStage(server_round, task, starts_task=True, ends_task=True)
        rounds = [
            r
            for r in range(self.end(task - 1) + 1, self.end(task) + 1)
            if client is None or client in self.participants(r)
        ]
        return TaskStage(
            round=server_round,
            task=task
            if client is None
            else max(0, len(self.own_tasks(client, task)) - 1),
            starts_task=not rounds or server_round <= rounds[0],
            ends_task=bool(rounds) and server_round >= rounds[-1],
        )

    def closed_after(self, server_round: int) -> Self:
        """Return the schedule in which the task of a round ends after the next round.

        There is one more round because clients must know in advance that a round is
        the last of its task.
        """
        task = self.task(server_round)
        ends = [*map(self.end, range(task)), server_round + 1]
        starts = [0, *ends[:-1]]
        listed = tuple(e - s for s, e in zip(starts, ends, strict=True))
        return replace(self, rounds_by_task=listed)


def stagnates(losses: Sequence[float | None], patience: int) -> bool:
    """Tell whether the last ``patience`` losses, or more, brought no new minimum.

    A loss is None where none was measured, and then does not count.

    >>> stagnates([0.9, 0.5, 0.6, 0.5], patience=2)
    True
    >>> stagnates([0.9, 0.5, 0.6, 0.4], patience=2)
    False
    """
    measured = [loss for loss in losses if loss is not None]
    if not measured:
        return False
    rounds_since_best = len(measured) - 1 - measured.index(min(measured))
    return rounds_since_best >= patience


@cache
def _sample(clients: int, fraction: float, seed: int, number: int) -> tuple[int, ...]:
    chosen = max(1, round(clients * fraction))
    draw = np.random.default_rng(derive(seed, "participants", number))
    return tuple(sorted(draw.choice(clients, size=chosen, replace=False).tolist()))
