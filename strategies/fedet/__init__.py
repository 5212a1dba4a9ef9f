"""FedET: declaration and hyper-parameters.

Liu et al., IJCAI 2023.
"""

from typing import Literal, Self, TypeAlias

from pydantic import Field, model_validator

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.registry import Algorithm

LabelStatistics: TypeAlias = Literal["exact", "noised", "withheld"]


class FedEtParams(Params):
    """Hyper-parameters of FedET."""

    groups: int = Field(3, ge=1)
    """J, how many Enhancer Groups there are, at least 1."""
    router: Literal["prototype", "discriminant", "network"] = "discriminant"
    """What sends a sample to a group: the nearest class ``prototype`` in the frozen
    encoder's features, a linear ``discriminant`` of the classes there, or a small
    ``network`` trained on public data."""
    consolidation: Literal["distillation", "mean"] = "distillation"
    """What becomes of a group that several clients changed: they are distilled
    (``distillation``), or their tensors averaged (``mean``), each weighted by its
    entropy. Without public data always the mean."""
    least_uploads: int = Field(2, ge=1, le=2)
    """How many clients must have changed a group for it to be consolidated: 2 as
    printed, so that a lone upload replaces it, or 1."""
    auxiliary: int = Field(64, ge=1)
    """Public samples to distil on, at least 1."""
    server_epochs: int = Field(3, ge=1)
    """Passes over them, at least 1."""
    label_weight: float = Field(1.0, ge=0)
    """Weight of the cross-entropy of the labels beside equations 4 (clients) and 7
    (server), at least 0; 0 as printed."""
    distribution: LabelStatistics = "exact"
    """What clients send of their label distribution: ``exact``, ``noised`` or
    ``withheld``; then public samples are drawn evenly over the classes."""
    entropy: LabelStatistics = "exact"
    """How they send the entropy of their labels; without it all clients weigh the
    same."""
    noise: float = Field(0.1, ge=0)
    """Standard deviation of what is added to a share, or to the entropy; above 0 where
    one of them is ``noised``."""
    buffer_fraction: float = Field(0.03, gt=0, le=1)
    """Fraction of the samples that is kept in S, in (0, 1] (the paper's gamma)."""
    copies: int = Field(20, ge=1)
    """The most random variations of a buffered sample of an old class to distil on,
    at least 1; as many as bring the old classes to the number of the new ones."""
    distil_epochs: int = Field(3, ge=1)
    """Passes of the double distillation over U, at least 1."""
    distil_on: Literal["memory", "task"] = "task"
    """The new samples of U: those in S as printed (``memory``), or all of the ``task``;
    also where S has none for a group."""
    start: Literal["fresh", "group"] = "group"
    """Where a temporary group starts: ``fresh`` as printed, and the new group from the
    old one; or from the old ``group``, and the new one from it."""
    least_share: float = Field(0.2, ge=0, lt=1)
    """A group with a smaller share of a task's samples hands them to the next best one;
    in [0, 1)."""

    @model_validator(mode="after")
    def _check_noise(self) -> Self:
        if "noised" in (self.distribution, self.entropy) and not self.noise:
            raise ValueError(
                "strategy.noise: got 0.0, expected a number above 0 for statistics "
                "that are 'noised'"
            )
        return self


ALGORITHM = Algorithm(
    name="fedet",
    server="strategies.fedet.server:FedEt",
    client="clients.fedet.client:FedEt",
    params_type=FedEtParams,
    summary="a frozen transformer whose groups of Enhancers learn new classes",
    paper="Liu et al., IJCAI 2023",
    defaults={
        **{"data.datasets": "stdlib-docs", "scenario.name": "class-incremental"},
        "model.num_blocks": 2,
    },
    models=("enhanced-transformer", "enhanced-vit"),
    trainer="strategies.fedet.trainer:FedEtTrainer",
    needs_single_head=True,
)
