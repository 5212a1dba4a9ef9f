"""The server's part of a sum: the exchange of keys, the unmasking, the strategy."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, islice
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import Message, MessageType
from flwr.serverapp import Grid
from typing_extensions import override

from fcl_flower.algorithms import base
from fcl_flower.algorithms.base import ServerStrategy, SumsUpdates
from fcl_flower.config.sections import FederationSection
from fcl_flower.core import update_checks
from fcl_flower.core.diagnostics import Diagnostic
from fcl_flower.core.errors import ContractError, RoundError, WireError
from fcl_flower.core.types import Arrays, Payload, TaskStage, Update
from fcl_flower.federation import byte_counts, mailbox
from fcl_flower.federation.clients import ClientRegistry
from fcl_flower.federation.pacing import Quorum
from fcl_flower.federation.secure import client as protocol
from fcl_flower.federation.secure import crypto
from fcl_flower.federation.secure.client import KEYS, SHARES, UNMASK, Table
from fcl_flower.federation.secure.crypto import CHECKS, Layout, Vector
from fcl_flower.flower.identity import log
from fcl_flower.results.events import Traffic


@dataclass(frozen=True)
class Channel:
    """Asks clients, and counts the traffic."""

    grid: Grid
    registry: ClientRegistry
    timeout: float
    traffic: Callable[[], Traffic]
    quorum: Quorum

    def ask(
        self,
        query: str,
        tables: Mapping[int, Table],
        rows: Callable[[int], Iterable[int]],
        columns: int,
        least: int,
    ) -> tuple[dict[int, Table], dict[int, str]]:
        """Send a table to each client; return their answers, and why others fail.

        A client's answer has ``rows`` of these clients and so many columns. At least
        ``least`` answers are waited for.
        """
        traffic, asked = self.traffic(), []
        for client, table in tables.items():
            records = protocol.to_records(table)
            traffic.down += byte_counts.traffic(records)
            node = self.registry.node(client)
            kind = f"{MessageType.QUERY}.{query}"
            asked.append(Message(records, dst_node_id=node, message_type=kind))
        answers: dict[int, Table] = {}
        failures: dict[int, str] = {}
        box = mailbox.Mailbox(self.grid, self.timeout)
        closes_at = replace(self.quorum, least=least).closes_at
        for reply in mailbox.ask(box, asked, closes_at):
            client = self.registry.client(reply.metadata.src_node_id)
            # A peer's content may break Flower's accessors in any way.
            try:
                records = self.registry.open(reply)
                traffic.up += byte_counts.traffic(records)
                answers[client] = protocol.from_records(records, columns, rows(client))
            except Exception as error:
                failures[client] = f"{query}: {mailbox.reason(error)}"
                log(WARNING, "client %d left out: %s", client, failures[client])
        return dict(sorted(answers.items())), failures


MAX_TRIALS = 100
"""How many sets of shares are tried, where some of them are wrong."""


class MaskedSum:
    """One attempt at a sum: first `agree`, then the training, then `unmask`.

    Attributes:
        failures: why a client is not among those who agreed.
    """

    def __init__(self, channel: Channel, section: FederationSection) -> None:
        """Ask through ``channel``, by the settings in ``section``."""
        self._channel = channel
        self._threshold = section.sum_threshold
        self._roster: dict[int, tuple[bytes, ...]] = {}
        self._sealed: dict[int, Table] = {}
        self.failures: dict[int, str] = {}

    @property
    def clients(self) -> list[int]:
        """Clients that have agreed on masks, ascending."""
        return sorted(self._sealed)

    def agree(self, clients: Sequence[int]) -> None:
        """Let clients exchange keys, and shares of them.

        Raises:
            RoundError: too few of them do.
        """
        nothing: Table = {}
        answers, self.failures = self._channel.ask(
            KEYS,
            dict.fromkeys(clients, nothing),
            lambda client: [client],
            2,
            self._threshold(len(clients)),
        )
        for client, table in answers.items():
            if _usable(table[client], self._roster):
                self._roster[client] = table[client]
            else:
                self.failures[client] = f"{KEYS}: expected two keys of its own"
        self._check_number(list(self._roster), len(clients), "sent keys")
        self._sealed, more = self._channel.ask(
            SHARES,
            dict.fromkeys(self._roster, self._roster),
            lambda client: self._roster.keys() - {client},
            1,
            self._threshold(len(self._roster)),
        )
        self.failures |= more
        self._check_number(self.clients, len(self._roster), "shared their keys")

    def unmask(self, vectors: Mapping[int, Vector]) -> Vector:
        """Add up clients' vectors of one length, and take the masks off their sum.

        The others who agreed are absent.

        Raises:
            RoundError: too few vectors came, or too few shares that are right.
        """
        self._check_number(list(vectors), len(self._roster), "sent a masked vector")
        states = {
            c: protocol.PRESENT if c in vectors else protocol.ABSENT
            for c in self.clients
        }
        asked = {
            client: {
                owner: (
                    state,
                    b"" if owner == client else self._sealed[owner][client][0],
                )
                for owner, state in states.items()
            }
            for client in vectors
        }
        threshold = self._threshold(len(self._roster))
        shares, failures = self._channel.ask(
            UNMASK, asked, lambda _: states, 1, threshold
        )
        for client, why in failures.items():
            log(WARNING, "client %d is in the sum, but gave no shares: %s", client, why)
        total = np.zeros_like(next(iter(vectors.values())))
        for vector in vectors.values():
            total = total + vector
        trials = combinations(sorted(shares), threshold)
        for holders in islice(trials, MAX_TRIALS):
            # What a peer says is a share, or a key, may break anything.
            try:
                secrets = {
                    owner: crypto.join_shares(shares[one][owner][0] for one in holders)
                    for owner in states
                }
                masks = partial(self._masks, secrets, vectors.keys())
                if (total[:CHECKS] == masks(CHECKS)).all():
                    unmasked: Vector = total - masks(len(total))
                    return unmasked
            except Exception as error:
                log(WARNING, "shares of %s do not fit: %r", holders, error)
        raise RoundError(
            f"secure aggregation: the masks of {sorted(vectors)} cannot be taken off "
            f"with the shares of {sorted(shares)}, {threshold} of which must be right"
        )

    def _masks(
        self, secrets: Mapping[int, bytes], present: Collection[int], size: int
    ) -> Vector:
        total = np.zeros(size, np.uint64)
        public = {client: self._roster[client][0] for client in present}
        for owner, secret in secrets.items():
            if owner in public:
                total = total + crypto.own_mask(secret, size)
            else:  # what it would have added is the opposite of what they added
                total = total - crypto.pair_masks(owner, secret, public, size)
        return total

    def _check_number(self, found: Sequence[int], of: int, done: str) -> None:
        threshold = self._threshold(of)
        if len(found) < threshold:
            raise RoundError(
                f"secure aggregation: {sorted(found)} {done}, at least {threshold} of "
                f"{of} must; left out: {self.failures}"
            )


def _usable(keys: tuple[bytes, ...], others: Table) -> bool:
    """Tell whether these are two public keys that nobody else has."""
    taken = {key for row in others.values() for key in row}
    # One that is none would make every client fail that has to agree with this one.
    try:
        for key in keys:
            crypto.agreed_key(crypto.new_secret(), key, "trial")
    except ValueError:
        return False
    return len({*keys} - taken) == len(keys)


class SecureAggregationStrategy(ServerStrategy[Any]):
    """Hands a strategy the sum of a round; no update is ever seen.

    To the server it is a strategy like any other: a client's update is its masked
    vector, ``masked`` (``vector``). Only `begin` has to be called before each attempt
    at a round.
    """

    def __init__(self, inner: ServerStrategy[Any], section: FederationSection) -> None:
        """Wrap a strategy that `SumsUpdates`.

        Raises:
            ContractError: it does something with clients that is not a sum.
        """
        super().__init__(inner.params, inner.context)
        if (
            not isinstance(inner, SumsUpdates)
            or isinstance(inner, base.ServerQueries)
            or inner.predicts_locally
        ):
            raise ContractError(
                f"{type(inner).__name__}: got secure aggregation, expected "
                "SumsUpdates, whose server does not query clients, and who predict "
                "with what it sends"
            )
        self._inner: ServerStrategy[Any] = inner
        self._sums: SumsUpdates = inner
        self._section = section
        self._masked: MaskedSum | None = None

    def begin(self, channel: Channel, clients: Sequence[int]) -> Mapping[int, str]:
        """Let clients agree on masks; return why some have not, who are left out.

        Raises:
            RoundError: too few of them have.
        """
        self._masked = MaskedSum(channel, self._section)
        self._masked.agree(clients)
        return self._masked.failures

    @override
    def init(self, model: Arrays) -> Payload:
        return self._inner.init(model)

    @override
    def configure_train(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        assert self._masked is not None  # `begin` comes before
        sent = self._inner.configure_train(state, stage, client)
        clients = np.asarray(self._masked.clients, np.int64)
        layout = self._layout(state).to_array()
        return {**sent, protocol.SUM_OF: {"clients": clients, "layout": layout}}

    @override
    def configure_evaluate(
        self, state: Payload, stage: TaskStage, client: int
    ) -> Payload:
        return self._inner.configure_evaluate(state, stage, client)

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        expected = {"vector": np.broadcast_to(np.uint64(0), self._layout(state).size)}
        update_checks.same_tensors(update.payload, {"masked": expected})

    @override
    def aggregate_train(
        self, state: Payload, stage: TaskStage, updates: Mapping[int, Update]
    ) -> Payload:
        masked, self._masked = self._masked, None
        assert masked is not None  # updates come after `begin`
        vectors = {
            client: np.asarray(update.payload["masked"]["vector"])
            for client, update in updates.items()
        }
        vector = masked.unmask(vectors)
        try:
            total = crypto.decode_fixed_point(vector, self._layout(state))
            if self._section.max_update_norm and not base.adds_up(self._inner):
                limit = self._section.max_update_norm
                base_norm = update_checks.base_norm(state)
                update_checks.norm(total.payload, base_norm, limit)
            return self._sums.aggregate_sum(state, stage, total)
        except WireError as error:
            raise RoundError(
                f"secure aggregation: the sum of {sorted(vectors)} is not used: {error}"
            ) from error

    @override
    def on_state_lost(self, state: Payload, client: int) -> Payload:
        return self._inner.on_state_lost(state, client)

    @override
    def diagnostics(
        self, state: Payload, stage: TaskStage, metrics: base.Metrics
    ) -> Mapping[str, float | Diagnostic]:
        return self._inner.diagnostics(state, stage, metrics)

    @override
    def remarks(self) -> Mapping[str, str]:
        share = f"{self._section.secure_threshold:.0%}"
        how = f"the server sees sums over at least {share} of a round's clients"
        return {**self._inner.remarks(), "secure aggregation": how}

    @override
    def advice(self, diagnostics: Mapping[str, Diagnostic]) -> str:
        return self._inner.advice(diagnostics)

    def _layout(self, state: Payload) -> Layout:
        weighted = self._sums.weighs_examples
        return Layout.of(self._sums.summands(state), weighted=weighted)
