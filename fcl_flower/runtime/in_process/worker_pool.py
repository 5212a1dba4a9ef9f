"""The same grid on several cores: its nodes answer in a pool of processes.

Every process serves every client: what a client keeps lies in the run's folder, or
travels with its message and back, as in Flower's own simulation. So the numbers are the
same, whatever the number of processes.
"""

import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, TypeAlias

from flwr.app import Context, Error, Message, MessageType, RecordDict
from typing_extensions import override

from fcl_flower.config.parsing import Scalar
from fcl_flower.config.sections import Attack
from fcl_flower.federation.kept.shared_memory import within_process
from fcl_flower.privacy.randomness import simulated
from fcl_flower.runtime.in_process.grid import (
    InProcessGrid,
    OnTurn,
    answer,
    tell_nobody,
)
from fcl_flower.runtime.in_process.identity import flower_identity, log_to

AHEAD = 2
"""Messages that are begun before they are asked for, for each process: one in work,
one waiting. Replies that nobody has taken yet are in memory, and so are few."""
DIED = "a process of the simulation has died, perhaps for want of memory"

Answered: TypeAlias = tuple[Message, RecordDict]
"""A reply, and the state of its client's context after it."""


def _read_only(view: memoryview) -> tuple[type[memoryview], tuple[bytes]]:
    return memoryview, (view.tobytes(),)


# What a process sends in its own memory is copied when it goes to another.
ForkingPickler.register(memoryview, _read_only)


class WorkerPool:
    """Processes that answer messages; those of a pool that has died are replaced.

    All are made of one process that has imported what a client needs.
    """

    def __init__(self, workers: int, log_file: Path | None) -> None:
        """Prepare a pool; its processes are started when they are needed.

        Args:
            workers: processes, at least 1.
            log_file: which they append Flower's log to; None for their console.
        """
        self.workers = workers
        self._log_file = log_file
        self._processes = self._started()

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._processes.shutdown(cancel_futures=True)

    def begin(
        self, message: Message, context: Context, attack: Attack
    ) -> "Future[Answered]":
        """Begin to answer a message; see `grid.answer`."""
        try:
            return self._processes.submit(_answer, message, context, attack)
        except BrokenProcessPool:
            self._processes.shutdown()
            self._processes = self._started()
            return self._processes.submit(_answer, message, context, attack)

    def _started(self) -> ProcessPoolExecutor:
        start = get_context("forkserver")
        start.set_forkserver_preload([__name__, "fcl_flower.setup.factory"])
        return ProcessPoolExecutor(
            self.workers, start, initializer=_prepare, initargs=(self._log_file,)
        )


class _Begun(NamedTuple):
    """A message that is being answered, and the node that it went to."""

    node: int
    future: "Future[Answered]"


class PooledGrid(InProcessGrid):
    """A grid whose nodes answer in a pool of processes, some messages ahead.

    No two messages of one node are answered at the same time.
    """

    def __init__(
        self,
        pool: WorkerPool,
        nodes: Sequence[int],
        run_config: Mapping[str, Scalar],
        node_configs: Sequence[Mapping[str, Scalar]] = (),
        on_turn: OnTurn = tell_nobody,
    ) -> None:
        """Connect the nodes; see `InProcessGrid`.

        Args:
            pool: whose owner ends it.
            nodes: see there.
            run_config: likewise.
            node_configs: likewise.
            on_turn: likewise, but called with all clients that are at work.
        """
        super().__init__(nodes, run_config, node_configs, on_turn)
        self._pool = pool
        self._begun: dict[str, _Begun] = {}
        self._replies: dict[str, Message] = {}

    @override
    def _answer(self, message_id: str) -> Message:
        self._begin(message_id)
        for name in self._queued:
            if len(self._begun) >= AHEAD * self._pool.workers:
                break
            self._begin(name)
        quiet = self._queued[message_id].metadata.message_type == MessageType.QUERY
        done = self._pushed - len(self._queued)
        if not quiet:
            self._on_turn(self._working(), done, self._pushed)
        self._settle(message_id)
        del self._queued[message_id]
        if not quiet:
            self._on_turn(self._working(), done + 1, self._pushed)
        return self._replies.pop(message_id)

    def _begin(self, name: str) -> None:
        """Begin to answer a message that is queued, if that has not been begun."""
        if name in self._begun or name in self._replies:
            return
        message = self._queued[name]
        node = message.metadata.dst_node_id
        for other in [other for other, b in self._begun.items() if b.node == node]:
            self._settle(other)
        context = self.contexts[node]
        future = self._pool.begin(message, context, self._attack_of(context))
        self._begun[name] = _Begun(node, future)

    def _settle(self, name: str) -> None:
        """Wait for the answer to a message, if there is none yet."""
        if name in self._replies:
            return
        node, future = self._begun.pop(name)
        try:
            self._replies[name], self.contexts[node].state = future.result()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            if isinstance(error, BrokenProcessPool):
                reason = DIED
            failed = Message(Error(code=0, reason=reason), reply_to=self._queued[name])
            self._replies[name] = failed

    def _working(self) -> list[int]:
        """Return the clients whose answers are not there."""
        return sorted(
            int(self.contexts[begun.node].node_config["partition-id"])
            for begun in self._begun.values()
            if not begun.future.done()
        )


_FOR_LIFE = ExitStack()
"""What holds as long as a process of the pool: a context that nobody keeps ends."""


def _prepare(log_file: Path | None) -> None:
    """Make a process one of the pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who wants the pool ends it
    log = log_to(log_file, mode="a")
    for context in (simulated(), within_process(), flower_identity(), log):
        _FOR_LIFE.enter_context(context)


def _answer(message: Message, context: Context, attack: Attack) -> Answered:
    return answer(message, context, attack), context.state
