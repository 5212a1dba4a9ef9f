"""Replay: declaration and hyper-parameters; its server side is that of FedAvg."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from pydantic import Field
from typing_extensions import override

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.registry import Algorithm

MemoryPolicy: TypeAlias = Literal["balanced", "herding", "reservoir", "leverage"]


class MemoryParams(Params):
    """What a client keeps of old tasks; the same for all methods of a comparison.

    The number of samples that is the default is ours: iCaRL has 2000, for all that is
    learned in one place.
    """

    memory_samples: int = Field(200, ge=0)
    """Samples that a client keeps of all its tasks together, at most; 0 for none."""
    memory_bytes: int = Field(0, ge=0)
    """Bytes that these samples take as they are stored, at most, with all that is kept
    of each; 0 for any number."""
    memory_policy: MemoryPolicy = "balanced"
    """Which samples stay: as many of each class, drawn at random (balanced), by herding
    or with the probability of their leverage scores; or any of all, each with the same
    probability (reservoir)."""

    @property
    def looks_at_features(self) -> bool:
        """Return whether the policy needs features of the samples."""
        return self.memory_policy in ("herding", "leverage")

    @override
    def remarks(self, classes: int, clients: int) -> Mapping[str, str]:
        return small_memory(self.memory_samples, classes)


def small_memory(samples: int, classes: int) -> Mapping[str, str]:
    """Say that a memory has fewer samples than there are classes."""
    if not 0 < samples < classes:
        return {}
    return {
        "memory": f"{samples} samples for {classes} classes (memory_samples): at least "
        f"{classes - samples} classes have none, and the seed draws which"
    }


class ReplayParams(MemoryParams):
    """Hyper-parameters of replay."""

    budget: Literal["fraction", "fixed"] = "fraction"
    """How much is kept: a fraction of each task (buffer_fraction), or a fixed memory
    for all tasks (memory_samples, memory_bytes, memory_policy)."""
    buffer_fraction: float = Field(0.03, gt=0, le=1)
    """Fraction of a task's training samples that is kept to be replayed, in (0, 1] (the
    paper's gamma)."""
    strength: float = Field(0.0, ge=0)
    """Weight of the L2 term that keeps the body's output near that of the received
    model, at least 0; 0 is replay alone."""

    @override
    def remarks(self, classes: int, clients: int) -> Mapping[str, str]:
        return super().remarks(classes, clients) if self.budget == "fixed" else {}


ALGORITHM = Algorithm(
    name="replay",
    server="strategies.fedavg:FedAvg",
    client="clients.replay.client:Replay",
    params_type=ReplayParams,
    summary="FedAvg whose clients train on a few samples of old tasks again",
    paper="de Masson d'Autume et al., NeurIPS 2019",
    defaults={"data.datasets": "stdlib-docs", "scenario.name": "class-incremental"},
    models=("transformer",),
    privacy_units=("client",),
    needs_single_head=True,
)
