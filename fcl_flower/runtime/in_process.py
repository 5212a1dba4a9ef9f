"""A whole federation in this process: no Ray, no network, a round in milliseconds.

The two Flower apps run as they are, one client after the other, and each message goes
through the same codec, so that numbers and byte counts are those of Flower's runtimes.
"""

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from logging import WARNING
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.common.logger import FLOWER_LOGGER, log
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from typing_extensions import override

from fcl_flower.attacks.hostile_training import HostileTraining
from fcl_flower.config.run_config import RunConfig
from fcl_flower.federation.client import Client
from fcl_flower.federation.client_app import app as client_app
from fcl_flower.federation.client_app import trained
from fcl_flower.federation.kept.run_parts import forget_runs
from fcl_flower.federation.kept.shared_memory import within_process
from fcl_flower.federation.server_app import main as run_server
from fcl_flower.federation.transport.messages import decode_request
from fcl_flower.privacy.randomness import simulated
from fcl_flower.results.run_folder import close_folder, prepared_folder
from fcl_flower.runtime.processes import Progress
from fcl_flower.setup import resolve

FIRST_NODE = 100
"""So that no test passes that takes a node's id for a client's number."""
RUN_ID = 1

_ONE_RUN = threading.RLock()
"""Flower's identity, its log and torch's threads belong to the process."""


class _WatchError(BaseException):
    """What the caller's own ``watch`` has raised: no client is to blame for it."""

    def __init__(self, raised: Exception) -> None:
        super().__init__()
        self.raised = raised


class InProcessGrid(Grid):
    """A grid whose nodes answer in the call that asks for their replies.

    What is pushed waits, and costs nothing but itself; each message that is pulled is
    answered in that call, in the order of the ids, and then forgotten, its content
    too. Who pulls one message at a time, as `Mailbox` does, so holds one reply of a
    round at a time, and may use it up before the next client trains.

    A client that raises is answered for by an error, as in Flower's runtimes. Those of
    the last nodes that the run says are hostile train as `HostileTraining` does.

    Attributes:
        contexts: Flower's context of each client by its node.
    """

    def __init__(
        self,
        nodes: Sequence[int],
        run_config: Mapping[str, bool | int | float | str],
        node_configs: Sequence[Mapping[str, bool | int | float | str]] = (),
        on_turn: Callable[[list[int], int, int], None] = lambda working, done, sent: (
            None
        ),
    ) -> None:
        """Connect the nodes.

        Args:
            nodes: ids, one for each client by ascending number.
            run_config: flat, as Flower passes it on.
            node_configs: what else each node is configured with; empty for nothing.
            on_turn: called before and after a client trains or is evaluated with who
                does so now, how many of the messages sent together are answered, and
                how many were sent.
        """
        extra = node_configs or [{} for _ in nodes]
        self._attack = RunConfig.of(run_config).federation.attack
        attackers = RunConfig.of(run_config).federation.attackers
        self._hostile = frozenset(nodes[len(nodes) - attackers :])
        # The clients' own code knows no attack, and refuses to hear of one.
        honest = {**run_config, "federation.attack": "", "federation.attackers": 0}
        self.contexts = {
            node: Context(
                run_id=RUN_ID,
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
            message.metadata.__dict__["_message_id"] = name = str(uuid4())
            self._queued[name] = message
            self._pushed += 1
            ids.append(name)
        return ids

    @override
    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._answer(name) for name in message_ids if name in self._queued]

    def _answer(self, message_id: str) -> Message:
        message = self._queued.pop(message_id)
        context = self.contexts[message.metadata.dst_node_id]
        sent, done = self._pushed, self._pushed - len(self._queued)
        if message.metadata.message_type == MessageType.QUERY:
            return self.reply(message, context)
        self._on_turn([int(context.node_config["partition-id"])], done - 1, sent)
        reply = self.reply(message, context)
        self._on_turn([], done, sent)
        return reply

    def reply(self, message: Message, context: Context) -> Message:
        """Run the client app on one message; return its reply, or its error."""
        try:
            hostile = context.node_id in self._hostile
            if hostile and message.metadata.message_type == MessageType.TRAIN:
                return self._hostile_reply(message, context)
            return client_app(message, context)
        except Exception as error:
            log(WARNING, "a client failed", exc_info=error)
            reason = f"{type(error).__name__}: {error}"
            return Message(Error(code=0, reason=reason), reply_to=message)

    def _hostile_reply(self, message: Message, context: Context) -> Message:
        """Return what a hostile client answers to a call to train."""
        client = Client(context, decode_request(message.content).stage)
        handed_on = client.run.algorithm.load_server().handed_on
        hostile = HostileTraining(client.learner, self._attack, handed_on)
        return trained(message, client, hostile)

    # ---- parts of Flower's interface without a use here

    @override
    def set_run(self, run: Run) -> None:
        raise NotImplementedError("a run in this process has no SuperLink")

    @property
    @override
    def run(self) -> Run:
        raise NotImplementedError("a run in this process has no SuperLink")

    @override
    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(
            content,
            dst_node_id=dst_node_id,
            message_type=message_type,
            group_id=group_id,
            ttl=ttl,
        )

    @override
    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))


def run_in_process(
    config: RunConfig,
    folder: Path,
    *,
    watch: Callable[[Progress], None] = lambda progress: None,
    local_data: Sequence[Path] = (),
    verbose: bool = False,
) -> dict[str, Any]:
    """Run ``config`` in this process; return its summary.

    One run at a time: a second thread waits for the first to finish.

    Args:
        config: with a number of clients; with ``resume`` the clients' states stay.
        folder: for the results; exists and is writable.
        watch: called with the progress when a client has answered, and at the end.
        local_data: with local data, the folder of each client.
        verbose: show Flower's log on the console; it is in ``flower.log`` otherwise.

    Raises:
        FclError: the configuration is refused, or the run failed.
    """
    with (
        _ONE_RUN,
        prepared_folder(config, folder, resolve.data_root(config)) as prepared,
        _log_to(None if verbose else folder / "flower.log"),
    ):
        return _run(prepared, folder, watch, local_data)


def _run(
    config: RunConfig,
    folder: Path,
    watch: Callable[[Progress], None],
    local_data: Sequence[Path],
) -> dict[str, Any]:
    path, seen = folder / "progress.json", Progress()

    def report(**changes: object) -> None:
        nonlocal seen
        now: Progress = json.loads(path.read_text()) | changes
        if now != seen:
            seen = now
            try:
                watch(now)
            except Exception as error:
                raise _WatchError(error) from error

    grid = InProcessGrid(
        range(FIRST_NODE, FIRST_NODE + config.scenario.clients),
        config.flat(),
        [{"data-path": str(path.absolute())} for path in local_data],
        on_turn=lambda working, done, sent: report(
            working=working, clients_done=done, clients=sent
        ),
    )
    try:
        run_apps(grid, config)
        report()
    except _WatchError as error:
        raise error.raised from None
    return close_folder(folder, keep_clients=config.run.keep_clients)


def run_apps(grid: Grid, config: RunConfig) -> None:
    """Run the server app to its end on a grid of this process."""
    context = Context(
        run_id=RUN_ID,
        node_id=0,
        node_config={},
        state=RecordDict(),
        run_config=dict(config.flat()),
    )
    with (
        simulated(),
        flower_identity(),
        _same_threads(),
        _own_parts(),
        within_process(),
    ):
        run_server(grid, context)


@contextlib.contextmanager
def flower_identity() -> Iterator[None]:
    """Give this process an identity, without which Flower builds no message."""
    names = ("_task_id", "_run_id", "_node_id")
    before = {name: getattr(TaskIdentity, name) for name in names}
    for name in names:
        setattr(TaskIdentity, name, RUN_ID)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(TaskIdentity, name, value)


@contextlib.contextmanager
def _own_parts() -> Iterator[None]:
    """Let no run of this process find what another has built: all have one number."""
    forget_runs()
    try:
        yield
    finally:
        forget_runs()


@contextlib.contextmanager
def _same_threads() -> Iterator[None]:
    """Give torch its number of threads back, which every client sets."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def _log_to(path: Path | None) -> Iterator[None]:
    """Write Flower's log to a file instead of the console; None: leave it."""
    if path is None:
        yield
        return
    before = list(FLOWER_LOGGER.handlers)
    file = logging.FileHandler(path, mode="w")
    file.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    FLOWER_LOGGER.handlers[:] = [file]
    try:
        yield
    finally:
        FLOWER_LOGGER.handlers[:] = before
        file.close()
