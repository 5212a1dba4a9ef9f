"""A strategy under secure aggregation: what looks at updates sees masked vectors."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from typing_extensions import override

from fcl_flower.algorithms.base import ServerStrategy
from fcl_flower.algorithms.hooks import (
    AsksClients,
    Explains,
    RestoresClients,
    SumsUpdates,
)
from fcl_flower.config.sections import FederationSection
from fcl_flower.core import update_checks
from fcl_flower.core.errors import ContractError, RoundError, WireError
from fcl_flower.core.types import Arrays, Payload, TaskStage, Update
from fcl_flower.federation.secure import fixed_point
from fcl_flower.federation.secure.channel import Channel
from fcl_flower.federation.secure.exchange import SUM_OF
from fcl_flower.federation.secure.fixed_point import Layout, Vector
from fcl_flower.federation.secure.masked_sum import MaskedSum


class SecureSum(ServerStrategy[Any], Explains):
    """Hands a strategy the sum of a round; no update is ever seen.

    To the server it is a strategy like any other: a client's update is its masked
    vector, ``masked`` (``vector``). Only `begin` has to be called before each attempt
    at a round.
    """

    def __init__(self, inner: ServerStrategy[Any], section: FederationSection) -> None:
        """Wrap a strategy.

        Args:
            inner: one that `SumsUpdates`.
            section: threshold, bits, and the largest norm of a mean.

        Raises:
            ContractError: it does something with clients that is not a sum.
        """
        super().__init__(inner.params, inner.seed)
        rounds_alone = isinstance(inner, AsksClients | RestoresClients)
        if (
            not isinstance(inner, SumsUpdates)
            or rounds_alone
            or inner.evaluates_locally
        ):
            raise ContractError(
                f"{type(inner).__name__}: got secure aggregation, expected "
                "SumsUpdates, whose server neither queries clients nor depends on "
                "what they keep"
            )
        self._inner: ServerStrategy[Any] = inner
        self._sums: SumsUpdates = inner
        self._section = section
        self._masked: MaskedSum | None = None

    def begin(self, channel: Channel, clients: Sequence[int]) -> Mapping[int, str]:
        """Let clients agree on masks; return why some have not, who are left out.

        Args:
            channel: to the clients.
            clients: who shall take part.

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
        return {**sent, SUM_OF: {"clients": clients, "layout": layout}}

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
        vectors = {client: _vector(update) for client, update in updates.items()}
        vector = masked.unmask(vectors)
        try:
            total = fixed_point.decode(vector, self._layout(state))
            if self._section.max_update_norm and not self._inner.adds_up:
                limit = self._section.max_update_norm
                base_norm = update_checks.base_norm(state)
                update_checks.norm(total.payload, base_norm, limit)
            return self._sums.aggregate_sum(state, stage, total)
        except WireError as error:
            raise RoundError(
                f"secure aggregation: the sum of {sorted(vectors)} is not used: {error}"
            ) from error

    @override
    def diagnostics(self, state: Payload, stage: TaskStage) -> Mapping[str, float]:
        inner = self._inner
        return inner.diagnostics(state, stage) if isinstance(inner, Explains) else {}

    @override
    def remarks(self) -> Mapping[str, str]:
        inner = self._inner
        found = inner.remarks() if isinstance(inner, Explains) else {}
        share = f"{self._section.secure_threshold:.0%}"
        how = f"the server sees sums over at least {share} of a round's clients"
        return {**found, "secure aggregation": how}

    def _layout(self, state: Payload) -> Layout:
        weighted = self._sums.weighs_examples
        return Layout.of(self._sums.summands(state), weighted=weighted)


def _vector(update: Update) -> Vector:
    return np.asarray(update.payload["masked"]["vector"])
