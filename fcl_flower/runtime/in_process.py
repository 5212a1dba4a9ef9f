"""A grid of one process: its nodes answer when they are asked, one after the other."""

import json
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from functools import partial
from logging import WARNING
from multiprocessing import get_context
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import torch
from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from typing_extensions import override

from fcl_flower.algorithms.registry import algorithm
from fcl_flower.attacks import HostileTraining
from fcl_flower.config.parsing import Scalar
from fcl_flower.config.run_config import RunConfig
from fcl_flower.config.run_spec import RunSpec
from fcl_flower.config.sections import Attack
from fcl_flower.federation import messages as wire
from fcl_flower.federation.client import Client, forget_runs
from fcl_flower.federation.client_app import app as client_app
from fcl_flower.federation.client_app import trained
from fcl_flower.federation.server_app import main as run_server
from fcl_flower.flower import identity
from fcl_flower.privacy.mechanism import simulated
from fcl_flower.results.run_folder import close_folder, prepared_folder
from fcl_flower.runtime.processes import Progress
from fcl_flower.setup.build import limited_threads
from fcl_flower.setup.entries import data_root

OnTurn: TypeAlias = Callable[[list[int], int, int], object]
"""Called with the clients at work, how many of the messages sent together are answered,
and how many were sent."""


class InProcessGrid(identity.LocalGrid):
    """A grid whose nodes answer in the call that asks for their replies.

    What is pushed waits, and costs nothing but itself; each message that is pulled is
    answered in that call, in the order of the ids, and then forgotten, its content
    too. Who pulls one message at a time, as `Mailbox` does, so holds one reply of a
    round at a time, and may use it up before the next client trains.

    A client that raises is answered for by an error, as in Flower's runtimes. Those of
    the last nodes that the run says are hostile train as `HostileTraining` does.
    ``contexts`` are Flower's, of each client by its node.
    """

    def __init__(
        self,
        nodes: Sequence[int],
        run_config: Mapping[str, Scalar],
        node_configs: Sequence[Mapping[str, Scalar]] = (),
        on_turn: OnTurn = lambda *turn: None,
    ) -> None:
        """Connect the nodes of clients by ascending number.

        ``on_turn`` is called before and after a client trains or is evaluated.
        """
        extra = node_configs or [{} for _ in nodes]
        section = RunConfig.of(run_config).federation
        self._attack = section.attack
        self._hostile = frozenset(nodes[len(nodes) - section.attackers :])
        # The clients' own code knows no attack, and refuses to hear of one.
        honest = {**run_config, "federation.attack": "", "federation.attackers": 0}
        self.contexts = {
            node: Context(
                run_id=identity.RUN_ID,
                node_id=node,
                node_config={
                    "partition-id": client,
                    "num-partitions": len(nodes),
                    **extra[client],
                },
                state=RecordDict(),
                run_config=honest,
            )
            for client, node in enumerate(nodes)
        }
        self._on_turn = on_turn
        self._queued: dict[str, Message] = {}
        self._pushed = 0

    @override
    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    @override
    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        self._pushed = len(self._queued)
        for message in messages:
            if self._attack and wire.told_run(message.content):
                spec = RunSpec.from_json(wire.told_run(message.content))
                honest = spec.with_settings(attack="", attackers=0)
                message.content = wire.greeting(honest.to_json())
            name = str(uuid4())
            identity.name_message(message, name)
            self._queued[name] = message
            self._pushed += 1
            ids.append(name)
        return ids

    @override
    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._answer(name) for name in message_ids if name in self._queued]

    def _answer(self, name: str) -> Message:
        message = self._queued[name]
        context = self.contexts[message.metadata.dst_node_id]
        done = self._pushed - len(self._queued)
        told = message.metadata.message_type != MessageType.QUERY
        if told:
            self._on_turn(self._at_work(context), done, self._pushed)
        reply = self.reply(message, context)
        del self._queued[name]
        if told:
            self._on_turn(self._at_work(), done + 1, self._pushed)
        return reply

    def _at_work(self, *contexts: Context) -> list[int]:
        return [int(context.node_config["partition-id"]) for context in contexts]

    def reply(self, message: Message, context: Context) -> Message:
        """Run the client app on one message; return its reply, or its error."""
        return answer(message, context, self._attack_of(context))

    def _attack_of(self, context: Context) -> Attack:
        return self._attack if context.node_id in self._hostile else ""


def answer(message: Message, context: Context, attack: Attack = "") -> Message:
    """Run the client app on one message; return its reply, or its error.

    The state of the context may change. A hostile client attacks in place of training.
    """
    try:
        if not attack or message.metadata.message_type != MessageType.TRAIN:
            return client_app(message, context)
        client = Client(context, wire.decode_request(message.content).stage)
        shared = client.run.algorithm.load_server().kinds("shared")
        return trained(message, client, HostileTraining(client.learner, attack, shared))
    except Exception as error:
        identity.log(WARNING, "a client failed", exc_info=error)
        reason = f"{type(error).__name__}: {error}"
        return Message(Error(code=0, reason=reason), reply_to=message)


# ---- clients in a pool of processes

PREFETCH = 2
"""Messages that are begun before they are asked for, for each process: one in work,
one waiting. Replies that nobody has taken yet are in memory, and so are few."""
DIED = "a process of the simulation has died, perhaps for want of memory"

Answered: TypeAlias = tuple[Message, RecordDict]
"""A reply, and the state of its client's context after it."""


def _read_only(view: memoryview) -> tuple[type[memoryview], tuple[bytes]]:
    return memoryview, (view.tobytes(),)


# What a process sends in its own memory is copied when it goes to another.
ForkingPickler.register(memoryview, _read_only)


_FOR_LIFE = ExitStack()
"""What holds as long as a process of the pool: a context that nobody keeps ends."""


def _prepare(log_file: Path | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who wants the pool ends it
    log = identity.log_to(log_file, mode="a")
    for context in (simulated(), identity.flower_identity(), log):
        _FOR_LIFE.enter_context(context)


def _answer(message: Message, context: Context, attack: Attack) -> Answered:
    return answer(message, context, attack), context.state


class PooledGrid(InProcessGrid):
    """A grid whose nodes answer in a pool of processes, some messages ahead.

    No two messages of one node are answered at the same time. A turn is told with all
    clients that are at work. The processes are made of one that has imported what a
    client needs, and append Flower's log to a file; None for their console. Those of a
    pool that has died are replaced.
    """

    def __init__(
        self,
        workers: int,
        log_file: Path | None,
        *given: Any,  # noqa: ANN401
    ) -> None:
        """Connect the nodes to so many processes; see `InProcessGrid`."""
        super().__init__(*given)
        self._workers, self._log_file = workers, log_file
        self._processes = self._started()
        self._begun: dict[str, tuple[int, Future[Answered]]] = {}
        self._replies: dict[str, Message] = {}

    def _started(self) -> ProcessPoolExecutor:
        start = get_context("forkserver")
        start.set_forkserver_preload([__name__, "fcl_flower.setup.build"])
        return ProcessPoolExecutor(
            self._workers, start, initializer=_prepare, initargs=(self._log_file,)
        )

    def close(self) -> None:
        """End the processes."""
        self._processes.shutdown(cancel_futures=True)

    @override
    def _answer(self, name: str) -> Message:
        self._begin(name)
        for other in self._queued:
            if len(self._begun) >= PREFETCH * self._workers:
                break
            self._begin(other)
        return super()._answer(name)

    @override
    def reply(self, message: Message, context: Context) -> Message:
        name = message.metadata.message_id
        self._settle(name)
        return self._replies.pop(name)

    def _begin(self, name: str) -> None:
        if name in self._begun or name in self._replies:
            return
        message = self._queued[name]
        node = message.metadata.dst_node_id
        for other in [n for n, (known, _) in self._begun.items() if known == node]:
            self._settle(other)
        self._begun[name] = node, self._submit(message, self.contexts[node])

    def _submit(self, message: Message, context: Context) -> "Future[Answered]":
        work = partial(_answer, message, context, self._attack_of(context))
        try:
            return self._processes.submit(work)
        except BrokenProcessPool:
            self._processes.shutdown()
            self._processes = self._started()
            return self._processes.submit(work)

    def _settle(self, name: str) -> None:
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

    @override
    def _at_work(self, *contexts: Context) -> list[int]:
        waited = (node for node, future in self._begun.values() if not future.done())
        return sorted(super()._at_work(*(self.contexts[node] for node in waited)))


# ---- runs

FIRST_NODE = 100
"""So that no test passes that takes a node's id for a client's number."""

_ONE_RUN = threading.RLock()
"""Flower's identity, its log and torch's threads belong to the process."""


class _WatchError(BaseException):
    """What the caller's own ``watch`` has raised: no client is to blame for it."""


def run_in_process(
    config: RunConfig,
    folder: Path,
    *,
    watch: Callable[[Progress], None] = lambda progress: None,
    local_data: Sequence[Path] = (),
    workers: int = 1,
    verbose: bool = False,
) -> dict[str, Any]:
    """Run ``config`` in this process; return its summary.

    One run at a time: a second thread waits for the first to finish. The progress is
    watched when a client has answered, and at the end. Several workers are in
    processes beside this one, whose main module is imported there. Flower's log is in
    ``flower.log``, or if ``verbose`` on the console.

    Raises:
        FclError: the configuration is refused, or the run failed.
    """
    log_file = None if verbose else folder / "flower.log"
    path, seen = folder / "progress.json", Progress()

    def report(**changes: object) -> None:
        nonlocal seen
        if not path.exists():  # clients are asked before the record begins
            return
        now: Progress = json.loads(path.read_text()) | changes
        if now != seen:
            seen = now
            try:
                watch(now)
            except Exception as error:
                raise _WatchError(error) from error

    def on_turn(working: list[int], done: int, sent: int) -> None:
        report(working=working, clients_done=done, clients=sent)

    with (
        _ONE_RUN,
        prepared_folder(config, folder, data_root(config), local_data) as prepared,
        identity.log_to(log_file, mode="w"),
        ExitStack() as stack,
    ):
        nodes = range(FIRST_NODE, FIRST_NODE + prepared.scenario.clients)
        places = [{"data-path": str(place.absolute())} for place in local_data]
        given = nodes, prepared.flat(), places, on_turn
        grid = InProcessGrid(*given)
        if workers > 1:
            grid = PooledGrid(workers, log_file, *given)
            stack.callback(grid.close)
        try:
            run_apps(grid, prepared)
            report()
        except _WatchError as error:
            raise error.args[0] from None
        return close_folder(folder, keep_clients=prepared.run.keep_clients)


def run_apps(grid: Grid, config: RunConfig) -> None:
    """Run the server app to its end on a grid of this process."""
    context = Context(
        run_id=identity.RUN_ID,
        node_id=0,
        node_config={},
        state=RecordDict(),
        run_config=dict(config.flat()),
    )
    threads = torch.get_num_threads()  # which every client sets
    forget_runs()  # no run may find what another has built: all have one number
    try:
        limits = limited_threads(
            algorithm(config.strategy.name), config.training.threads
        )
        with simulated(), identity.flower_identity(), limits:
            run_server(grid, context)
    finally:
        forget_runs()
        torch.set_num_threads(threads)
