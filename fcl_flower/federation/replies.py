"""What clients reply: decode it, check it, and say why the rest is left out."""

import os
import sys
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from logging import WARNING
from pathlib import Path
from typing import Any, TypeVar

from flwr.app import Message, MessageType, MetricRecord, RecordDict
from typing_extensions import override

from fcl_flower.algorithms.base import ServerQueries, ServerStrategy, adds_up
from fcl_flower.core import update_checks
from fcl_flower.core.errors import WireError
from fcl_flower.core.failures import STATE_LOST
from fcl_flower.core.types import (
    AnyArray,
    Arrays,
    Evaluation,
    Payload,
    ReceivedArrays,
    SparseArray,
    TaskStage,
    Update,
    group_kind,
    specs,
)
from fcl_flower.federation import byte_counts, mailbox, messages
from fcl_flower.federation.clients import ClientRegistry
from fcl_flower.federation.codec import decode, encode
from fcl_flower.federation.copies import NO_VERSION, ModelVersion, restored
from fcl_flower.federation.messages import decode_evaluation
from fcl_flower.federation.pending_requests import PendingRequest
from fcl_flower.flower.identity import log
from fcl_flower.results.recorder import Recorder

QUERY = f"{MessageType.QUERY}.survey"
"""The message type of a query before training."""

UNUSED = "unused"
"""The group kind under which all bytes of a refused reply are counted."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the update of a client, or its answer to a query, has to fit.

    Attributes:
        stage: where it stands, in the server's count of rounds.
        client_stage: the same in the client's own count, as it travels.
        tasks: how many accuracies its reply has to hold; 0 for none.
        known: the models that its update is the difference to.
    """

    stage: TaskStage
    client_stage: TaskStage
    tasks: int = 0
    known: ModelVersion = NO_VERSION


@dataclass(frozen=True, slots=True)
class Replies:
    """What replies hold, by ascending client.

    Attributes:
        updates: those that may be aggregated, with the stage that was asked for.
        scores: test accuracies, in a reply of their own or beside an update.
        query_replies: answers to queries.
        failures: why a reply is not used.
        score_failures: why there are no scores although they were asked for.
        state_lost: clients without the private state of their last update; their
            replies are among the failures.
        traffic: bytes by group kind.
        nominal_bytes: of the updates; see `byte_counts.nominal_bytes`.
    """

    updates: dict[int, Update] = field(default_factory=dict)
    scores: dict[int, Evaluation] = field(default_factory=dict)
    query_replies: dict[int, Payload] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    score_failures: dict[int, str] = field(default_factory=dict)
    state_lost: frozenset[int] = frozenset()
    traffic: Counter[str] = field(default_factory=Counter)
    nominal_bytes: int = 0


class ReplyReader:
    """Reads replies to what clients were asked last; trusts none of them."""

    def __init__(
        self,
        strategy: ServerStrategy[Any],
        registry: ClientRegistry,
        recorder: Recorder,
        max_update_norm: float,
    ) -> None:
        """Check by what the recorder takes, and a norm; 0 for any."""
        self._strategy = strategy
        self._registry = registry
        self._recorder = recorder
        self._max_update_norm = max_update_norm
        self._expected: dict[int, Expectation] = {}
        self._tasks: dict[int, int] = {}

    def expect(self, client: int, request: PendingRequest) -> None:
        """Note what a client is asked; replies are held against it."""
        if request.message_type == MessageType.EVALUATE:
            self._tasks[client] = request.tasks
        else:
            self._expected[client] = Expectation(
                request.stage, request.request.stage, request.tasks, request.known
            )

    def expected(self, client: int) -> Expectation:
        """Look up what was expected last of a client's update."""
        return self._expected[client]

    def read(
        self,
        replies: Iterable[Message],
        state: Payload,
        store: Callable[[Update], Update],
    ) -> Replies:
        """Read replies, at most one of each client; none is held once it was read.

        Updates have to fit ``state``, the server's; ``store`` says what is held of one.
        """
        found, nominal = Replies(), 0
        lost = set[int]()
        checks = self._max_update_norm and not adds_up(self._strategy)
        base_norm = update_checks.base_norm(state) if checks else 0.0
        for reply in replies:
            node = reply.metadata.src_node_id
            client = self._registry.client(node)
            kind = reply.metadata.message_type
            scores = kind == MessageType.EVALUATE
            traffic = Counter[str]()
            # A peer's content may break Flower's accessors, or our checks, in any way.
            try:
                records = self._registry.open(reply)
                traffic = byte_counts.traffic(records)
                if scores:
                    tasks = self._tasks[client]
                    found.scores[client] = self._scores(client, records, tasks)
                elif kind == QUERY:
                    found.query_replies[client] = self._query_reply(records, state)
                elif messages.reports_state_lost(records):
                    lost.add(client)
                    raise WireError(STATE_LOST)
                else:
                    update = self._update(client, records, state, base_norm)
                    found.updates[client] = update
            except Exception as error:
                failures = found.score_failures if scores else found.failures
                failures[client] = _left_out(client, error)
                # Not by group kind: a peer may name its groups as it likes.
                traffic = Counter({UNUSED: traffic.total()})
            found.traffic.update(traffic)
            if client not in found.updates:
                continue
            if tasks := self._expected[client].tasks:
                try:
                    found.scores[client] = self._scores(client, records, tasks)
                except Exception as error:
                    found.score_failures[client] = _left_out(client, error)
            update = found.updates[client]
            nominal += byte_counts.nominal_bytes(update.payload)
            # The name, too: else it holds the tensors until the next have come.
            found.updates[client] = update = store(update)
        return Replies(
            _by_client(found.updates),
            _by_client(found.scores),
            _by_client(found.query_replies),
            _by_client(found.failures),
            _by_client(found.score_failures),
            frozenset(lost),
            found.traffic,
            nominal,
        )

    def _update(
        self, client: int, records: RecordDict, state: Payload, base_norm: float
    ) -> Update:
        expected = self._expected[client]
        update = messages.decode_update(records, expected.client_stage)
        self._recorder.check_metrics(update.metrics)
        # Shapes first: a few bytes may claim tensors whose values take long to read,
        # and memory to decode.
        self._strategy.check_update(state, update)
        payload = restored(messages.decoded(update.payload), expected.known.models)
        update = replace(update, payload=payload)
        update_checks.finite(update.payload)
        if base_norm:
            update_checks.norm(update.payload, base_norm, self._max_update_norm)
        return replace(update, stage=expected.stage)

    def _scores(self, client: int, records: RecordDict, tasks: int) -> Evaluation:
        row = records.metric_records.get(messages.SCORES, MetricRecord())
        found = decode_evaluation(row, tasks, self._recorder.classes)
        self._recorder.check_scores(client, found)
        return found

    def _query_reply(self, records: RecordDict, state: Payload) -> Payload:
        assert isinstance(self._strategy, ServerQueries)  # replies come to queries
        answer = messages.received_payload(records)
        self._strategy.check_query_reply(state, answer)
        answer = messages.decoded(answer)
        update_checks.finite(answer)
        return answer


def _left_out(client: int, error: Exception) -> str:
    why = mailbox.reason(error)
    log(WARNING, "client %d left out: %s", client, why)
    return why


def _by_client(values: Mapping[int, T]) -> dict[int, T]:
    return dict(sorted(values.items()))


IN_MEMORY = 2**28
"""Bytes of a round's updates that stay in memory: a usual round touches no disk."""


class UpdateBuffer:
    """Keeps updates for as long as somebody holds what `store` returned.

    The file has no name, its owner alone can read it, and it vanishes with the last
    update in it, or with the process.
    """

    def __init__(self, folder: Path, kinds: Collection[str]) -> None:
        """Hold nothing yet; these kinds may lie in a file on the folder's disk."""
        self._folder = folder
        self._kinds = frozenset(kinds)
        self._left = IN_MEMORY
        self._file: _File | None = None

    @classmethod
    def of(cls, strategy: ServerStrategy[Any], folder: Path) -> "UpdateBuffer":
        """Make one for what a strategy averages."""
        # What holds updates against each other looks at each many times.
        whole = strategy.aggregation.compares
        means = () if whole else strategy.kinds("mean")
        return cls(folder, (*means, *strategy.kinds("on_disk")))

    def store(self, update: Update) -> Update:
        """Move groups of an update to the file, where they are many bytes.

        Each of their tensors is read whenever it is looked at, and held by nobody.
        """
        groups = {
            group: self._kept(arrays) if group_kind(group) in self._kinds else arrays
            for group, arrays in update.payload.items()
        }
        return replace(update, payload=groups)

    def _kept(self, arrays: Arrays) -> Arrays:
        size = sum(map(_nbytes, arrays.values()))
        if size <= self._left:
            self._left -= size
            return arrays
        if self._file is None:
            self._file = _File(self._folder)
        readers = {n: self._file.written(tensor) for n, tensor in arrays.items()}
        return _OnDisk(arrays, readers)


class _OnDisk(ReceivedArrays):
    def __init__(
        self, arrays: Arrays, readers: dict[str, Callable[[], AnyArray]]
    ) -> None:
        super().__init__(specs(arrays), lambda name: readers[name]())

    @override
    def __getitem__(self, name: str) -> AnyArray:
        return self._decode(name)


class _File:
    def __init__(self, folder: Path) -> None:
        # Not in a `with`: it is open for as long as an update in it is looked at.
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._end = 0
        weakref.finalize(self, self._file.close)

    def written(self, tensor: AnyArray) -> Callable[[], AnyArray]:
        """Append a tensor; return what reads it."""
        encoded = encode(tensor, copy=False)
        start, size = self._end, len(encoded.data)
        form = replace(encoded, data=b"")
        self._file.write(encoded.data)
        self._file.flush()
        self._end += size

        def read() -> AnyArray:
            data = os.pread(self._file.fileno(), size, start)
            return decode(replace(form, data=data), max_bytes=sys.maxsize)

        return read


def _nbytes(tensor: AnyArray) -> int:
    if isinstance(tensor, SparseArray):
        return tensor.values.nbytes + tensor.indices.nbytes
    return tensor.nbytes
