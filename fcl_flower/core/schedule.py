"""Rounds become tasks, and a seed says who takes part in which round."""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Self

import numpy as np

from fcl_flower.core.types import TaskStage


class SimulatedClock:
    """Decides whose reply arrives when, alike on every machine.

    The unit of time is that of the durations. Without durations the clock is off.
    """

    def __init__(self, pace: Sequence[float] = (), now: float = 0.0) -> None:
        """Begin at ``now`` with each client's training time, above 0; none: off."""
        self._pace = tuple(pace)
        self.now = now

    @property
    def enabled(self) -> bool:
        """Whether the clock decides who answers first."""
        return bool(self._pace)

    def duration(self, client: int) -> float:
        """Look up a client's training time; 0 while the clock is off."""
        return self._pace[client] if self._pace else 0.0

    def round(self, clients: Iterable[int], most: float = math.inf) -> dict[str, float]:
        """Let a round pass, which takes as long as its slowest client, or ``most``."""
        self.now += min(most, max(map(self.duration, clients), default=0.0))
        return {"clock": self.now} if self._pace else {}


def derive(seed: int, purpose: str, *key: int) -> int:
    """Derive a 63-bit seed for one purpose, such as ``"shuffle"``.

    The same arguments give the same seed on every machine, whatever the node id, the
    time, or the order in which messages arrive. Two purposes never share a stream;
    ``key`` is what else the stream depends on, such as client and round.

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
        rounds_per_task: of each task that ``rounds_by_task`` does not list.
        fraction: share of the clients that take part in a round, in (0, 1].
        seed: the run's seed; the participants of a round depend on it alone.
        evaluate_every: rounds between evaluations, beside those at the end of a task;
            0 for only those.
        concepts: how many are hidden behind the only task; 0 where tasks are known.
            Every round then is the first and the last one in which a client trains on
            its data.
        concept_at: client and round to the concept that the client has then, which is
            its task, where concept ids are revealed.
        scores: clients are evaluated at all.
        rounds_by_task: of the first tasks, where they differ.
        joined: by client how many rounds were over when it joined; none: all were there
            from the start. The task of the next round is the first of its own.
        sat_out: pairs of a client and a task that is none of its own, as it had no data
            for it then.
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
        """Length of the whole run in rounds."""
        return self.end(self.tasks - 1)

    def end(self, task: int) -> int:
        """Find the last round of a task; 0 for the one before the first."""
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
        """Find the task in which a client joined, which is its own first one."""
        return self.task(self.joined[client] + 1) if self.joined else 0

    def rounds_before(self, client: int) -> int:
        """Count the rounds of all tasks before a client's first one."""
        return self.end(self.first_task(client) - 1)

    def own_tasks(self, client: int, until: int | None = None) -> tuple[int, ...]:
        """List the tasks up to ``until`` that a client counts; None for all."""
        last = self.tasks - 1 if until is None else until
        tasks = range(self.first_task(client), last + 1)
        return tuple(task for task in tasks if (client, task) not in self.sat_out)

    def has_joined(self, client: int, server_round: int) -> bool:
        """Tell whether a client belongs to the federation in a round."""
        return not self.joined or self.joined[client] < server_round

    def participants(self, server_round: int) -> tuple[int, ...]:
        """Draw the participants of a round, ascending; at least one."""
        if not (self.joined or self.sat_out):
            return _sample(self.clients, self.fraction, self.seed, server_round)
        # Who joins later comes behind all others, so that earlier draws stay.
        joined = [c for c in range(self.clients) if self.has_joined(c, server_round)]
        if self.sat_out:
            task = self.task(server_round)
            joined = [c for c in joined if (c, task) not in self.sat_out]
        chosen = _sample(len(joined), self.fraction, self.seed, server_round)
        return tuple(joined[place] for place in chosen)

    def evaluates(self, server_round: int) -> bool:
        """Tell whether clients are evaluated after a round."""
        every = self.evaluate_every
        ends_task = server_round == self.end(self.task(server_round))
        due = ends_task or (every > 0 and server_round % every == 0)
        return self.scores and due

    def evaluated(self, server_round: int, client: int) -> int:
        """Count the tasks a client is tested on: its own so far, or all concepts."""
        if self.concepts:
            return self.concepts
        return len(self.own_tasks(client, self.task(server_round)))

    def stage(self, server_round: int, client: int | None = None) -> TaskStage:
        """Place a client in its own stream of tasks; None places the round itself.

        ``starts_task`` and ``ends_task`` count the rounds of the task in which the
        client takes part, so that a client that sits out the task's last round still
        uploads its adapters. Where concept ids are revealed, each round ends a task,
        and the client may return to it; it starts in its first round of all.
        """
        task = self.task(server_round)
        if self.concept_at and client is not None:
            concept = self.concept_at(client, server_round)
            known = any(
                client in self.participants(r) and self.concept_at(client, r) == concept
                for r in range(1, server_round)
            )
            starts = not known
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
        """Give the task of a round one more round, which is its last.

        Whoever trains has to be told in a task's last round that it is the last.
        """
        task = self.task(server_round)
        ends = [*map(self.end, range(task)), server_round + 1]
        starts = [0, *ends[:-1]]
        listed = tuple(e - s for s, e in zip(starts, ends, strict=True))
        return replace(self, rounds_by_task=listed)


def stagnates(losses: Sequence[float | None], patience: int) -> bool:
    """Tell whether losses, None where none was measured, have got no lower of late.

    >>> stagnates([0.9, 0.5, 0.6, 0.5], patience=2)
    True
    >>> stagnates([0.9, 0.5, 0.6, 0.4], patience=2)
    False
    """
    known = [loss for loss in losses if loss is not None]
    return bool(known) and len(known) - 1 - known.index(min(known)) >= patience


@cache
def _sample(clients: int, fraction: float, seed: int, number: int) -> tuple[int, ...]:
    chosen = max(1, round(clients * fraction))
    draw = np.random.default_rng(derive(seed, "participants", number))
    return tuple(sorted(draw.choice(clients, size=chosen, replace=False).tolist()))
