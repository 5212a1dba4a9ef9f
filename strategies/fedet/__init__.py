"""FedET: declaration and hyper-parameters.

Liu et al., IJCAI 2023.
"""

from typing import Literal, Self, TypeAlias

from pydantic import Field, model_validator

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.config.parsing import Counts

LabelStatistics: TypeAlias = Literal["exact", "noised", "withheld"]


class FedEtParams(Params):
    """Hyper-parameters of FedET."""

    counts = (
        Counts(
            "strategy.auxiliary strategy.server_epochs",
            "strategy.consolidation",
            ("distillation",),
        ),
    )

    groups: int = Field(3, ge=1)
    """The number J of Enhancer Groups, at least 1."""
    router: Literal["prototype", "discriminant", "network"] = "discriminant"
    """The router that sends a sample to a group. It is the nearest class ``prototype``
    in the frozen encoder's features, a linear ``discriminant`` of the classes there, or
    a small ``network`` trained on public data."""
    consolidation: Literal["distillation", "mean"] = "distillation"
    """The merge of a group that several clients changed: ``distillation``, or the
    ``mean`` of their tensors. Both weigh each client by its entropy. Without public
    data it is always the mean."""
    least_uploads: int = Field(2, ge=1, le=2)
    """The number of clients that must have changed a group for it to be consolidated: 2
    as printed, so that a lone upload replaces it, or 1."""
    auxiliary: int = Field(64, ge=1)
    """The number of public samples for the distillation, at least 1."""
    server_epochs: int = Field(3, ge=1)
    """The number of passes over them, at least 1."""
    label_weight: float = Field(1.0, ge=0)
    """The weight of the cross-entropy of the labels beside equations 4 (clients) and 7
    (server), at least 0; 0 as printed."""
    distribution: LabelStatistics = "exact"
    """The form in which clients send their label distribution: ``exact``, ``noised`` or
    ``withheld``. If it is withheld, public samples are drawn evenly over the
    classes."""
    entropy: LabelStatistics = "exact"
    """The form in which clients send the entropy of their labels. If it is withheld,
    all clients weigh the same."""
    noise: float = Field(0.1, ge=0)
    """The standard deviation of the noise on a share or on the entropy; above 0 where
    one of them is ``noised``."""
    buffer_fraction: float = Field(0.03, gt=0, le=1)
    """The fraction of the samples that is kept in S, in (0, 1] (the paper's gamma)."""
    copies: int = Field(20, ge=1)
    """The most random variations of a buffered sample of an old class to distil on, at
    least 1. Their number brings the old classes to the size of the new ones."""
    distil_epochs: int = Field(3, ge=1)
    """The number of passes of the double distillation over U, at least 1."""
    distil_on: Literal["memory", "task"] = "task"
    """The new samples of U: those in S as printed (``memory``), or all of the ``task``.
    All of the task are also used where S has none for a group."""
    start: Literal["fresh", "group"] = "group"
    """The start of a temporary group. With ``fresh``, as printed, it starts anew, and
    the new group starts from the old one. With ``group``, it starts from the old group,
    and the new group starts from it."""
    least_share: float = Field(0.2, ge=0, lt=1)
    """The share of a task's samples below which a group hands them to the next best
    one; in [0, 1)."""

    @model_validator(mode="after")
    def _check_noise(self) -> Self:
        noised = "noised" in (self.distribution, self.entropy)
        if "noise" in self.model_fields_set and not noised:
            raise ValueError(
                f"strategy.noise: got {self.noise}, expected none unless "
                "strategy.distribution or strategy.entropy is 'noised', without which "
                "it has no effect"
            )
        if noised and not self.noise:
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
