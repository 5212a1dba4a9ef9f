"""FedWeIT, server side: a sparse common base and a knowledge base of adapters.

Yoon et al., ICML 2021, https://arxiv.org/abs/2003.03196, algorithm 1 and section 3.4.
Symbols: theta_G is the group ``base``, A_i^(j) is ``adapters/i/j``, kappa is the share
of output channels that a client sends (the learner's setting).
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, TypeVar

import numpy as np
from typing_extensions import override

from fcl_flower.algorithms.base import (
    Group,
    Metrics,
    ServerContext,
    ServerQueries,
    ServerStrategy,
)
from fcl_flower.core import update_checks
from fcl_flower.core.diagnostics import Diagnostic
from fcl_flower.core.errors import ConfigError, WireError, config_error
from fcl_flower.core.types import Array, Arrays, Payload, SparseArray, TaskStage, Update
from strategies.fedweit import FedWeitParams, maths
from strategies.fedweit.maths import (
    Adapter,
    AdapterSelection,
    check_summary,
    decomposed,
    uploaded_groups,
)

CHANGED = "meta/changed"


@dataclass(frozen=True, eq=False)
class Broadcast:
    """Parts of one state.

    Attributes:
        state: with ``base``, ``meta/changed`` and ``adapters/C/T``; never changed.
    """

    state: Payload
    _since: dict[int, Arrays] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def adapters(self) -> list[Adapter]:
        """Whose adapters the server has, ascending."""
        return uploaded_groups(self.state)

    def changed_since(self, since: int) -> Arrays:
        """Select the channels of the base that changed in a round or after it.

        Args:
            since: the round; 0 for all channels.
        """
        if since not in self._since:
            self._since[since] = dict(self._changed_since(since))
        return self._since[since]

    def adapters_beside(self, client: int) -> list[Adapter]:
        """List the adapters of all clients but one, ascending."""
        first, last = (bisect_left(self.adapters, (c, 0)) for c in (client, client + 1))
        return self.adapters[:first] + self.adapters[last:]

    def _changed_since(self, since: int) -> Mapping[str, SparseArray]:
        found = {}
        for name, values in self.state["base"].items():
            rounds = np.asarray(self.state[CHANGED][name])
            fresh = np.flatnonzero(rounds >= since)
            if len(fresh):
                found[name] = SparseArray.of_channels(np.asarray(values), fresh)
        return found


SEEN = "meta/seen"


P = TypeVar("P", bound=FedWeitParams)


class FedWeit(ServerStrategy[P], ServerQueries):
    """Keep theta_G and every adapter handed in.

    State: ``base`` (theta_G, dense), ``adapters/C/T`` (sparse), and, so that a client
    receives only the channels that changed since its last round, ``meta/changed``
    (round of the last change by channel) and ``meta/seen`` (by client, the last round
    whose broadcast reached it for certain).
    `AdapterSelection` describes what SIT adds.
    """

    predicts_locally = True
    robust_aggregation = True
    groups: ClassVar[Mapping[str, Group]] = {
        "base": Group(mean=True, model=True),
        "adapters": Group(rounded=True, shared=True),
    }

    def __init__(self, params: P, context: ServerContext) -> None:
        """Read the policy of the knowledge base."""
        super().__init__(params, context)
        self._knowledge = AdapterSelection(
            params.knowledge, params.overlap, params.overlap_threshold, context.seed
        )
        self._broadcast = Broadcast({})

    @property
    @override
    def asks(self) -> bool:
        return bool(self._knowledge.sit)

    @override
    def init(self, model: Arrays) -> Payload:
        if self.params.aggregation == "literal" and self.aggregation.compares:
            raise config_error(
                "strategy.aggregation",
                "literal",
                "'masked-mean' with a federation.aggregation other than the mean",
            )
        base = decomposed(model)
        if not base:
            raise ConfigError(
                "model: got a body without trained weights, expected one that has "
                "them: FedWeIT decomposes nothing else"
            )
        if self._knowledge.sit and any(weight.ndim != 3 for weight in base.values()):
            raise config_error(
                "strategy.knowledge",
                self.params.knowledge,
                "a rule without sit, as the model is no network over word vectors",
            )
        changed = {name: np.zeros(len(v), np.int64) for name, v in base.items()}
        return {"base": base, CHANGED: changed, SEEN: {}}

    @override
    def configure_query(
        self, state: Payload, stage: TaskStage, client: int
    ) -> Payload | None:
        return {} if self.asks and self.begins(state, stage, client) else None

    @override
    def check_query_reply(self, state: Payload, answer: Payload) -> None:
        params = self.params
        check_summary(params.overlap, answer, state["base"], params.clusters)

    @override
    def aggregate_query(
        self, state: Payload, stage: TaskStage, answers: Mapping[int, Payload]
    ) -> Payload:
        return self._knowledge.aggregate_query(state, stage, answers)

    @override
    def diagnostics(
        self, state: Payload, stage: TaskStage, metrics: Metrics
    ) -> Mapping[str, float | Diagnostic]:
        overlaps = self._knowledge.overlaps(state, stage)
        return maths.of_adapters(metrics) | overlaps

    @override
    def configure_train(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        seen = state[SEEN].get(str(client))
        since = -1 if seen is None else int(np.asarray(seen))
        payload = {"base": self.broadcast(state).changed_since(max(since, 0))}
        if self.begins(state, stage, client):
            for adapter in self.chosen(state, stage, client):
                group = adapter.group("adapters")
                payload[group] = state[group]
        return payload

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        known = {adapter.name for adapter in self.broadcast(state).adapters}
        maths.check_metrics(update.metrics, known)
        odd = update.payload.keys() - {"base", "adapters"}
        if odd:
            raise WireError(f"groups {sorted(odd)}: expected base and adapters")
        for group, arrays in update.payload.items():
            update_checks.fits(group, arrays, state["base"], sparse=True)
        # Channels of the base may stay at home, but an adapter is used as a whole.
        missing = state["base"].keys() - update.payload.get("adapters", state["base"])
        if missing:
            raise WireError(f"adapters: tensors {sorted(missing)} are missing")

    @override
    def aggregate_train(
        self, state: Payload, stage: TaskStage, updates: Mapping[int, Update]
    ) -> Payload:
        old = state["base"]
        sent = [update.payload.get("base", {}) for update in updates.values()]
        base = self._combined(old, sent)
        changed: dict[str, Array] = {}
        for name, values in old.items():
            rounds = np.array(state[CHANGED][name])
            for tensor in _of(name, sent):
                rounds[tensor.indices // (values.size // len(rounds))] = stage.round
            changed[name] = rounds
        asked = {client: update.stage or stage for client, update in updates.items()}
        adapters = {
            Adapter(client, asked[client].task).group("adapters"): update.payload[
                "adapters"
            ]
            for client, update in updates.items()
            if "adapters" in update.payload
        }
        seen = {str(c): np.asarray(a.round) for c, a in asked.items()}
        return {
            **state,
            **adapters,
            "base": base,
            CHANGED: changed,
            SEEN: {**state[SEEN], **seen},
        }

    @override
    def on_state_lost(self, state: Payload, client: int) -> Payload:
        known = state[SEEN].items()
        return {**state, SEEN: {name: v for name, v in known if name != str(client)}}

    def begins(self, state: Payload, stage: TaskStage, client: int) -> bool:
        """Tell whether a client begins a task, for which it takes adapters of others.

        Where concepts are hidden each round is the first of the only task; a client
        that has sent its adapter, and lost nothing since, goes on with what it has.
        """
        own = Adapter(client, stage.task).group("adapters")
        goes_on = own in state and str(client) in state[SEEN]
        return stage.starts_task and not goes_on

    def chosen(self, state: Payload, stage: TaskStage, client: int) -> list[Adapter]:
        """Choose the adapters of other clients' finished tasks that travel."""
        known = self.broadcast(state).adapters_beside(client)
        return self._knowledge.chosen(state, Adapter(client, stage.task), known)

    def broadcast(self, state: Payload) -> Broadcast:
        """Index what a state has for many clients at once."""
        if self._broadcast.state is not state:
            self._broadcast = Broadcast(state)
        return self._broadcast

    def _combined(self, old: Arrays, sent: Sequence[Arrays]) -> Arrays:
        if self.params.aggregation == "masked-mean":
            return self.aggregation.combine(sent, start=old)
        return {
            name: _literal_mean(np.asarray(b), name, sent) for name, b in old.items()
        }


def _literal_mean(old: Array, name: str, sent: Sequence[Arrays]) -> Array:
    """Divide the sum over all clients by their number, where anything came."""
    total, arrived = np.zeros(old.size), np.zeros(old.size, bool)
    for tensor in _of(name, sent):
        total[tensor.indices] += tensor.values
        arrived[tensor.indices] = True
    flat = np.where(arrived, total / len(sent), old.reshape(-1))
    return flat.astype(old.dtype).reshape(old.shape)


def _of(name: str, sent: Sequence[Arrays]) -> Iterator[SparseArray]:
    """Yield a tensor from all who sent it."""
    for arrays in sent:
        tensor = arrays.get(name)
        if isinstance(tensor, SparseArray):
            yield tensor
