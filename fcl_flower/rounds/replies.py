"""Replies of clients: decoded, checked, and left out for a reason."""

import os
import sys
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import WARNING
from pathlib import Path
from typing import Any, TypeVar

from typing_extensions import override

from fcl_flower.algorithms.base import ServerQueries, ServerStrategy, adds_up
from fcl_flower.core import update_checks
from fcl_flower.core.errors import WireError
from fcl_flower.core.failures import STATE_LOST
from fcl_flower.core.log import log
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
from fcl_flower.results.events import EPSILON, LABEL_EPSILON, MULTIPLY_ADDS
from fcl_flower.rounds import byte_counts, mailbox, messages
from fcl_flower.rounds.clients import ClientRegistry
from fcl_flower.rounds.codec import decode, encode
from fcl_flower.rounds.copies import NO_VERSION, ModelVersion, restored
from fcl_flower.rounds.messages import decode_evaluation
from fcl_flower.rounds.pending_requests import PendingRequest
from fcl_flower.rounds.transport import EVALUATE, QUERY, Content, Reply

SURVEY = f"{QUERY}.survey"
"""The kind of the query that a strategy makes before training."""

UNUSED = "unused"
"""The group kind under which all bytes of a refused reply are counted."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expectations that a client's update, or its answer to a query, has to fit.

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
    """The contents of replies, by ascending client.

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


@dataclass(frozen=True, slots=True)
class ScoreCheck:
    """Refuses scores of other test samples than those of a client.

    Attributes:
        classes: by how many classes clients count their answers; 0: not at all.
        samples: of each task of a client's scenario, by client; None where the server
            does not know them, as of local data.
    """

    classes: int = 0
    samples: Sequence[Sequence[int]] | None = None

    def __call__(self, client: int, found: Evaluation) -> None:
        """Raise a `WireError` where the counts are of other samples."""
        if not self.classes or self.samples is None:
            return
        tested = [sum(counts) for _, counts, _ in found.by_class]
        expected = list(self.samples[client][: len(tested)])
        if tested != expected:
            raise WireError(f"tested: expected {expected} samples, got {tested}")


class ReplyReader:
    """Reads replies to what clients were asked last; trusts none of them."""

    def __init__(
        self,
        strategy: ServerStrategy[Any],
        registry: ClientRegistry,
        scores: ScoreCheck,
        *,
        max_update_norm: float,
        counts_multiply_adds: bool = False,
    ) -> None:
        """Check updates by a norm, 0 for any, and by what each has to tell."""
        self._strategy = strategy
        self._registry = registry
        self._score_check = scores
        self._max_update_norm = max_update_norm
        self._counts_multiply_adds = counts_multiply_adds
        self._expected: dict[int, Expectation] = {}
        self._tasks: dict[int, int] = {}
        self._since: dict[int, int] = {}

    def expect(self, client: int, request: PendingRequest) -> None:
        """Note what a client is asked; replies are held against it."""
        self._since[client] = request.assignment.since
        if request.kind == EVALUATE:
            self._tasks[client] = request.tasks
        else:
            self._expected[client] = Expectation(
                request.stage, request.assignment.stage, request.tasks, request.known
            )

    def since(self, client: int) -> int:
        """Look up from which round a client's state was needed last; 0 for none."""
        return self._since.get(client, 0)

    def expected(self, client: int) -> Expectation:
        """Look up what was expected last of a client's update."""
        return self._expected[client]

    def read(
        self,
        replies: Iterable[Reply],
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
            client = self._registry.client(reply.node)
            kind = reply.request.kind
            scores = kind == EVALUATE
            traffic = Counter[str]()
            # A peer's content may break what opens it, or our checks, in any way.
            try:
                content = self._registry.open(reply)
                traffic = byte_counts.traffic(content)
                if messages.reports_state_lost(content):
                    lost.add(client)
                    raise WireError(STATE_LOST)
                if scores:
                    tasks = self._tasks[client]
                    found.scores[client] = self._scores(client, content, tasks)
                elif kind == SURVEY:
                    found.query_replies[client] = self._query_reply(content, state)
                else:
                    update = self._update(client, content, state, base_norm)
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
                    found.scores[client] = self._scores(client, content, tasks)
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
        self, client: int, content: Content, state: Payload, base_norm: float
    ) -> Update:
        expected = self._expected[client]
        update = messages.decode_update(content, expected.client_stage)
        self._check_metrics(update.metrics)
        # Shapes first: a few bytes may claim tensors whose values take long to read,
        # and memory to decode.
        self._strategy.check_update(state, update)
        payload = restored(messages.decoded(update.payload), expected.known.models)
        update = replace(update, payload=payload)
        update_checks.finite(update.payload)
        if base_norm:
            update_checks.norm(update.payload, base_norm, self._max_update_norm)
        return replace(update, stage=expected.stage)

    def _scores(self, client: int, content: Content, tasks: int) -> Evaluation:
        row = content.scalars.get(messages.SCORES, {})
        found = decode_evaluation(row, tasks, self._score_check.classes)
        self._score_check(client, found)
        return found

    def _check_metrics(self, metrics: Mapping[str, float]) -> None:
        """Refuse an update whose costs are missing or negative."""
        for name in (EPSILON, LABEL_EPSILON):
            if (found := metrics.get(name, 0.0)) < 0:
                raise WireError(f"metrics/{name}: expected at least 0, got {found}")
        name, count = MULTIPLY_ADDS, metrics.get(MULTIPLY_ADDS)
        if self._counts_multiply_adds and (count is None or count < 0):
            raise WireError(f"metrics/{name}: expected a count, got {count}")

    def _query_reply(self, content: Content, state: Payload) -> Payload:
        assert isinstance(self._strategy, ServerQueries)  # replies come to queries
        answer = messages.received_payload(content)
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
        means = () if whole else strategy.kinds("model")
        return cls(folder, (*means, *strategy.kinds("private")))

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
        encoded = encode(tensor)
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
