"""A transport in one process: its clients answer one by one."""

import json
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import torch
from typing_extensions import override

from fcl_flower.algorithms.registry import algorithm
from fcl_flower.attacks import HostileTraining
from fcl_flower.config.parsing import Scalar
from fcl_flower.config.run_config import Attack, RunConfig
from fcl_flower.config.run_spec import NodeConfig, RunSpec
from fcl_flower.core.failures import FAILED
from fcl_flower.core.log import log_to
from fcl_flower.core.processes import Progress
from fcl_flower.privacy.mechanism import simulated
from fcl_flower.results.run_folder import close_folder, prepared_folder
from fcl_flower.rounds import messages
from fcl_flower.rounds.answers import answer, answered, trained
from fcl_flower.rounds.client import Client, forget_runs
from fcl_flower.rounds.place import Place
from fcl_flower.rounds.run import run_federation
from fcl_flower.rounds.transport import (
    QUERY,
    TRAIN,
    Content,
    Problem,
    Reply,
    Request,
    Transport,
)
from fcl_flower.setup.build import limited_threads
from fcl_flower.setup.entries import data_root

OnTurn: TypeAlias = Callable[[list[int], int, int], object]
"""A function of the clients at work, and of the numbers of answered and of all requests
that were sent together."""
RUN = "1"
"""The name of a run for its clients: there is one run at a time."""


class InProcessTransport:
    """Nodes that answer when their reply is received.

    A sent request waits until its reply is received, and is dropped then. `Mailbox`
    receives one reply at a time, so that it may be used up before the next client
    trains.

    The reply of a client that raises is a problem, as in Flower's runtimes. The
    clients of the last nodes are hostile where the run says so (`HostileTraining`).

    Attributes:
        places: of the clients, by node.
    """

    simulated = True
    blocking = False

    def __init__(
        self,
        nodes: Sequence[int],
        config: RunConfig,
        node_configs: Sequence[Mapping[str, Scalar]] = (),
        on_turn: OnTurn = lambda *turn: None,
    ) -> None:
        """Connect the nodes of clients by ascending number.

        ``on_turn`` is called before and after a client trains or is evaluated.
        """
        extra = node_configs or [{} for _ in nodes]
        section = config.federation
        self._attack: Attack = section.attack
        self._hostile = frozenset(nodes[len(nodes) - section.attackers :])
        name = config.run.id or RUN
        self.places = {
            node: Place(name, NodeConfig.of({"partition-id": client, **extra[client]}))
            for client, node in enumerate(nodes)
        }
        self._on_turn = on_turn
        self._queued: dict[str, Request] = {}
        self._sent = 0

    def nodes(self) -> list[int]:
        """List all nodes."""
        return list(self.places)

    def send(self, requests: Sequence[Request], seconds: float) -> list[str | None]:
        """Let requests wait until their replies are asked for."""
        names = [str(uuid4()) for _ in requests]
        self._sent = len(self._queued) + len(names)
        self._queued.update(zip(names, map(self._honest, requests), strict=True))
        return list(names)

    def receive(self, name: str, request: Request) -> Reply | None:
        """Let a client answer; return its reply."""
        place = self.places[request.node]
        done = self._sent - len(self._queued)
        works = not request.kind.startswith(QUERY)
        if works:
            self._on_turn(self._at_work(place), done, self._sent)
        reply = self._answer(name, self._queued[name], place)
        del self._queued[name]
        if works:
            self._on_turn(self._at_work(), done + 1, self._sent)
        if isinstance(reply, Problem) and reply.why == "failed":
            reply = Problem(f"{FAILED}: {reply.reason}")
        return Reply(request, reply)

    def _honest(self, request: Request) -> Request:
        # The clients' own code refuses a run with an attack.
        text = messages.told_run(request.content)
        if not (self._attack and text):
            return request
        honest = RunSpec.from_json(text).with_settings(attack="", attackers=0)
        return Request(request.node, request.kind, messages.greeting(honest.to_json()))

    def _at_work(self, *places: Place) -> list[int]:
        return [place.number for place in places]

    def _answer(self, name: str, request: Request, place: Place) -> Content | Problem:
        return self.answer(request, place)

    def answer(self, request: Request, place: Place) -> Content | Problem:
        """Let a client answer a request in its place."""
        return answer_as(request, place, self._attack_of(request.node))

    def _attack_of(self, node: int) -> Attack:
        return self._attack if node in self._hostile else ""


def answer_as(request: Request, place: Place, attack: Attack = "") -> Content | Problem:
    """Answer a request; a hostile client attacks in place of training.

    The state in the place may change.
    """
    if not attack or request.kind != TRAIN:
        return answer(request.kind, request.content, place)

    def attacked() -> Content:
        client = Client(place, messages.decode_request(request.content).stage)
        shared = client.run.algorithm.load_server().kinds("private")
        hostile = HostileTraining(client.learner, attack, shared)
        return trained(request.content, client, hostile)

    return answered(attacked)


# ---- clients in a pool of processes

PREFETCH = 2
"""The requests that each process begins ahead: one in work, one waiting. Few replies
wait in memory then."""
DIED = "a process of the simulation has died, perhaps for want of memory"

Answered: TypeAlias = tuple[Content | Problem, Content]
"""A reply, and the client's state after it."""


_FOR_LIFE = ExitStack()
"""Contexts that stay open for as long as a process of the pool lives."""


def _prepare(log_file: Path | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool's owner ends it
    for context in (simulated(), log_to(log_file)):
        _FOR_LIFE.enter_context(context)


def _answer(request: Request, place: Place, attack: Attack) -> Answered:
    return answer_as(request, place, attack), place.state


class PooledTransport(InProcessTransport):
    """Nodes that answer in a pool of processes, some requests ahead.

    No two requests of one node are answered at the same time. A turn names all clients
    at work. The processes are forks of one that has imported a client's modules. They
    append the log to a file, or write it to the console. A dead pool is replaced.
    """

    def __init__(
        self,
        workers: int,
        log_file: Path | None,
        *arguments: Any,  # noqa: ANN401
    ) -> None:
        """Connect the nodes to so many processes; see `InProcessTransport`."""
        super().__init__(*arguments)
        self._workers, self._log_file = workers, log_file
        self._processes = self._started()
        self._begun: dict[str, tuple[int, Future[Answered]]] = {}
        self._replies: dict[str, Content | Problem] = {}

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
    def receive(self, name: str, request: Request) -> Reply | None:
        """Begin this request and some that follow; return the reply to this one."""
        self._begin(name)
        for other in self._queued:
            if len(self._begun) >= PREFETCH * self._workers:
                break
            self._begin(other)
        return super().receive(name, request)

    @override
    def _answer(self, name: str, request: Request, place: Place) -> Content | Problem:
        self._settle(name)
        return self._replies.pop(name)

    def _begin(self, name: str) -> None:
        if name in self._begun or name in self._replies:
            return
        request = self._queued[name]
        node = request.node
        for earlier in [n for n, (other, _) in self._begun.items() if other == node]:
            self._settle(earlier)
        self._begun[name] = node, self._submit(request, self.places[node])

    def _submit(self, request: Request, place: Place) -> "Future[Answered]":
        work = partial(_answer, request, place, self._attack_of(request.node))
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
            self._replies[name], self.places[node].state = future.result()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            if isinstance(error, BrokenProcessPool):
                reason = DIED
            self._replies[name] = Problem(reason)

    @override
    def _at_work(self, *places: Place) -> list[int]:
        waited = (node for node, future in self._begun.values() if not future.done())
        return sorted(super()._at_work(*(self.places[node] for node in waited)))


# ---- runs

FIRST_NODE = 100
"""The first node's id, which no client's number equals."""

_ONE_RUN = threading.RLock()
"""The log and torch's threads belong to the process."""


class _WatchError(BaseException):
    """An error of the caller's ``watch``, which is no client's failure."""


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

    There is one run at a time: a second thread waits for the first to finish. ``watch``
    gets the progress when a client has answered, and at the end. Several workers are
    processes beside this one, which import its main module. The log is in
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
        log_to(log_file, mode="w"),
        ExitStack() as stack,
    ):
        nodes = range(FIRST_NODE, FIRST_NODE + prepared.scenario.clients)
        places = [{"data-path": str(place.absolute())} for place in local_data]
        arguments = nodes, prepared, places, on_turn
        transport: InProcessTransport
        if workers > 1:
            transport = pool = PooledTransport(workers, log_file, *arguments)
            stack.callback(pool.close)
        else:
            transport = InProcessTransport(*arguments)
        try:
            run_simulated(transport, prepared)
            report()
        except _WatchError as error:
            raise error.args[0] from None
        return close_folder(folder, keep_clients=prepared.run.keep_clients)


def run_simulated(transport: Transport, config: RunConfig) -> None:
    """Run a federation to its end with all clients on this machine."""
    threads = torch.get_num_threads()  # which every client sets
    forget_runs()  # all runs have one name, and none may find the parts of another
    try:
        limits = limited_threads(
            algorithm(config.strategy.name), config.training.threads
        )
        with simulated(), limits:
            run_federation(config, transport)
    finally:
        forget_runs()
        torch.set_num_threads(threads)
