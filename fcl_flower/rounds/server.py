"""The server's side of every message; nothing else changes the server's state."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from logging import INFO, WARNING
from types import MappingProxyType
from typing import Any

import numpy as np

from fcl_flower.aggregation.mean import interpolate
from fcl_flower.algorithms.base import ServerQueries, ServerStrategy
from fcl_flower.core.diagnostics import Diagnostic
from fcl_flower.core.errors import RoundError, config_error
from fcl_flower.core.failures import told
from fcl_flower.core.log import log
from fcl_flower.core.types import (
    Arrays,
    Assignment,
    ClientTask,
    Evaluation,
    Payload,
    TaskStage,
    Update,
)
from fcl_flower.results.events import Evaluated, EvaluatedBefore, Traffic, Trained
from fcl_flower.results.recorder import Recorder
from fcl_flower.results.report.run_page import write_report
from fcl_flower.rounds import byte_counts
from fcl_flower.rounds.checkpoint import StateStore
from fcl_flower.rounds.clients import ClientRegistry
from fcl_flower.rounds.codec import EXACT, WireFormat
from fcl_flower.rounds.copies import ModelPublisher
from fcl_flower.rounds.pacing import ClientStages
from fcl_flower.rounds.pending_requests import PendingRequest, PendingRequests
from fcl_flower.rounds.replies import SURVEY, Replies, ReplyReader, UpdateBuffer
from fcl_flower.rounds.state_losses import StateLosses
from fcl_flower.rounds.transport import EVALUATE, TRAIN, Reply, Request


@dataclass(frozen=True, slots=True)
class Sent:
    """A request to a client, and its parts."""

    request: Request
    pending: PendingRequest


class Server:
    """The server side of one algorithm: its state, its messages and its record.

    A reply that fails, comes late or must not be used is left out, by client and with
    a reason; it never ends a run. Rounds are counted from 1; in an asynchronous run a
    round is one update.

    Attributes:
        registry: knows the node of each client.
        recorder: writes the record of the run.
        stages: the rounds and tasks of each client, in the client's own count.
        traffic: bytes since the last round was closed.
        pending: requests without an answer, in the checkpoint of an asynchronous run.
    """

    def __init__(
        self,
        strategy: ServerStrategy[Any],
        registry: ClientRegistry,
        recorder: Recorder,
        store: StateStore,
        *,
        wire: WireFormat = EXACT,
        reader: ReplyReader,
        evaluates_updates: bool = False,
        largest_message: float = math.inf,
        on_task_end: Callable[[TaskStage, Payload], None] | None = None,
    ) -> None:
        """Create a server without a state; call `begin` or `resume` next.

        ``reader`` checks replies. With ``evaluates_updates`` clients are tested before
        the aggregation, too. In the first round a message of more than
        ``largest_message`` bytes is refused; later it is sent with a warning.
        ``on_task_end`` is called with the last round of a task and the state after it.
        """
        self._strategy = strategy
        self._on_task_end = on_task_end
        self._evaluates_updates = evaluates_updates
        self._largest_message = largest_message
        self.registry = registry
        self.recorder = recorder
        self._store = store
        self._publisher = ModelPublisher(wire, strategy.context.seed)
        self._state: Payload = {}
        self._done = 0
        self._nominal = byte_counts.NominalBytes()
        self._reader = reader
        self.stages = ClientStages()
        self._losses = StateLosses()
        self._aggregated: dict[int, int] = {}
        self.traffic = Traffic()
        self.pending: PendingRequests | None = None

    def begin(self, model: Arrays) -> None:
        """Start from the initial shared tensors."""
        self.recorder.begin()
        self._state = self._strategy.init(model)

    def resume(self) -> bool:
        """Continue after the last finished round, if there is one."""
        saved = self._store.load()
        if saved is None:
            return False
        self._done, self._state = saved.round, self._on_disk(saved.state)
        self._publisher.restore(saved.round, saved.beside.get("copies", {}))
        if pending := saved.beside.get("asked"):
            self.pending = PendingRequests.from_payload(pending)
        for record in self.recorder.restore(self._done):
            self.stages.restore(record.state_lost, record.stages)
        return True

    # ---- the standing of the run

    @property
    def state(self) -> Payload:
        """The algorithm's state, which must not be changed in place."""
        return self._state

    @property
    def done(self) -> int:
        """Last finished round; 0 before the first."""
        return self._done

    @property
    def valid_losses(self) -> list[float | None]:
        """Mean validation losses of the clients by round; None where unknown."""
        return [row.valid_loss for row in self.recorder.record.rounds]

    @property
    def predicts_locally(self) -> bool:
        """Whether clients predict with their private state alone."""
        return self._strategy.predicts_locally

    @property
    def evaluates_after_training(self) -> bool:
        """Whether the reply with an update has test scores, too."""
        return self._strategy.predicts_locally or self._evaluates_updates

    @property
    def global_model(self) -> Arrays | None:
        """Tensors of the one model of all clients; None if there is none."""
        if self._strategy.predicts_locally or self._state.keys() != {"base"}:
            return None
        return self._state["base"]

    # ---- requests

    def query_request(
        self, client: int, stage: TaskStage, client_stage: TaskStage | None = None
    ) -> Sent | None:
        """Make the algorithm's query before a task; None if it has none."""
        if not isinstance(self._strategy, ServerQueries):
            return None
        payload = self._strategy.configure_query(self._state, stage, client)
        if payload is None:
            return None
        assignment = Assignment(client_stage or stage)
        return self._send(client, SURVEY, payload, assignment, stage)

    def train_request(
        self,
        client: int,
        stage: TaskStage,
        *,
        tasks: int = 0,
        client_stage: TaskStage | None = None,
    ) -> Sent:
        """Ask a connected client to train, and to test so many tasks.

        ``stage`` is in the server's count of rounds. ``client_stage`` is the stage in
        the client's own count, if that differs.
        """
        payload = self._strategy.send(self._state, stage, client)
        self.traffic.nominal_down += self._nominal.of(payload)
        since = self.stages.last_round(client)
        assignment = Assignment(client_stage or stage, since, tasks > 0)
        return self._send(client, TRAIN, payload, assignment, stage, tasks)

    def evaluate_request(self, client: int, stage: TaskStage, tasks: int) -> Sent:
        """Ask a client to test its model on so many tasks."""
        payload: Payload = {}
        if not self.predicts_locally:
            payload = self._strategy.send_to_predict(self._state, stage, client)
        # Its update may be aggregated before its round is closed.
        since = self._aggregated.get(client, self.stages.last_round(client))
        assignment = Assignment(stage, since)
        return self._send(client, EVALUATE, payload, assignment, stage, tasks)

    def ask_again(self, client: int, pending: PendingRequest) -> Request:
        """Repeat a request of an interrupted run; its bytes were counted before."""
        self._reader.expect(client, pending)
        return pending.again(self.registry.node(client), self._publisher.wire)

    def _send(
        self,
        client: int,
        kind: str,
        payload: Payload,
        assignment: Assignment,
        stage: TaskStage,
        tasks: int = 0,
    ) -> Sent:
        content, known = self._publisher.message(
            client, payload, assignment, self._state
        )
        size = byte_counts.traffic(content)
        self._check_size(size.total())
        self.traffic.down += size
        pending = PendingRequest(kind, stage, tasks, assignment, payload, known)
        self._reader.expect(client, pending)
        return Sent(Request(self.registry.node(client), kind, content), pending)

    def _check_size(self, size: int) -> None:
        most = self._largest_message
        if size <= most:
            return
        if not self._done:
            raise config_error(
                "message",
                f"{size / 1e6:.0f} MB to a client",
                f"at most {most / 1e6:.0f} MB, the most that is known to pass: choose "
                "a smaller model, federation.wire_dtype float16 or int8, or a strategy "
                "that sends less",
            )
        log(WARNING, "a message has %.0f MB, more than are known to pass", size / 1e6)

    # ---- replies

    def receive(self, replies: Iterable[Reply]) -> Replies:
        """Decode, check and count replies, at most one of each client.

        A client that reports the loss of its private state counts as new from now on.
        """
        buffer = UpdateBuffer.of(self._strategy, self.recorder.folder)
        received = self._reader.read(replies, self._state, buffer.store)
        self.traffic.up += received.traffic
        self.traffic.nominal_up += received.nominal_bytes
        for client in sorted(received.state_lost):
            self._state = self._strategy.on_state_lost(self._state, client)
            self.stages.forget(client)
            self._publisher.forget(client)
        used = received.updates.keys() | received.scores.keys()
        held = {client for client in used if self._reader.since(client)}
        self._losses.note(received.state_lost, held)
        self._losses.check(self.registry.here, least=2)
        return received

    def check_kept(self) -> None:
        """Refuse a run at whose end all connected clients have lost their state.

        Raises:
            StatesLostError: they have.
        """
        self._losses.check(self.registry.here, least=1)

    # ---- the state

    def aggregate_query(self, replies: Mapping[int, Payload]) -> None:
        """Let the algorithm use the replies to its queries, task by task."""
        assert isinstance(self._strategy, ServerQueries)  # replies come to queries
        stages = {client: self._reader.expected(client).stage for client in replies}
        for task in sorted({stage.task for stage in stages.values()}):
            by_client = {c: r for c, r in replies.items() if stages[c].task == task}
            stage = replace(stages[next(iter(by_client))], round=self._done + 1)
            self._state = self._strategy.aggregate_query(self._state, stage, by_client)

    def aggregate(
        self, stage: TaskStage, updates: Mapping[int, Update], weight: float = 1.0
    ) -> None:
        """Move the state to the algorithm's aggregate of the updates.

        Averaged groups move by the fraction ``weight``, in (0, 1]; see `interpolate`.
        """
        before, strategy = self._state, self._strategy
        counted = strategy.aggregation.count(updates)
        after = strategy.combine(before, stage, counted)
        if weight != 1.0:
            after = interpolate(before, after, weight, strategy.kinds("model"))
        requests = {client: self._reader.expected(client) for client in updates}
        known = {client: request.known for client, request in requests.items()}
        self._aggregated |= {c: r.assignment.stage.round for c, r in requests.items()}
        self._state = self._publisher.publish(before, after, stage.round, known)

    # ---- the record

    def report_progress(self, number: int, asked: int, busy: Collection[int]) -> None:
        """Write how many clients were asked in a round, and which have not replied."""
        self.recorder.progress(number, max(0, asked - len(busy)), asked, working=busy)

    def record_evaluation(
        self, server_round: int, task: int, scores: Mapping[int, Evaluation]
    ) -> None:
        """Record test accuracies after ``task``, by client."""
        event = Evaluated(round=server_round, task=task, scores=dict(scores))
        self.recorder.add(event)
        if self.predicts_locally:  # no aggregate has reached the clients yet
            self.record_before_aggregation(server_round, task, scores)

    def record_before_aggregation(
        self, server_round: int, task: int, scores: Mapping[int, Evaluation]
    ) -> None:
        """Record test accuracies of the clients' models before the aggregation."""
        event = EvaluatedBefore(round=server_round, task=task, scores=dict(scores))
        self.recorder.add(event)

    def close_round(
        self,
        stage: TaskStage,
        updates: Mapping[int, Update],
        failures: Mapping[int, str],
        timing: Mapping[str, float],
        late: Mapping[int, float] = MappingProxyType({}),
        pending: PendingRequests | None = None,
    ) -> None:
        """Record a round whose updates are aggregated, and save a checkpoint.

        For ``timing`` and ``late`` see `Trained`; ``pending`` are the requests that
        other clients have not answered.
        """
        self._done = stage.round
        stages = {c: self._reader.expected(c).assignment.stage for c in updates}
        self.recorder.add(
            Trained(
                round=self._done,
                task=stage.task,
                replies={c: dict(update.metrics) for c, update in updates.items()},
                failed=dict(sorted(failures.items())),
                traffic=self.traffic,
                diagnostics=dict(self._diagnostics(stage, stages, updates)),
                stages=stages,
                timing=dict(timing),
                late=dict(late),
                state_lost=sorted(self.stages.state_lost),
            )
        )
        beside = {"copies": self._publisher.kept()}
        if pending is not None:
            beside["asked"] = pending.to_payload()
        self._store.save(self._state, self._done, beside)
        self._state = self._on_disk(self._state)
        if stage.ends_task and self._on_task_end:
            self._on_task_end(stage, self._state)
        self.stages.note(stages)
        self._aggregated.clear()
        self.traffic = Traffic()
        self._nominal = byte_counts.NominalBytes()
        self._publisher.close_round()

    def _on_disk(self, state: Payload) -> Payload:
        return self._store.on_disk(state, self._strategy.kinds("private"))

    def finish(self) -> None:
        """Write the summary and the report, and then show the run as finished."""
        advice = self._strategy.advice(self.recorder.record.diagnostics)
        summary = self.recorder.finish(self.traffic, advice)
        if advice:
            log(WARNING, "%s", advice)
        write_report(self.recorder.folder)
        self.recorder.tell_end(summary)
        log(INFO, "results and report.html: %s", self.recorder.folder.absolute())
        for client, why in summary.left_out.items():
            log(WARNING, "client %s took part in no round: %s", client, why)
        self.recorder.progress(self._done, 0, 0, "finished")

    def check_evaluated(self) -> None:
        """Refuse a record without any accuracy; give the reason if it is known."""
        record = self.recorder.record
        if np.isnan(record.accuracy).all():
            why = told(record.failures) or "unknown"
            raise RoundError(f"no client was evaluated; why: {why}")

    def _diagnostics(
        self,
        stage: TaskStage,
        stages: Mapping[int, TaskStage],
        updates: Mapping[int, Update],
    ) -> Mapping[str, float | Diagnostic]:
        metrics = {
            ClientTask(client, stages[client].task): update.metrics
            for client, update in updates.items()
        }
        return self._strategy.report(self._state, stage, metrics)
