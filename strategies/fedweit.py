"""FedWeIT, server half: a sparse common base and a knowledge base of adapters.

Yoon et al., ICML 2021, https://arxiv.org/abs/2003.03196, algorithm 1 and section 3.4.
Symbols: theta_G is the group ``base``, A_i^(j) is ``adapters/i/j``, kappa is the share
of output channels that a client sends (the learner's setting).
"""

from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import field_validator
from typing_extensions import override

from fcl_flower import checks
from fcl_flower.contracts import Params, Strategy
from fcl_flower.decomposition import decomposed
from fcl_flower.errors import WireError
from fcl_flower.seeds import derive
from fcl_flower.sparse import SparseArray
from fcl_flower.types import Array, Arrays, Payload, Stage, Update

CHANGED = "meta/changed"
SEEN = "meta/seen"


class FedWeitParams(Params):
    """Hyper-parameters of the server half.

    Attributes:
        aggregation: ``masked-mean``: mean over the clients that sent a channel;
            ``literal``: the paper's 1/C sum, in which a channel that was not sent
            counts as zero, so that the base shrinks in every round.
        knowledge: which adapters of other clients a client receives when it starts
            a task: ``previous`` (of the task before), ``sample:K`` (K drawn from all
            earlier tasks, algorithm 1 line 3), ``all``, or ``none``.
    """

    aggregation: Literal["masked-mean", "literal"] = "masked-mean"
    knowledge: str = "sample:5"

    @field_validator("knowledge")
    @classmethod
    def _known(cls, value: str) -> str:
        name, _, count = value.partition(":")
        if value in {"previous", "all", "none"}:
            return value
        if name == "sample" and count.isdigit() and int(count) > 0:
            return value
        raise ValueError("'previous', 'sample:K' with K above 0, 'all' or 'none'")


class Adapter(NamedTuple):
    """Whose adapter, and of which of its tasks."""

    client: int
    task: int

    def group(self, kind: str) -> str:
        """Return the group of a payload that carries this kind of its tensors."""
        return f"{kind}/{self.client}/{self.task}"


class FedWeit(Strategy[FedWeitParams]):
    """Keep theta_G and every adapter handed in.

    State: ``base`` (theta_G, dense), ``adapters/C/T`` (sparse), and, so that a client
    receives only the channels that changed since its last round, ``meta/changed``
    (round of the last change by channel) and ``meta/seen`` (last round by client).
    """

    params_type = FedWeitParams
    personal = True
    handed_in: ClassVar[tuple[str, ...]] = ("adapters",)

    @override
    def init(self, model: Arrays) -> Payload:
        base = decomposed(model)
        changed = {name: np.zeros(len(v), np.int64) for name, v in base.items()}
        return {"base": base, CHANGED: changed, SEEN: {}}

    @override
    def broadcast(self, state: Payload, stage: Stage, client: int) -> Payload:
        seen = state[SEEN].get(str(client))
        since = -1 if seen is None else int(np.asarray(seen))
        base: dict[str, SparseArray] = {}
        for name, values in state["base"].items():
            fresh = np.flatnonzero(np.asarray(state[CHANGED][name]) >= max(since, 0))
            if len(fresh):
                base[name] = SparseArray.of_channels(np.asarray(values), fresh)
        payload: dict[str, Arrays] = {"base": base}
        if stage.first:
            for adapter in self._chosen(state, stage, client):
                for kind in self.handed_in:
                    payload[adapter.group(kind)] = state[adapter.group(kind)]
        return payload

    @override
    def check(self, state: Payload, update: Update) -> None:
        odd = update.payload.keys() - {"base", "adapters"}
        if odd:
            raise WireError(f"groups {sorted(odd)}: expected base and adapters")
        for group, arrays in update.payload.items():
            checks.fits(group, arrays, state["base"], sparse=True)
        # Channels of the base may stay at home, but an adapter is used as a whole.
        missing = state["base"].keys() - update.payload.get("adapters", state["base"])
        if missing:
            raise WireError(f"adapters: tensors {sorted(missing)} are missing")

    @override
    def aggregate(
        self, state: Payload, stage: Stage, updates: Mapping[int, Update]
    ) -> Payload:
        base: dict[str, Array] = {}
        changed: dict[str, Array] = {}
        for name, old in state["base"].items():
            sent = [
                values
                for update in updates.values()
                if isinstance(
                    values := update.payload.get("base", {}).get(name), SparseArray
                )
            ]
            new, touched = self._mean(np.asarray(old), sent, len(updates))
            base[name] = new
            rounds = np.array(state[CHANGED][name])
            rounds[touched] = stage.round
            changed[name] = rounds
        handed_in = {
            Adapter(client, stage.task).group(kind): update.payload[kind]
            for client, update in updates.items()
            for kind in self.handed_in
            if kind in update.payload
        }
        seen = {str(client): np.asarray(stage.round) for client in updates}
        return {
            **state,
            **handed_in,
            "base": base,
            CHANGED: changed,
            SEEN: {**state[SEEN], **seen},
        }

    def _mean(
        self, old: Array, sent: list[SparseArray], clients: int
    ) -> tuple[Array, Array]:
        """Return the new tensor and the channels in which it changed."""
        total = np.zeros(old.size, np.float64)
        count = np.zeros(old.size, np.int64)
        for values in sent:
            total[values.indices] += values.values
            count[values.indices] += 1
        arrived = count > 0
        if self.params.aggregation == "literal":
            count[:] = clients
        new = old.reshape(-1).copy()
        new[arrived] = total[arrived] / count[arrived]
        channels = arrived.reshape(len(old), -1).any(axis=1)
        return new.reshape(old.shape), np.flatnonzero(channels)

    def _chosen(self, state: Payload, stage: Stage, client: int) -> list[Adapter]:
        """Return the adapters of other clients' earlier tasks that travel."""
        name, _, count = self.params.knowledge.partition(":")
        known = [
            adapter
            for adapter in _handed_in(state)
            if adapter.client != client and adapter.task < stage.task
        ]
        if name == "none":
            return []
        if name == "previous":
            return [a for a in known if a.task == stage.task - 1]
        if name == "sample" and int(count) < len(known):
            draw = np.random.default_rng(
                derive(self.seed, "knowledge", client, stage.task)
            )
            picked = draw.choice(len(known), size=int(count), replace=False)
            return [known[i] for i in sorted(picked)]
        return known


def _handed_in(state: Payload) -> list[Adapter]:
    found = []
    for group in state:
        if group.startswith("adapters/"):
            _, client, task = group.split("/")
            found.append(Adapter(int(client), int(task)))
    return sorted(found)
