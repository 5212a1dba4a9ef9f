"""Analytic federated continual learning: declaration and hyper-parameters.

Nothing is trained. Clients send sums over the features of a frozen encoder. The server
solves for the head that joint training on the data of all clients would give.
"""

from typing import Literal, Self, TypeAlias

from pydantic import Field, model_validator

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.config.parsing import Counts

HeadKind: TypeAlias = Literal["discriminant", "ridge"]
Form: TypeAlias = Literal["exact", "gram", "low-rank", "class-sums"]


class AnalyticParams(Params):
    """Hyper-parameters of analytic learning."""

    counts = (
        Counts("strategy.matching", "strategy.head", ("discriminant",)),
        Counts("strategy.width", "strategy.lift", ("relu",)),
        Counts("strategy.rank", "strategy.form", ("low-rank",)),
        Counts("strategy.subsets", "strategy.form", ("class-sums",)),
    )

    head: HeadKind = "discriminant"
    """The kind of head: a linear ``discriminant`` with a shrunk covariance, or a
    ``ridge`` regression onto the labels."""
    penalty: float = Field(0.0, ge=0)
    """The discriminant's shrinkage, at most 1; or the ridge regression's penalty in
    mean eigenvalues of the centred Gram matrix. With 0 the sums over validation samples
    choose it; otherwise these samples are trained on, too."""
    matching: Literal["tested", "none"] = "tested"
    """The sharing between tasks, where each task has a discriminant of its own. With
    ``tested``, classes of different tasks whose means are tested to be the same are
    learned from the samples of all clients and tasks. With ``none``, tasks share the
    covariance alone."""
    lift: Literal["none", "relu"] = "none"
    """The transformation of the encoder's features: ``none``, or ``relu`` of a random
    projection, the same for all clients."""
    width: int = Field(2000, ge=1)
    """The number of features after the random projection."""
    form: Form = "exact"
    """The form of a client's sums. ``exact`` is the smaller of two forms: a Gram matrix
    or its factor. ``gram`` is always the matrix, with one size for all clients.
    ``low-rank`` is a factor of low rank. ``class-sums`` are sums over random
    subsets."""
    rank: int = Field(64, ge=1)
    """The number of rows of the low-rank factor."""
    subsets: int = Field(5, ge=2)
    """The number of random subsets of a class whose sums are sent, with class-sums."""
    min_samples: int = Field(10, ge=1)
    """The fewest training samples of a task of which sums are sent: sums over fewer
    would show the samples. Without a set penalty, sums over validation samples are sent
    too, and these are over fewer still."""

    @model_validator(mode="after")
    def _check_penalty(self) -> Self:
        most = 1.0 if self.head == "discriminant" else 1e6
        if self.penalty and not 1e-6 <= self.penalty <= most:
            raise ValueError(
                f"strategy.penalty: got {self.penalty}, expected 0, or 1e-06 to "
                f"{most:g} for strategy.head '{self.head}'"
            )
        return self


ALGORITHM = Algorithm(
    name="analytic",
    server="strategies.analytic.server:Analytic",
    client="clients.analytic:Analytic",
    params_type=AnalyticParams,
    summary="an exact head on frozen features, solved from the clients' sums",
    paper="AFL, CVPR 2025; AFCL, arXiv:2505.12245",
    defaults={
        "data.datasets": "stdlib-docs",
        "scenario.name": "class-incremental",
        "federation.rounds_per_task": 1,
    },
    models=("frozen-transformer", "efficientnet-lite0", "patch-filters"),
    validates=False,
)
