"""FedWeIT: declaration and hyper-parameters; NumPy only.

Yoon et al., ICML 2021, https://arxiv.org/abs/2003.03196. Decomposed weights are
theta = B * g(m) + A + sum_j alpha_j A_j (equation 1).
"""

from typing import Literal, Self, TypeAlias

from pydantic import Field, model_validator
from typing_extensions import override

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.registry import Algorithm
from strategies.fedweit.maths import Overlap, SelectionRule

Gate: TypeAlias = Literal["sigmoid", "identity"]
Clustering: TypeAlias = Literal["k-means", "gaussian-mixture"]


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
    lambda1: float = Field(1e-3, ge=0)
    """Weight of the sparsity of adapters, at least 0."""
    lambda_mask: float = Field(1e-4, ge=0)
    """Weight of the sparsity of gates, at least 0."""
    lambda2: float = Field(100.0, ge=0)
    """Weight of keeping old tasks where they were, at least 0."""
    threshold: float = Field(1e-3, ge=0)
    """Entries of adapters up to this magnitude are dropped when a task ends, those of
    older tasks that have followed the base too, at least 0."""
    gate: Gate = "identity"
    """The function g in theta = B * g(m) + A; gates of ``identity`` can be exactly
    zero."""
    initial_gate: float = 1.0
    """Raw value m of a new task's mask."""
    initial_adapter: float = 0.0
    """A of a new task starts as this multiple of the initial base."""
    base_rate: float = Field(1.0, ge=0)
    """Factor on the learning rate for B, at least 0."""
    mask_rate: float = Field(30.0, ge=0)
    """Factor on the learning rate for m, at least 0."""
    attention_rate: float = Field(30.0, ge=0)
    """Factor on the learning rate for alpha, at least 0."""
    solver: Literal["closed", "unbraked", "gradient"] = "closed"
    """How old adapters follow the base: ``closed`` (in closed form, exactly; the base
    feels in every step what that costs), ``unbraked`` (the same, but the base feels
    nothing: it moves more, and old adapters become dense), or ``gradient`` (trained
    along in every step, as printed)."""

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
    server="strategies.fedweit.server:FedWeit",
    client="clients.fedweit.client:FedWeit",
    params_type=FedWeitParams,
    summary="gated base, sparse adapters, attention to other clients' adapters",
    paper="Yoon et al., ICML 2021",
    privacy_units=("client",),
)
