"""Replies of clients: decoded, checked, and left out for a reason."""

import io
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import WARNING
from pathlib import Path
from typing import Any, TypeVar

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
    SparseArray,
    Update,
    group_kind,
)
from fcl_flower.results.events import EPSILON, LABEL_EPSILON, MULTIPLY_ADDS
from fcl_flower.rounds import byte_counts, mailbox, messages
from fcl_flower.rounds.clients import ClientRegistry
from fcl_flower.rounds.copies import restored
from fcl_flower.rounds.messages import decode_evaluation
from fcl_flower.rounds.pending_requests import PendingRequest
from fcl_flower.rounds.stored import File, StoredArrays, write_group
from fcl_flower.rounds.transport import EVALUATE, QUERY, Content, Reply

SURVEY = f"{QUERY}.survey"
"""The kind of the query that a strategy makes before training."""

UNUSED = "unused"
"""The group kind under which all bytes of a refused reply are counted."""

T = TypeVar("T")


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
        nominal_bytes: of the updates; see `byte_counts.NominalBytes`.
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
    """Reads replies to the latest requests; trusts none of them."""

    def __init__(
        self,
        strategy: ServerStrategy[Any],
        registry: ClientRegistry,
        *,
        max_update_norm: float,
        classes: int = 0,
        samples: Sequence[Sequence[int]] | None = None,
        counts_multiply_adds: bool = False,
    ) -> None:
        """Check updates and scores by the settings of a run.

        Args:
            strategy: checks the tensors.
            registry: knows the client of each node.
            max_update_norm: the limit of an update's norm; 0 for none.
            classes: the number of classes by which clients count their answers; 0 where
                they do not count them.
            samples: of each task of a client's scenario, by client; None where the
                server does not know them, as of local data.
            counts_multiply_adds: whether each update has to report them.
        """
        self._strategy = strategy
        self._registry = registry
        self._max_update_norm = max_update_norm
        self._classes, self._samples = classes, samples
        self._counts_multiply_adds = counts_multiply_adds
        self._latest: dict[int, PendingRequest] = {}
        self._expected: dict[int, PendingRequest] = {}

    def expect(self, client: int, request: PendingRequest) -> None:
        """Note the request to a client, against which its reply is checked."""
        self._latest[client] = request = replace(request, payload={})
        if request.kind != EVALUATE:
            self._expected[client] = request

    def since(self, client: int) -> int:
        """Look up from which round a client's state was needed last; 0 for none."""
        latest = self._latest.get(client)
        return 0 if latest is None else latest.assignment.since

    def expected(self, client: int) -> PendingRequest:
        """Look up a client's latest request for an update, or its latest query."""
        return self._expected[client]

    def read(
        self,
        replies: Iterable[Reply],
        state: Payload,
        store: Callable[[Update], Update],
    ) -> Replies:
        """Read replies, at most one of each client; none is held once it was read.

        Updates have to fit ``state``, the server's. ``store`` gets each update; what it
        returns is held.
        """
        read, nominal = Replies(), 0
        lost = set[int]()
        checks = self._max_update_norm and not adds_up(self._strategy)
        base_norm = update_checks.base_norm(state) if checks else 0.0
        for reply in replies:
            client = self._registry.client(reply.node)
            kind = reply.request.kind
            traffic = Counter[str]()
            # A peer's content may break what opens it, or our checks, in any way.
            try:
                content = self._registry.open(reply)
                traffic = byte_counts.traffic(content)
                if messages.STATE_LOST in content.scalars:
                    lost.add(client)
                    raise WireError(STATE_LOST)
                if kind == EVALUATE:
                    tasks = self._latest[client].tasks
                    read.scores[client] = self._scores(client, content, tasks)
                elif kind == SURVEY:
                    read.query_replies[client] = self._query_reply(content, state)
                else:
                    update = self._update(client, content, state, base_norm)
                    read.updates[client] = update
            except Exception as error:
                failures = read.score_failures if kind == EVALUATE else read.failures
                failures[client] = _left_out(client, error)
                # Not by group kind: a peer may name its groups as it likes.
                traffic = Counter({UNUSED: traffic.total()})
            read.traffic.update(traffic)
            if client not in read.updates:
                continue
            request = self._expected[client]
            if request.tasks:
                try:
                    scores = self._scores(client, content, request.tasks)
                    read.scores[client] = scores
                except Exception as error:
                    read.score_failures[client] = _left_out(client, error)
            nominal += byte_counts.NominalBytes().of(update.payload)
            # The name, too: else it holds the tensors until the next have come.
            read.updates[client] = update = store(update)
        return Replies(
            _by_client(read.updates),
            _by_client(read.scores),
            _by_client(read.query_replies),
            _by_client(read.failures),
            _by_client(read.score_failures),
            frozenset(lost),
            read.traffic,
            nominal,
        )

    def _update(
        self, client: int, content: Content, state: Payload, base_norm: float
    ) -> Update:
        request = self._expected[client]
        update = messages.decode_update(content, request.assignment.stage)
        self._check_metrics(update.metrics)
        # Shapes first: a few bytes may claim tensors whose values take long to read,
        # and memory to decode.
        self._strategy.check_update(state, update)
        payload = restored(messages.decoded(update.payload), request.known.models)
        update_checks.finite(payload)
        if base_norm:
            update_checks.norm(payload, base_norm, self._max_update_norm)
        return replace(update, payload=payload, stage=request.stage)

    def _scores(self, client: int, content: Content, tasks: int) -> Evaluation:
        row = content.scalars.get(messages.SCORES, {})
        scores = decode_evaluation(row, tasks, self._classes)
        self._check_samples(client, scores)
        return scores

    def _check_samples(self, client: int, scores: Evaluation) -> None:
        """Refuse counts of other test samples than those of the client."""
        if not self._classes or self._samples is None:
            return
        tested = [sum(counts) for _, counts, _ in scores.by_class]
        expected = list(self._samples[client][: len(tested)])
        if tested != expected:
            raise WireError(f"tested: expected {expected} samples, got {tested}")

    def _check_metrics(self, metrics: Mapping[str, float]) -> None:
        """Refuse an update whose costs are missing or negative."""
        for name in (EPSILON, LABEL_EPSILON):
            if (epsilon := metrics.get(name, 0.0)) < 0:
                raise WireError(f"metrics/{name}: expected at least 0, got {epsilon}")
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
    """Keeps updates for as long as a caller holds what `store` returned.

    The file has no name, its owner alone can read it, and it vanishes with the last
    update in it, or with the process.
    """

    def __init__(self, folder: Path, kinds: Collection[str]) -> None:
        """Hold nothing yet; these kinds may lie in a file on the folder's disk."""
        self._folder = folder
        self._kinds = frozenset(kinds)
        self._left = IN_MEMORY
        self._file: File | None = None

    @classmethod
    def of(cls, strategy: ServerStrategy[Any], folder: Path) -> "UpdateBuffer":
        """Make one for what a strategy averages."""
        # A rule or a method that compares updates looks at each many times.
        compares = strategy.aggregation.compares or strategy.needs_rounds
        means = () if compares else strategy.kinds("model")
        return cls(folder, (*means, *strategy.kinds("private")))

    def store(self, update: Update) -> Update:
        """Move groups of an update to the file, where they are many bytes.

        Each of their tensors is read whenever it is looked at, and held by nobody.
        """
        groups = {
            group: self._stored(arrays) if group_kind(group) in self._kinds else arrays
            for group, arrays in update.payload.items()
        }
        return replace(update, payload=groups)

    def _stored(self, arrays: Arrays) -> Arrays:
        size = sum(map(_nbytes, arrays.values()))
        if size <= self._left:
            self._left -= size
            return arrays
        if self._file is None:
            # Not in a `with`: it is open for as long as an update in it is looked at.
            opened = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
            self._file = File(opened, self._folder)
        file = self._file.content
        file.seek(0, io.SEEK_END)
        entry = write_group(file, arrays)
        file.flush()  # a full disk shows now
        return StoredArrays(self._file, entry, held=False)


def _nbytes(tensor: AnyArray) -> int:
    if isinstance(tensor, SparseArray):
        return tensor.values.nbytes + tensor.indices.nbytes
    return tensor.nbytes
