"""FedWeIT, server side: a sparse common base and a knowledge base of adapters.

Yoon et al., ICML 2021, https://arxiv.org/abs/2003.03196, algorithm 1 and section 3.4.
Decomposed weights are theta = B * g(m) + A + sum_j alpha_j A_j (equation 1). theta_G is
the group ``base``, A_i^(j) is ``adapters/i/j``.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Self, TypeAlias, TypeVar

import numpy as np
from pydantic import Field, model_validator
from typing_extensions import override

from fcl_flower.algorithms.base import (
    Group,
    Metrics,
    Params,
    ServerContext,
    ServerQueries,
    ServerStrategy,
)
from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.core import update_checks
from fcl_flower.core.diagnostics import Diagnostic
from fcl_flower.core.errors import WireError, config_error
from fcl_flower.core.types import (
    Array,
    Arrays,
    ClientTask,
    Payload,
    SparseArray,
    TaskStage,
    Update,
    client_tasks,
)
from strategies.fedweit import maths
from strategies.fedweit.maths import Overlap, SelectionRule

Gate: TypeAlias = Literal["sigmoid", "identity"]
Clustering: TypeAlias = Literal["k-means", "gaussian-mixture"]

CHANGED = "meta/changed"
SEEN = "meta/seen"
OVERLAP = "meta/overlap"
BEGUN = "meta/begun"


class FedWeitParams(Params):
    """Hyper-parameters of FedWeIT."""

    aggregation: Literal["masked-mean", "literal"] = "masked-mean"
    """``masked-mean``: mean over the clients that sent a channel; ``literal``: the
    paper's 1/C sum of B * g(m), in which a channel that was not sent counts as zero, so
    that the base shrinks in every round."""
    knowledge: SelectionRule = "sample:5"
    """Which adapters of other clients a client receives when it starts a task:
    ``previous`` (each client's one of the highest number), ``sample:K`` (K drawn from
    all finished ones, algorithm 1 line 3), ``sit:K`` (the K of the most similar tasks;
    text only), ``all``, or ``none``."""
    overlap: Overlap = "centred-cosine"
    """How ``sit`` compares tasks, and so what a client sends of a task:
    ``centred-cosine`` (one vector, from which the server takes the mean of all tasks),
    ``mean-cosine`` (the same vector as it is, as printed) or ``thresholded`` (all
    cluster centres)."""
    overlap_threshold: float = Field(0.7, ge=-1, le=1)
    """The cosine that ``thresholded`` must exceed."""
    clustering: Clustering = "k-means"
    """How the documents of a task are clustered for ``sit``."""
    clusters: int = Field(200, ge=1)
    """Q, the most centres, at least 1."""
    members: int = Field(5, ge=1)
    """Documents that a centre must stand for, at least 1."""
    drop_harmful: bool = False
    """Train the first round of a task also without the adapters of others; where that
    validates better, only go on with those of clients that help by themselves."""
    kappa: float = Field(0.3, gt=0, le=1)
    """Share of the output channels whose base is sent up, in (0, 1]."""
    lambda1: float = Field(1e-5, ge=0)
    """Weight of the sparsity of adapters, at least 0."""
    lambda_mask: float = Field(1e-4, ge=0)
    """Weight of the sparsity of gates, at least 0."""
    lambda2: float = Field(100.0, ge=0)
    """Weight of keeping old tasks where they were, at least 0. Where tasks of texts
    share labels 0 is better."""
    threshold: float = Field(0.0, ge=0)
    """Entries of adapters up to this magnitude are dropped when a task ends, those of
    older tasks that have followed the base too, at least 0. Rounding drops those that
    are small beside the largest of their layer; the released code has 1e-3."""
    adapter_bits: Literal[2, 3, 4, 5, 6, 7, 8, 32] = 5
    """Bits of an entry of a finished adapter as it is kept and handed in: it is rounded
    to so many levels, and what a task takes of others' adapters is added to its own.
    32 keeps both apart and as they are, as in the paper."""
    gate: Gate = "identity"
    """The function g in theta = B * g(m) + A; gates of ``identity`` can be exactly
    zero."""
    initial_gate: float = 1.0
    """Raw value m of a new task's mask."""
    initial_adapter: float = 0.0
    """A of a new task starts as this multiple of the initial base."""
    base_rate: float = Field(1.0, ge=0)
    """Factor on the learning rate for B, at least 0."""
    mask_rate: float = Field(1.0, ge=0)
    """Factor on the learning rate for m, at least 0."""
    attention_rate: float = Field(30.0, ge=0)
    """Factor on the learning rate for alpha, at least 0."""
    follow: float = Field(0.5, ge=0, le=1)
    """Share of a change of the base by others that the adapter in training takes back,
    in [0, 1]: 0 as in the paper, which helps where clients have the same classes; 1
    where their tasks have nothing in common."""
    solver: Literal["closed", "unbraked", "gradient"] = "closed"
    """How old adapters follow the base: ``closed`` (in closed form, exactly; the base
    feels in every step what that costs, at most ``lambda1`` an entry and task),
    ``unbraked`` (the same, but the base feels nothing, which is faster and costs half
    a point), or ``gradient`` (trained along in every step, as printed)."""

    @property
    @override
    def needs_validation(self) -> bool:
        return self.drop_harmful

    @model_validator(mode="after")
    def _check_gate(self) -> Self:
        if self.gate == "identity" and self.aggregation == "literal":
            raise ValueError(
                "strategy.aggregation: got 'literal', expected 'masked-mean' for "
                "strategy.gate 'identity', whose gates above 1 would multiply the base "
                "in every round, without end"
            )
        return self


ALGORITHM = Algorithm(
    name="fedweit",
    server="strategies.fedweit:FedWeit",
    client="clients.fedweit.client:FedWeit",
    params_type=FedWeitParams,
    summary="gated base, sparse adapters, attention to other clients' adapters",
    paper="Yoon et al., ICML 2021",
    privacy_units=("client",),
)


class Broadcast:
    """What a state has for many clients: equal parts are found once, as one object."""

    def __init__(self, state: Payload) -> None:
        """Index a state, which is never changed."""
        self.state = state
        self.adapters = client_tasks(state, "adapters")
        self._since: dict[int, Arrays] = {}

    def changed_since(self, since: int) -> Arrays:
        """Select the channels of the base that changed in round ``since`` or later."""
        if since not in self._since:
            rounds = self.state.get(CHANGED, {}).items()
            fresh = {name: np.flatnonzero(np.asarray(r) >= since) for name, r in rounds}
            self._since[since] = {
                name: SparseArray.of_channels(np.asarray(values), fresh[name])
                for name, values in self.state["base"].items()
                if len(fresh[name])
            }
        return self._since[since]


P = TypeVar("P", bound=FedWeitParams)


class FedWeit(ServerStrategy[P], ServerQueries):
    """Keep theta_G and every adapter handed in.

    State: ``base`` (theta_G, dense), ``adapters/C/T`` (sparse), and, so that a client
    receives only the channels that changed since its last round, ``meta/changed``
    (round of the last change by channel) and ``meta/seen`` (by client, the last round
    whose broadcast reached it for certain). With SIT also ``summaries/C/T``,
    ``meta/overlap/C/T`` (scores of that task by candidate ``c/t``) and ``meta/begun``
    (round of its query by task ``C/T``).
    """

    predicts_locally = True
    robust_aggregation = True
    groups: ClassVar[Mapping[str, Group]] = {
        "base": Group(mean=True, model=True),
        "adapters": Group(rounded=True, shared=True, on_disk=True),
    }

    def __init__(self, params: P, context: ServerContext) -> None:
        """Read K of ``sit:K``; 0 for the other policies."""
        super().__init__(params, context)
        name, _, count = params.knowledge.partition(":")
        self._sit = int(count) if name == "sit" else 0
        self._broadcast = Broadcast({})

    @property
    @override
    def asks(self) -> bool:
        return bool(self._sit)

    @override
    def init(self, model: Arrays) -> Payload:
        if self.params.aggregation == "literal" and self.aggregation.compares:
            raise config_error(
                "strategy.aggregation",
                "literal",
                "'masked-mean' with a federation.aggregation other than the mean",
            )
        base = maths.decomposed(model)
        maths.require_weights(base, "FedWeIT")
        if self._sit and any(weight.ndim != 3 for weight in base.values()):
            raise config_error(
                "strategy.knowledge",
                self.params.knowledge,
                "a rule without sit, as the model is no network over word vectors",
            )
        changed = {name: np.zeros(len(v), np.int64) for name, v in base.items()}
        return {"base": base, CHANGED: changed, SEEN: {}}

    # ---- the knowledge base

    @override
    def configure_query(
        self, state: Payload, stage: TaskStage, client: int
    ) -> Payload | None:
        return {} if self.asks and self.begins(state, stage, client) else None

    @override
    def check_query_reply(self, state: Payload, answer: Payload) -> None:
        params = self.params
        maths.check_summary(params.overlap, answer, state["base"], params.clusters)

    @override
    def aggregate_query(
        self, state: Payload, stage: TaskStage, answers: Mapping[int, Payload]
    ) -> Payload:
        """Score what new tasks overlap with; who withholds a summary gets nothing."""
        told = {
            ClientTask(client, stage.task): answer["summary"]
            for client, answer in answers.items()
            if answer
        }
        state = {**state, **{task.group("summaries"): told[task] for task in told}}
        scores = {task.group(OVERLAP): self._overlaps(state, task) for task in told}
        begun = {task.name: np.asarray(stage.round) for task in told}
        return {**state, **scores, BEGUN: {**state.get(BEGUN, {}), **begun}}

    @override
    def diagnostics(
        self, state: Payload, stage: TaskStage, metrics: Metrics
    ) -> Mapping[str, float | Diagnostic]:
        begun = sorted(
            ClientTask.of(name)
            for name, number in state.get(BEGUN, {}).items()
            if int(np.asarray(number)) == stage.round
        )
        scores = {task.name: self._scores(state, task) for task in begun}
        chosen = {
            task: maths.most_similar(of, self._sit) for task, of in scores.items()
        }
        return maths.of_adapters(metrics) | maths.of_overlaps(scores, chosen)

    @override
    def advice(self, diagnostics: Mapping[str, Diagnostic]) -> str:
        params = self.params
        return maths.advice_on(diagnostics, params.lambda1, params.adapter_bits)

    def begins(self, state: Payload, stage: TaskStage, client: int) -> bool:
        """Tell whether a client begins a task, for which it takes adapters of others.

        Where concepts are hidden each round is the first of the only task; a client
        that has sent its adapter, and lost nothing since, goes on with what it has.
        """
        own = ClientTask(client, stage.task).group("adapters")
        goes_on = own in state and str(client) in state[SEEN]
        return stage.starts_task and not goes_on

    def chosen(self, state: Payload, stage: TaskStage, client: int) -> list[ClientTask]:
        """Choose the adapters of other clients' finished tasks that travel.

        Whatever has been handed in: clients have orders of their own, so that the
        number of another client's task says nothing.
        """
        new = ClientTask(client, stage.task)
        if self._sit:
            names = maths.most_similar(self._scores(state, new), self._sit)
            return [ClientTask.of(name) for name in names]
        others = [a for a in self.broadcast(state).adapters if a.client != client]
        return maths.choose(self.params.knowledge, others, new, self.context.seed)

    def _scores(self, state: Payload, new: ClientTask) -> dict[str, float]:
        scores = state.get(new.group(OVERLAP), {})
        return {name: float(np.asarray(score)) for name, score in scores.items()}

    def _overlaps(self, state: Payload, new: ClientTask) -> Arrays:
        kind = self.params.overlap
        told = {
            group: np.asarray(tensors[maths.SUMMARY[kind]])
            for group, tensors in state.items()
            if group.startswith("summaries/")
        }
        if kind == "centred-cosine":
            rows = maths.centred(np.stack(list(told.values())))
            told = dict(zip(told, rows, strict=True))
        mine, limit = told[new.group("summaries")], self.params.overlap_threshold
        return {
            other.name: np.asarray(maths.similarity(kind, mine, told[group], limit))
            for other in client_tasks(state, "adapters")
            if other.client != new.client
            and (group := other.group("summaries")) in told
        }

    # ---- a round

    @override
    def configure_train(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        since = int(np.asarray(state[SEEN].get(str(client), 0)))
        payload = {"base": self.broadcast(state).changed_since(since)}
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
        old, sent = state["base"], [u.payload.get("base", {}) for u in updates.values()]
        if self.params.aggregation == "masked-mean":
            base = self.aggregation.combine(sent, start=old)
        else:
            base = {n: _literal_mean(np.asarray(b), n, sent) for n, b in old.items()}
        changed: dict[str, Array] = {}
        for name, values in old.items():
            rounds = np.array(state[CHANGED][name])
            for tensor in _sent_as(name, sent):
                rounds[tensor.indices // (values.size // len(rounds))] = stage.round
            changed[name] = rounds
        stages = {client: update.stage or stage for client, update in updates.items()}
        adapters = {
            ClientTask(client, stages[client].task).group("adapters"): adapter
            for client, update in updates.items()
            if (adapter := update.payload.get("adapters")) is not None
        }
        seen = {str(client): np.asarray(s.round) for client, s in stages.items()}
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

    def broadcast(self, state: Payload) -> Broadcast:
        """Index what a state has for many clients at once."""
        if self._broadcast.state is not state:
            self._broadcast = Broadcast(state)
        return self._broadcast


def _literal_mean(old: Array, name: str, sent: Sequence[Arrays]) -> Array:
    """Divide the sum over all clients by their number, where anything came."""
    total, arrived = np.zeros(old.size), np.zeros(old.size, bool)
    for tensor in _sent_as(name, sent):
        total[tensor.indices] += tensor.values
        arrived[tensor.indices] = True
    flat = np.where(arrived, total / len(sent), old.reshape(-1))
    return flat.astype(old.dtype).reshape(old.shape)


def _sent_as(name: str, sent: Sequence[Arrays]) -> list[SparseArray]:
    found = (arrays.get(name) for arrays in sent)
    return [tensor for tensor in found if isinstance(tensor, SparseArray)]
