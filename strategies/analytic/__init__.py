"""Analytic federated continual learning: declaration and hyper-parameters.

Nothing is trained. Clients send sums over the features that a frozen encoder makes of
their samples, and the server solves for the head that training on everybody's data at
once would give.
"""

from typing import Literal, Self, TypeAlias

from pydantic import Field, model_validator

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.registry import Algorithm

HeadKind: TypeAlias = Literal["discriminant", "ridge"]
Form: TypeAlias = Literal["exact", "gram", "low-rank", "class-sums"]


class AnalyticParams(Params):
    """Hyper-parameters of analytic learning."""

    head: HeadKind = "discriminant"
    """What is solved for: a linear ``discriminant`` with a shrunk covariance, or a
    ``ridge`` regression onto the labels."""
    penalty: float = Field(0.0, ge=0)
    """Of the discriminant the shrinkage, at most 1; of the ridge regression the penalty
    in mean eigenvalues of the centred Gram matrix. 0 for what the sums over validation
    samples choose; otherwise these samples are trained on, too."""
    matching: Literal["tested", "none"] = "tested"
    """Where each task has a discriminant of its own: classes of different tasks whose
    means are ``tested`` to be the same are learned from the samples of all, whoever
    has them and whenever they come; with ``none`` tasks share the covariance alone."""
    lift: Literal["none", "relu"] = "none"
    """What is made of the encoder's features: nothing, or ``relu`` of a random
    projection, the same everywhere."""
    width: int = Field(2000, ge=1)
    """Features after the random projection."""
    form: Form = "exact"
    """What a client sends: the ``exact`` sums in whichever of two forms is smaller, a
    Gram matrix or the factor of one; always the ``gram`` matrix, which is of the same
    size for all; a factor of ``low-rank``; or ``class-sums`` over random subsets."""
    rank: int = Field(64, ge=1)
    """Rows of the low-rank factor."""
    subsets: int = Field(5, ge=2)
    """Random subsets of a class whose sums are sent, with class-sums."""
    min_samples: int = Field(10, ge=1)
    """Training samples of a task without which no sums of it are sent: over fewer they
    would show them. Those over its validation samples, which a given penalty does
    without, are over fewer still."""

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
