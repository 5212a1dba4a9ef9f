"""The federation's loop: it drives any `Strategy` over Flower's message grid."""

from collections.abc import Callable, Iterable, Mapping
from logging import INFO, WARNING
from typing import TypeVar

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerBase
from typing_extensions import override

from fcl_flower import checks, ledger, wire
from fcl_flower.codec import Precision
from fcl_flower.contracts import Strategy
from fcl_flower.errors import RoundError, WireError
from fcl_flower.exchange import exchange, open_replies
from fcl_flower.record import Evaluation, Recorder, Traffic
from fcl_flower.schedule import Schedule
from fcl_flower.types import Payload, Update

SURVEY = f"{MessageType.QUERY}.survey"

T = TypeVar("T")


class FlowerStrategy(FlowerBase):
    """A Flower strategy that speaks for one of ours.

    A reply that fails, comes late or must not be used is left out by name, in
    ``rounds.jsonl``, and does not end the run.
    """

    def __init__(
        self,
        inner: Strategy,  # type: ignore[type-arg]
        schedule: Schedule,
        roster: Mapping[int, int],
        recorder: Recorder,
        *,
        min_replies: int = 1,
        precision: Precision = "float32",
    ) -> None:
        """Prepare a run.

        Args:
            inner: the algorithm's server half.
            schedule: which rounds belong to which task, and who takes part.
            roster: partition number by node id (see `exchange.roll_call`).
            recorder: writes what happens.
            min_replies: usable replies that a round needs.
            precision: of float32 tensors on the wire.
        """
        self._inner = inner
        self._schedule = schedule
        self._client_of = dict(roster)
        self._node_of = {client: node for node, client in roster.items()}
        self._recorder = recorder
        self._min_replies = min_replies
        self._precision: Precision = precision
        self._traffic = Traffic()
        self._scalars: dict[int, Mapping[str, float]] = {}
        self._failed: dict[int, str] = {}
        self.state: Payload = {}

    @override
    def summary(self) -> None:
        """Log who takes part in what."""
        log(
            INFO,
            "%s: %d clients, %d tasks of %d rounds",
            type(self._inner).__name__,
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
        """Run rounds 1 to ``num_rounds``; evaluate when the schedule says so.

        Args:
            grid: connects to the nodes.
            initial_arrays: the initial shared tensors.
            num_rounds: of the whole run.
            timeout: seconds to wait for the replies of a round.
            train_config: not used; a stage travels instead.
            evaluate_config: not used.
            evaluate_fn: not used; tests belong to the clients.

        Raises:
            RoundError: a round brought fewer usable replies than needed.
        """
        self.summary()
        self.state = self._inner.init(wire.unpack_arrays(initial_arrays))
        config = ConfigRecord()
        result = Result()
        for number in range(1, num_rounds + 1):
            self._traffic = Traffic()
            unanswered = self._survey(number, grid, timeout)
            asked = self.configure_train(number, initial_arrays, config, grid)
            replies = self._ask(grid, asked, number, timeout)
            _, metrics = self.aggregate_train(number, replies)
            if metrics is not None:
                result.train_metrics_clientapp[number] = metrics
            asked = self.configure_evaluate(number, initial_arrays, config, grid)
            replies = self._ask(grid, asked, number, timeout)
            scores = self.aggregate_evaluate(number, replies)
            if scores is not None:
                result.evaluate_metrics_clientapp[number] = scores
            self._recorder.trained(
                number,
                self._schedule.task(number),
                self._scalars,
                dict(sorted((unanswered | self._failed).items())),
                self._traffic,
                self._inner.insights(self.state, self._schedule.stage(number)),
            )
        return result

    @override
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message for each client that takes part in the round."""
        clients = self._schedule.participants(server_round)
        return self._messages(server_round, clients, MessageType.TRAIN)

    @override
    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message for each client, or none where nothing is evaluated."""
        if not self._schedule.evaluates(server_round):
            return []
        clients = range(self._schedule.clients)
        return self._messages(server_round, clients, MessageType.EVALUATE)

    @override
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold the usable updates into the state; say who was left out, and why."""
        stage = self._schedule.stage(server_round)
        updates, self._failed = self._open(replies, self._update)
        if len(updates) < self._min_replies:
            raise RoundError(
                f"round {server_round}: {len(updates)} usable replies, "
                f"{self._min_replies} needed; left out: {self._failed}"
            )
        self._scalars = {client: update.metrics for client, update in updates.items()}
        self.state = self._inner.aggregate(self.state, stage, updates)
        losses = [m["loss"] for m in self._scalars.values() if "loss" in m]
        loss = sum(losses) / len(losses) if losses else float("nan")
        log(
            INFO,
            "round %d of %d, task %d: %d clients, loss %.4f",
            server_round,
            self._schedule.num_rounds,
            stage.task + 1,
            len(updates),
            loss,
        )
        return None, MetricRecord({"loss": loss, "clients": len(updates)})

    @override
    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Record every client's accuracies; return their mean by task."""
        task = self._schedule.task(server_round)
        tasks = self._schedule.evaluated(server_round)
        scores, failed = self._open(replies, lambda found: _evaluation(found, tasks))
        for client, why in failed.items():
            self._failed.setdefault(client, f"evaluation: {why}")
        if not scores:
            return None
        self._recorder.evaluated(server_round, task, scores)
        rows = [found.accuracy for found in scores.values()]
        means = [sum(column) / len(column) for column in zip(*rows, strict=True)]
        log(INFO, "accuracy by task: %s", " ".join(f"{mean:.3f}" for mean in means))
        return MetricRecord({f"task-{i}": mean for i, mean in enumerate(means)})

    def _survey(self, number: int, grid: Grid, timeout: float) -> dict[int, str]:
        """Ask what the algorithm wants to know; return by client why it does not."""
        packer = wire.Packer(self._precision)
        asked = []
        for client in self._schedule.participants(number):
            stage = self._schedule.stage(number, client)
            question = self._inner.survey(self.state, stage, client)
            if question is not None:
                records = packer.downlink(question, stage)
                self._traffic.down += ledger.traffic(records)
                node = self._node_of[client]
                asked.append(Message(records, dst_node_id=node, message_type=SURVEY))
        if not asked:
            return {}
        replies = exchange(grid, asked, timeout)
        answers, failed = self._open(replies, self._answer)
        stage = self._schedule.stage(number)
        self.state = self._inner.surveyed(self.state, stage, answers)
        return {client: f"survey: {why}" for client, why in failed.items()}

    def _answer(self, content: RecordDict) -> Payload:
        """Return an answer that may be used.

        Raises:
            WireError: it must not be.
        """
        answer = wire.open_update(content).payload
        checks.finite(answer)
        self._inner.check_answer(self.state, answer)
        return answer

    def _messages(
        self, server_round: int, clients: Iterable[int], kind: str
    ) -> list[Message]:
        packer = wire.Packer(self._precision)
        messages = []
        for client in clients:
            stage = self._schedule.stage(server_round, client)
            quiet = kind == MessageType.EVALUATE and self._inner.personal
            payload = {} if quiet else self._inner.broadcast(self.state, stage, client)
            records = packer.downlink(payload, stage)
            self._traffic.down += ledger.traffic(records)
            if kind == MessageType.TRAIN:
                self._traffic.paper_down += ledger.paper_bytes(payload)
            messages.append(
                Message(records, dst_node_id=self._node_of[client], message_type=kind)
            )
        return messages

    def _ask(
        self, grid: Grid, messages: Iterable[Message], number: int, timeout: float
    ) -> list[Message]:
        """Return one answer for each message; tell the progress as they arrive."""
        asked, replies = list(messages), list[Message]()
        for reply in exchange(grid, asked, timeout):
            replies.append(reply)
            self._recorder.progress(number, len(replies), len(asked))
        return replies

    def _open(
        self, replies: Iterable[Message], open_one: Callable[[RecordDict], T]
    ) -> tuple[dict[int, T], dict[int, str]]:
        """Return what can be used, and why the rest cannot, by ascending client."""

        def counted(content: RecordDict) -> T:
            self._traffic.up += ledger.traffic(content)
            return open_one(content)

        opened, failed = open_replies(replies, counted)
        for node, why in failed.items():
            log(WARNING, "client %d left out: %s", self._client_of[node], why)
        return self._by_client(opened), self._by_client(failed)

    def _by_client(self, values: Mapping[int, T]) -> dict[int, T]:
        return dict(sorted((self._client_of[n], value) for n, value in values.items()))

    def _update(self, content: RecordDict) -> Update:
        """Return an update that may be aggregated.

        Raises:
            WireError: it must not be used.
        """
        update = wire.open_update(content)
        checks.finite(update.payload)
        self._recorder.check(update.metrics)
        self._inner.check(self.state, update)
        self._traffic.paper_up += ledger.paper_bytes(update.payload)
        return update


def _evaluation(content: RecordDict, tasks: int) -> Evaluation:
    row = content.metric_records.get(wire.METRICS, MetricRecord())
    accuracy, size = row.get("accuracy"), row.get("model-bytes")
    if not isinstance(accuracy, list) or len(accuracy) != tasks:
        raise WireError(f"accuracy: expected {tasks} fractions, got {accuracy!r}")
    if not all(0 <= value <= 1 for value in accuracy):
        raise WireError(f"accuracy: expected values in [0, 1], got {accuracy}")
    if not isinstance(size, int) or size < 0:
        raise WireError(f"model-bytes: expected a number of bytes, got {size!r}")
    return Evaluation(accuracy, size)
