"""The server's end of every message: what it asks for, and which answers it uses."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from logging import WARNING
from typing import Any, TypeVar

from flwr.app import Message, MessageType
from flwr.common.logger import log

from fcl_flower.algorithms.base import ServerStrategy
from fcl_flower.algorithms.hooks import AsksClients, Explains, RestoresClients
from fcl_flower.core import update_checks
from fcl_flower.core.errors import WireError
from fcl_flower.core.types import (
    Arrays,
    Evaluation,
    Payload,
    Request,
    TaskStage,
    Update,
)
from fcl_flower.federation.transport import byte_counts, messages
from fcl_flower.federation.transport.client_registry import ClientRegistry
from fcl_flower.federation.transport.codec import Precision
from fcl_flower.federation.transport.mailbox import decode_replies, is_gone
from fcl_flower.federation.transport.state_store import StateStore
from fcl_flower.results.recorder import Recorder
from fcl_flower.results.traffic import Traffic

SURVEY = f"{MessageType.QUERY}.survey"
UNUSED = "unused"
"""The kind of all bytes of an answer that is left out."""

FORGOTTEN = "has lost its memory, and starts anew when asked next"
"""Why an answer cannot be used that is not the client's fault."""

T = TypeVar("T")


class Server:
    """One algorithm's server half, and the clients that it speaks to.

    An answer that fails, comes late or must not be used is left out, by client and with
    a reason; it ends nothing. Rounds are numbered from 1; in an asynchronous run a
    round is one update.

    Attributes:
        inner: the algorithm's server half.
        state: the algorithm's state.
        roster: which node speaks for which client.
        recorder: writes what happens.
        done: the last finished round.
    """

    def __init__(
        self,
        inner: ServerStrategy[Any],
        roster: ClientRegistry,
        recorder: Recorder,
        memory: StateStore,
        *,
        precision: Precision = "float32",
        norm_limit: float = 0.0,
    ) -> None:
        """Begin with no state; see `begin` and `resume`.

        Args:
            inner: the algorithm's server half.
            roster: which node speaks for which client.
            recorder: writes what happens.
            memory: keeps the state after every round.
            precision: of float32 tensors on the wire.
            norm_limit: how many times the norm of the server's own weights an update
                may have; 0 for any.
        """
        self.strategy = inner
        self.registry = roster
        self.recorder = recorder
        self.state: Payload = {}
        self.done = 0
        self._memory = memory
        self._precision: Precision = precision
        self._norm_limit = norm_limit
        self._packer = messages.MessageEncoder(precision)
        self._traffic = Traffic()
        self._asked: dict[int, tuple[TaskStage, TaskStage]] = {}
        self._trained: dict[int, TaskStage] = {}
        self._met: set[tuple[int, int]] = set()

    def begin(self, model: Arrays) -> None:
        """Start from the initial shared tensors."""
        self.state = self.strategy.init(model)

    def resume(self) -> bool:
        """Go on after the last finished round; return whether there was any.

        Raises:
            WireError: what was kept is damaged.
        """
        saved = self._memory.load(before=sys.maxsize)
        if saved is None:
            return False
        self.state, self.done = saved.payload, saved.round
        for stages in self.recorder.restore(saved.round):
            self._note(stages)
        return True

    # ---- asking

    def configure_query(
        self, client: int, stage: TaskStage, own: TaskStage | None = None
    ) -> Message | None:
        """Return the question that the algorithm has before a task, if it has any.

        Args:
            client: that is connected.
            stage: where it stands, in the server's count of rounds.
            own: where it stands in its own count, if that is another.
        """
        if not isinstance(self.strategy, AsksClients):
            return None
        question = self.strategy.configure_query(self.state, stage, client)
        if question is None:
            return None
        return self._message(client, SURVEY, question, Request(own or stage))

    def training(
        self,
        client: int,
        stage: TaskStage,
        *,
        evaluate: bool,
        own: TaskStage | None = None,
    ) -> Message:
        """Return the message with which a client trains.

        Args:
            client: that is connected.
            stage: where it stands, in the server's count of rounds.
            evaluate: it shall be tested in the same message.
            own: where it stands in its own count, if that is another.
        """
        own = own or stage
        self._asked[client] = stage, own
        payload = self.strategy.configure_train(self.state, stage, client)
        self._traffic.nominal_down += byte_counts.nominal_bytes(payload)
        request = Request(own, self.last_round(client), evaluate)
        return self._message(client, MessageType.TRAIN, payload, request)

    def evaluation(self, client: int, stage: TaskStage) -> Message:
        """Return the message with which a client is tested; ``stage``: its own."""
        payload = (
            {}
            if self.strategy.evaluates_locally
            else self.strategy.configure_train(self.state, stage, client)
        )
        return self._message(client, MessageType.EVALUATE, payload, Request(stage))

    def last_round(self, client: int) -> int:
        """Return a client's last round that was used, in its own count; 0: none."""
        last = self._trained.get(client)
        return 0 if last is None else last.round

    def stage_for(self, client: int, stage: TaskStage) -> TaskStage:
        """Return a stage that is ``first`` if no update of its task was ever used."""
        new = (client, stage.task) not in self._met
        return replace(stage, starts_task=stage.starts_task or new)

    # ---- answers

    def aggregate_query(
        self, replies: Iterable[Message], stages: Mapping[int, TaskStage]
    ) -> dict[int, str]:
        """Give the algorithm the answers; return by client why there is none.

        Args:
            replies: to what `configure_query` asked.
            stages: where the clients stand.
        """
        assert isinstance(self.strategy, AsksClients)  # replies come to queries
        answers, failed = self.open(replies, self._answer)
        for task in sorted({stages[client].task for client in answers}):
            found = {c: a for c, a in answers.items() if stages[c].task == task}
            stage = stages[next(iter(found))]
            self.state = self.strategy.aggregate_query(self.state, stage, found)
        return {client: f"survey: {why}" for client, why in failed.items()}

    def update(self, reply: Message) -> Update:
        """Return an update that may be aggregated, with the stage of its client.

        Raises:
            WireError: it must not be used.
        """
        client = self.client(reply)
        if messages.reports_state_lost(reply.content):
            if isinstance(self.strategy, RestoresClients):
                self.state = self.strategy.on_state_lost(self.state, client)
            self._trained.pop(client, None)
            self._met = {pair for pair in self._met if pair[0] != client}
            raise WireError(FORGOTTEN)
        stage, own = self._asked[client]
        update = messages.decode_update(reply.content, own)
        self.recorder.check_metrics(update.metrics)
        # Shapes first: a few bytes may claim tensors whose values take long to read.
        self.strategy.check_update(self.state, update)
        update_checks.finite(update.payload)
        if self._norm_limit:
            update_checks.norm(update.payload, self.state, self._norm_limit)
        self._traffic.nominal_up += byte_counts.nominal_bytes(update.payload)
        return replace(update, stage=stage)

    def open(
        self,
        replies: Iterable[Message],
        open_one: Callable[[Message], T],
        *,
        counted: bool = False,
    ) -> tuple[dict[int, T], dict[int, str]]:
        """Return what can be used, and why the rest cannot, by ascending client.

        ``counted``: the bytes of the replies have been counted already.
        """

        def count_and_open(reply: Message) -> T:
            came = Counter() if counted else byte_counts.traffic(reply.content)
            try:
                found = open_one(reply)
            except Exception:
                # Not by kind: a peer may name its groups as it likes.
                self._traffic.up += Counter({UNUSED: came.total()})
                raise
            self._traffic.up += came
            return found

        answers = list(replies)
        for reply in answers:
            if is_gone(reply):
                self.registry.mark_gone(reply.metadata.src_node_id)
        opened, failed = decode_replies(answers, count_and_open)
        for node, why in failed.items():
            log(WARNING, "client %d left out: %s", self.registry.client(node), why)
        return self._by_client(opened), self._by_client(failed)

    def scores(
        self, replies: Iterable[Message], tasks: int, *, counted: bool = False
    ) -> tuple[dict[int, Evaluation], dict[int, str]]:
        """Return the scores of ``tasks`` tasks, and why some cannot be used, by client.

        ``counted``: the bytes of the replies have been counted already.
        """

        def open_one(reply: Message) -> Evaluation:
            return messages.decode_evaluation(reply.content, tasks)

        return self.open(replies, open_one, counted=counted)

    def client(self, reply: Message) -> int:
        """Return the client that was asked."""
        return self.registry.client(reply.metadata.src_node_id)

    # ---- the record

    def diagnostics(self, stage: TaskStage) -> Mapping[str, float]:
        """Return what the algorithm reports of a round."""
        if isinstance(self.strategy, Explains):
            return self.strategy.diagnostics(self.state, stage)
        return {}

    def close_round(
        self,
        task: int,
        updates: Mapping[int, Update],
        failed: Mapping[int, str],
        diagnostics: Mapping[str, float],
        timing: Mapping[str, float] | None = None,
    ) -> None:
        """Record a round whose updates are in the state, and keep the state."""
        self.done += 1
        stages = {client: self._asked[client][1] for client in updates}
        self.recorder.record_round(
            self.done,
            task,
            {client: update.metrics for client, update in updates.items()},
            dict(sorted(failed.items())),
            self._traffic,
            diagnostics,
            stages=stages,
            timing=timing or {},
        )
        self._memory.save(self.state, self.done)
        self._note(stages)
        self._traffic = Traffic()
        # Held for one round only: it keeps every tensor that it has seen.
        self._packer = messages.MessageEncoder(self._precision)

    def _note(self, stages: Mapping[int, TaskStage]) -> None:
        self._trained.update(stages)
        self._met.update((client, stage.task) for client, stage in stages.items())

    def _message(
        self, client: int, kind: str, payload: Payload, request: Request
    ) -> Message:
        records = self._packer.encode_request(payload, request)
        self._traffic.down += byte_counts.traffic(records)
        node = self.registry.node(client)
        return Message(records, dst_node_id=node, message_type=kind)

    def _answer(self, reply: Message) -> Payload:
        """Return an answer to a survey that may be used.

        Raises:
            WireError: it must not be.
        """
        assert isinstance(self.strategy, AsksClients)
        answer = messages.decode_payload(reply.content)
        self.strategy.check_query_reply(self.state, answer)
        update_checks.finite(answer)
        return answer

    def _by_client(self, values: Mapping[int, T]) -> dict[int, T]:
        client = self.registry.client
        return dict(sorted((client(node), value) for node, value in values.items()))
