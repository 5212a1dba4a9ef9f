"""The server's part of a sum: the exchange of keys, the unmasking, the strategy."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from logging import WARNING
from random import SystemRandom
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import override

from fcl_flower.algorithms import base
from fcl_flower.algorithms.base import ServerStrategy, SumsUpdates, Updates
from fcl_flower.config.run_config import FederationSection
from fcl_flower.core import update_checks
from fcl_flower.core.diagnostics import Diagnostic
from fcl_flower.core.errors import ContractError, RoundError, WireError
from fcl_flower.core.failures import told
from fcl_flower.core.log import log
from fcl_flower.core.types import Arrays, Payload, TaskStage, Update
from fcl_flower.results.events import Traffic
from fcl_flower.rounds import byte_counts
from fcl_flower.rounds.clients import Asker, ClientRegistry
from fcl_flower.rounds.pacing import Quorum
from fcl_flower.rounds.secure import client as protocol
from fcl_flower.rounds.secure import crypto
from fcl_flower.rounds.secure.client import KEYS, SHARES, UNMASK, Table
from fcl_flower.rounds.secure.crypto import CHECKS, Layout, Vector
from fcl_flower.rounds.secure.graph import MaskGraph, holders, mask_graph
from fcl_flower.rounds.transport import QUERY, Content


class Channel(NamedTuple):
    """Asks clients, and counts the traffic."""

    registry: ClientRegistry
    timeout: float
    traffic: Callable[[], Traffic]
    quorum: Quorum

    def ask(
        self,
        query: str,
        questions: Mapping[int, Content],
        rows: Callable[[int], Iterable[int]],
        columns: int,
        least: int,
    ) -> tuple[dict[int, Table], dict[int, str]]:
        """Ask each client; return their answers, and why others fail.

        A client's answer has a row for each of its ``rows``, and so many columns. At
        least ``least`` answers are waited for.
        """
        traffic = self.traffic()
        for content in questions.values():
            traffic.down += byte_counts.traffic(content)

        def read(client: int, content: Content) -> Table:
            traffic.up += byte_counts.traffic(content)
            return protocol.from_content(content, columns, rows(client))

        closes_at = replace(self.quorum, least=least).closes_at
        asker = Asker(self.registry, self.timeout, closes_at)
        answers, failures = asker.ask(f"{QUERY}.{query}", questions, read)
        return answers, {client: f"{query}: {why}" for client, why in failures.items()}


MAX_WRONG = 1000
"""The number of wrong sets of shares after which an attempt fails."""


class MaskedSum:
    """One attempt at a sum: first `agree`, then the training, then `unmask`.

    Attributes:
        failures: why a client is not among those that agreed.
    """

    def __init__(self, channel: Channel, section: FederationSection) -> None:
        """Ask through ``channel``, by the settings in ``section``."""
        self._channel = channel
        self._section = section
        self._roster: dict[int, tuple[bytes, ...]] = {}
        self._graph = MaskGraph(0, 0)
        self._holders: dict[int, list[int]] = {}
        self._sealed: dict[int, Table] = {}
        self._suspects = set[int]()
        self._wrong = 0
        self.failures: dict[int, str] = {}

    @property
    def clients(self) -> list[int]:
        """Clients that have agreed on masks, ascending."""
        return sorted(self._sealed)

    def holders(self, client: int) -> list[int]:
        """List the agreed clients that hold shares of a client's secrets, ascending."""
        return [holder for holder in self._holders[client] if holder in self._sealed]

    def agree(self, clients: Sequence[int]) -> None:
        """Let clients exchange keys, and shares of them.

        Raises:
            RoundError: too few clients agree.
        """
        needed = self._section.sum_threshold
        answers, self.failures = self._channel.ask(
            KEYS,
            {client: protocol.to_content({}) for client in clients},
            lambda client: [client],
            3,
            needed(len(clients)),
        )
        taken = set[bytes]()
        for client, table in answers.items():
            if _usable(table[client], taken):
                self._roster[client] = table[client]
                taken.update(table[client])
            else:
                self.failures[client] = f"{KEYS}: expected three keys of its own"
        self._check_number(list(self._roster), len(clients), "sent keys")
        size = len(self._roster)
        self._graph = mask_graph(size, self._section)
        # Drawn by the operating system, as keys are, once all keys are there: no client
        # can choose its neighbours by its key. No number depends on the order.
        order = SystemRandom().sample(sorted(self._roster), size)
        self._holders = holders(order, self._graph)
        self._sealed, more = self._channel.ask(
            SHARES,
            {client: self._keys_for(client) for client in self._roster},
            lambda client: {*self._holders[client]} - {client},
            1,
            needed(size),
        )
        self.failures |= more
        self._check_number(self.clients, size, "shared their keys")

    def _keys_for(self, client: int) -> Content:
        keys = {other: self._roster[other][:2] for other in self._holders[client]}
        return protocol.to_content(keys, len(self._roster))

    def unmask(self, vectors: Mapping[int, Vector]) -> Vector:
        """Add up clients' vectors of one length, and take the masks off their sum.

        Other clients that agreed are absent.

        Raises:
            RoundError: too few vectors came, or too few right shares.
        """
        self._check_number(list(vectors), len(self._roster), "sent a masked vector")
        shares, failures = self._channel.ask(
            UNMASK,
            {client: self._shares_of(client, vectors) for client in vectors},
            self.holders,
            1,
            self._section.sum_threshold(len(self._roster)),
        )
        for client, why in failures.items():
            log(WARNING, "client %d is in the sum, but gave no shares: %s", client, why)
        total = np.zeros(len(next(iter(vectors.values()))), np.uint64)
        for vector in vectors.values():
            total += vector
        for owner in self.clients:
            secret = self._secret(owner, shares, present=owner in vectors)
            if owner in vectors:
                crypto.add_masks(total, [(crypto.own_mask(secret), False)])
            else:  # its masks are the opposite of those that the others added
                others = self._present_keys(owner, vectors)
                crypto.add_masks(total, crypto.pair_masks(owner, secret, others))
        if total[:CHECKS].any():
            raise RoundError(
                f"secure aggregation: the sum of {sorted(vectors)} is not used: it has "
                "no zeros at its head, as one of the vectors is wrong"
            )
        return total

    def _shares_of(self, client: int, vectors: Mapping[int, Vector]) -> Content:
        """Make the question for a client's shares of its neighbours' secrets."""
        asked = {
            owner: (
                protocol.PRESENT if owner in vectors else protocol.ABSENT,
                b"" if owner == client else self._sealed[owner][client][0],
            )
            for owner in self.holders(client)
        }
        return protocol.to_content(asked)

    def _present_keys(
        self, owner: int, vectors: Mapping[int, Vector]
    ) -> dict[int, bytes]:
        present = (other for other in self.holders(owner) if other in vectors)
        return {other: self._roster[other][0] for other in present}

    def _secret(
        self, owner: int, shares: Mapping[int, Table], *, present: bool
    ) -> bytes:
        """Join shares to a client's seed, if it is present, or to its private key.

        Shares are tried until a secret fits its public key. Holders that were left out
        of the fitting set are tried last from then on.
        """
        public = self._roster[owner][2 if present else 0]
        answered = [holder for holder in self.holders(owner) if holder in shares]
        answered.sort(key=lambda holder: holder in self._suspects)
        for some, left_out in _few_left_out(answered, self._graph.threshold):
            secret = _joined([shares[holder][owner][0] for holder in some])
            if secret is not None and crypto.public_key(secret) == public:
                for holder in sorted(left_out - self._suspects):
                    why = "client %d gave a wrong share of a secret of client %d"
                    log(WARNING, why, holder, owner)
                self._suspects |= left_out
                return secret
            self._wrong += 1
            if self._wrong >= MAX_WRONG:
                break
        raise RoundError(
            f"secure aggregation: the masks of client {owner} cannot be taken off with "
            f"the shares of {answered}, {self._graph.threshold} of which must be right"
        )

    def _check_number(self, clients: Sequence[int], of: int, done: str) -> None:
        threshold = self._section.sum_threshold(of)
        if len(clients) < threshold:
            raise RoundError(
                f"secure aggregation: {sorted(clients)} {done}, at least {threshold} "
                f"of {of} must; left out: {told(self.failures)}"
            )


def _usable(keys: tuple[bytes, ...], taken: set[bytes]) -> bool:
    """Tell whether these are public keys that no other client has."""
    # A wrong key would make every client fail that has to agree with this client.
    try:
        crypto.agreed_keys(crypto.new_secret(), keys, "trial")
    except ValueError:
        return False
    return len({*keys} - taken) == len(keys)


def _joined(shares: Sequence[bytes]) -> bytes | None:
    # A peer's share may be any bytes.
    try:
        return crypto.join_shares(shares)
    except ValueError:
        return None


def _few_left_out(
    answered: Sequence[int], threshold: int
) -> Iterator[tuple[list[int], set[int]]]:
    """Choose ``threshold`` of the clients in every way, with few left out first.

    Each choice is the first clients that are not left out. Clients after them do not
    matter, so that no set is chosen twice.
    """
    for few in range(len(answered) - threshold + 1):
        for left_out in combinations(answered[: threshold + few - 1], few):
            rest = [client for client in answered if client not in left_out]
            yield rest[:threshold], {*left_out}


class SecureAggregationStrategy(ServerStrategy[Any]):
    """Hands a strategy the sum of a round; the server sees no update.

    To the server it is a strategy like any other. A client's update is its masked
    vector, ``masked`` (``vector``). `begin` has to be called before each attempt at a
    round.
    """

    def __init__(self, inner: ServerStrategy[Any], section: FederationSection) -> None:
        """Wrap a strategy that `SumsUpdates`.

        Raises:
            ContractError: the strategy needs more of clients than a sum.
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
        """Let clients agree on masks; return why some clients are left out.

        Raises:
            RoundError: too few clients agree.
        """
        self._masked = MaskedSum(channel, self._section)
        self._masked.agree(clients)
        return self._masked.failures

    @override
    def init(self, model: Arrays) -> Payload:
        return self._inner.init(model)

    @override
    def send(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        assert self._masked is not None  # `begin` comes before
        sent = self._inner.send(state, stage, client)
        clients = np.asarray(self._masked.holders(client), np.int64)
        layout = self._layout(state).to_array()
        return {**sent, protocol.SUM_OF: {"clients": clients, "layout": layout}}

    @override
    def send_to_predict(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        return self._inner.send_to_predict(state, stage, client)

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        expected = {"vector": np.broadcast_to(np.uint64(0), self._layout(state).size)}
        update_checks.same_tensors(update.payload, {"masked": expected})

    @override
    def combine(self, state: Payload, stage: TaskStage, updates: Updates) -> Payload:
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
    def report(
        self, state: Payload, stage: TaskStage, metrics: base.Metrics
    ) -> Mapping[str, float | Diagnostic]:
        return self._inner.report(state, stage, metrics)

    @override
    def remarks(self) -> Mapping[str, str]:
        share = f"{self._section.secure_threshold:.0%}"
        how = f"the server sees sums over at least {share} of a round's clients"
        return {**self._inner.remarks(), "secure aggregation": how}

    @override
    def advice(self, diagnostics: Mapping[str, Diagnostic]) -> str:
        return self._inner.advice(diagnostics)

    def _layout(self, state: Payload) -> Layout:
        weighted = not base.adds_up(self._inner)
        return Layout.of(self._sums.summands(state), weighted=weighted)
