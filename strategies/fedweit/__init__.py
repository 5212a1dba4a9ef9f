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
    Metrics,
    Params,
    Report,
    Role,
    ServerQueries,
    ServerStrategy,
    Updates,
)
from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.config.parsing import Counts
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

    counts = (
        Counts("strategy.overlap_threshold", "strategy.overlap", ("thresholded",)),
    )

    aggregation: Literal["masked-mean", "literal"] = "masked-mean"
    """The mean of the base. ``masked-mean`` is the mean over the clients that sent a
    channel. ``literal`` is the paper's 1/C sum of B * g(m). There a channel that was
    not sent counts as zero, so that the base shrinks in every round."""
    knowledge: SelectionRule = "sample:5"
    """The choice of other clients' adapters that a client receives when it starts a
    task. ``previous`` takes of each client the one of the highest number. ``sample:K``
    draws K from all finished ones (algorithm 1 line 3). ``sit:K`` takes the K of the
    most similar tasks, for text only. ``all`` takes all, ``none`` takes none."""
    overlap: Overlap = "centred-cosine"
    """The comparison of tasks by ``sit``, which decides what a client sends of a task.
    With ``centred-cosine``, it sends one vector, from which the server subtracts the
    mean of all tasks. With ``mean-cosine``, the same vector counts as it is, as
    printed. With ``thresholded``, it sends all cluster centres."""
    overlap_threshold: float = Field(0.7, ge=-1, le=1)
    """The cosine that ``thresholded`` must exceed."""
    clustering: Clustering = "k-means"
    """The clustering of a task's documents for ``sit``."""
    clusters: int = Field(200, ge=1)
    """The largest number Q of centres, at least 1."""
    members: int = Field(5, ge=1)
    """The number of documents for which a centre must stand, at least 1."""
    drop_harmful: bool = False
    """Whether the first round of a task is also trained without the adapters of others.
    Where that validates better, training goes on only with adapters of clients that
    help by themselves."""
    kappa: float = Field(0.3, gt=0, le=1)
    """The share of the output channels whose base a client sends, in (0, 1]."""
    lambda1: float = Field(1e-5, ge=0)
    """The weight of the sparsity of adapters, at least 0."""
    lambda_mask: float = Field(1e-4, ge=0)
    """The weight of the sparsity of gates, at least 0."""
    lambda2: float = Field(100.0, ge=0)
    """The weight of the penalty that keeps old tasks as they were, at least 0. Where
    tasks of texts share labels 0 is better."""
    threshold: float = Field(0.0, ge=0)
    """The magnitude up to which entries of adapters are dropped when a task ends, at
    least 0. It also holds for older tasks' adapters, which have followed the base.
    Rounding drops entries that are small beside the largest of their layer; the
    released code has 1e-3."""
    adapter_bits: Literal[2, 3, 4, 5, 6, 7, 8, 32] = 5
    """The bits of an entry of a finished adapter as it is stored and sent: it is
    rounded to so many levels. The foreign adapters that a task uses are then added to
    its own. With 32 both are kept apart and unrounded, as in the paper."""
    gate: Gate = "identity"
    """The function g in theta = B * g(m) + A; gates of ``identity`` can be exactly
    zero."""
    initial_gate: float = 1.0
    """The raw value m of a new task's mask."""
    initial_adapter: float = 0.0
    """The multiple of the initial base at which A of a new task starts."""
    base_rate: float = Field(1.0, ge=0)
    """The factor on the learning rate for B, at least 0."""
    mask_rate: float = Field(1.0, ge=0)
    """The factor on the learning rate for m, at least 0."""
    attention_rate: float = Field(30.0, ge=0)
    """The factor on the learning rate for alpha, at least 0."""
    follow: float = Field(0.5, ge=0, le=1)
    """The share of the base's change by others that the adapter in training takes back,
    in [0, 1]. 0, as in the paper, helps where clients have the same classes; 1 helps
    where their tasks have nothing in common."""
    solver: Literal["closed", "unbraked", "gradient"] = "closed"
    """The way old adapters follow the base. ``closed`` computes them exactly, in closed
    form; in every step the base feels the cost, at most ``lambda1`` for each entry and
    task. ``unbraked`` is the same, but the base feels nothing, which is faster and
    costs half a point. ``gradient`` trains them along in every step, as printed."""

    @property
    @override
    def needs_validation(self) -> bool:
        return self.drop_harmful

    @model_validator(mode="after")
    def _tasks_are_compared(self) -> Self:
        compares = ("overlap", "clustering", "clusters", "members")
        for key in compares if not self.knowledge.startswith("sit:") else ():
            if key in self.model_fields_set:
                raise ValueError(
                    f"strategy.{key}: got {getattr(self, key)!r}, expected none unless "
                    "strategy.knowledge is 'sit:K', without which it has no effect"
                )
        return self

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
    """The parts of a state that many clients receive; equal parts are one object."""

    def __init__(self, state: Payload) -> None:
        """Index a state, which never changes."""
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
    """A strategy that keeps theta_G and every adapter that a client has sent.

    State:

    - ``base``: theta_G, dense. ``adapters/C/T``: sparse.
    - ``meta/changed``: the round of the last change, by channel. By it a client
      receives only the channels that changed since its last round.
    - ``meta/seen``: by client, the last round whose broadcast reached it for certain.
    - with SIT also ``summaries/C/T``, ``meta/overlap/C/T`` (scores of that task by
      candidate ``c/t``) and ``meta/begun`` (round of its query by task ``C/T``).
    """

    predicts_locally = True
    robust_aggregation = True
    groups: ClassVar[Mapping[str, Role]] = {"base": "model", "adapters": "private"}

    @override
    def prepare(self) -> None:
        """Read K of ``sit:K``; 0 for the other policies."""
        name, _, count = self.params.knowledge.partition(":")
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
        if odd := [name for name in base if ".parametrizations." in name]:
            name = odd[0].removeprefix("body.").partition(".parametrizations.")[0]
            raise config_error(
                "model",
                f"a parametrized layer {name}",
                "layers whose weights are parameters: FedWeIT makes some of them zero, "
                "by which a weight norm divides",
            )
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
        """Score the overlap of new tasks; clients without a summary get no adapter."""
        summaries = {
            ClientTask(client, stage.task): answer["summary"]
            for client, answer in answers.items()
            if answer
        }
        state = {
            **state,
            **{task.group("summaries"): summaries[task] for task in summaries},
        }
        scores = {
            task.group(OVERLAP): self._overlaps(state, task) for task in summaries
        }
        begun = {task.name: np.asarray(stage.round) for task in summaries}
        return {**state, **scores, BEGUN: {**state.get(BEGUN, {}), **begun}}

    @override
    def report(self, state: Payload, stage: TaskStage, metrics: Metrics) -> Report:
        begun = sorted(
            ClientTask.of(name)
            for name, number in state.get(BEGUN, {}).items()
            if int(np.asarray(number)) == stage.round
        )
        scores = {task.name: self._scores(state, task) for task in begun}
        chosen = {
            task: maths.most_similar(overlaps, self._sit)
            for task, overlaps in scores.items()
        }
        return maths.of_adapters(metrics) | maths.of_overlaps(scores, chosen)

    @override
    def advice(self, diagnostics: Mapping[str, Diagnostic]) -> str:
        params = self.params
        return maths.advice_on(diagnostics, params.lambda1, params.adapter_bits)

    def begins(self, state: Payload, stage: TaskStage, client: int) -> bool:
        """Tell whether a client begins a task, for which it takes adapters of others.

        Where concepts are hidden each round is the first of the only task. A client
        that has sent its adapter, and has lost nothing since, goes on with its own
        state.
        """
        own = ClientTask(client, stage.task).group("adapters")
        goes_on = own in state and str(client) in state[SEEN]
        return stage.starts_task and not goes_on

    def chosen(self, state: Payload, stage: TaskStage, client: int) -> list[ClientTask]:
        """Choose the adapters of other clients' finished tasks that travel.

        Any adapter on the server may be chosen. Clients have orders of their own, so
        the number of another client's task says nothing.
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
        summaries = {
            group: np.asarray(tensors[maths.SUMMARY[kind]])
            for group, tensors in state.items()
            if group.startswith("summaries/")
        }
        if kind == "centred-cosine":
            rows = maths.centred(np.stack(list(summaries.values())))
            summaries = dict(zip(summaries, rows, strict=True))
        mine, limit = summaries[new.group("summaries")], self.params.overlap_threshold
        return {
            other.name: np.asarray(
                maths.similarity(kind, mine, summaries[group], limit)
            )
            for other in client_tasks(state, "adapters")
            if other.client != new.client
            and (group := other.group("summaries")) in summaries
        }

    # ---- a round

    @override
    def send(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        since = int(np.asarray(state[SEEN].get(str(client), 0)))
        payload = {"base": self.broadcast(state).changed_since(since)}
        if self.begins(state, stage, client):
            for adapter in self.chosen(state, stage, client):
                group = adapter.group("adapters")
                payload[group] = state[group]
        return payload

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        adapters = {adapter.name for adapter in self.broadcast(state).adapters}
        maths.check_metrics(update.metrics, adapters)
        odd = update.payload.keys() - {"base", "adapters"}
        if odd:
            raise WireError(f"groups {sorted(odd)}: expected base and adapters")
        for group, arrays in update.payload.items():
            update_checks.fits(group, arrays, state["base"], sparse=True)
        # A client may leave out channels of the base, but no part of an adapter.
        missing = state["base"].keys() - update.payload.get("adapters", state["base"])
        if missing:
            raise WireError(f"adapters: tensors {sorted(missing)} are missing")

    @override
    def combine(self, state: Payload, stage: TaskStage, updates: Updates) -> Payload:
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
        seen = state[SEEN].items()
        return {**state, SEEN: {name: v for name, v in seen if name != str(client)}}

    def broadcast(self, state: Payload) -> Broadcast:
        """Index the parts of a state that many clients receive, once for each state."""
        if self._broadcast.state is not state:
            self._broadcast = Broadcast(state)
        return self._broadcast


def _literal_mean(old: Array, name: str, sent: Sequence[Arrays]) -> Array:
    """Divide the sum over all clients by their number, where any entry was sent."""
    total, arrived = np.zeros(old.size), np.zeros(old.size, bool)
    for tensor in _sent_as(name, sent):
        total[tensor.indices] += tensor.values
        arrived[tensor.indices] = True
    flat = np.where(arrived, total / len(sent), old.reshape(-1))
    return flat.astype(old.dtype).reshape(old.shape)


def _sent_as(name: str, sent: Sequence[Arrays]) -> list[SparseArray]:
    tensors = (arrays.get(name) for arrays in sent)
    return [tensor for tensor in tensors if isinstance(tensor, SparseArray)]
