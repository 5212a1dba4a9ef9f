"""Hyper-parameters that several methods share; known without torch."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from pydantic import Field
from typing_extensions import override

from fcl_flower.config.parsing import Params

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
        """That the policy needs features of the samples."""
        return self.memory_policy in ("herding", "leverage")

    @override
    def remarks(self, classes: int, clients: int) -> Mapping[str, str]:
        return small_memory(self.memory_samples, classes)


class DistillationParams(Params):
    """How much the old model's answers count, and how soft they are made."""

    strength: float = Field(1.0, ge=0)
    """Weight of the distillation, at least 0 (the paper's lambda)."""
    temperature: float = Field(2.0, gt=0)
    """What logits are divided by in the distillation, above 0 (T)."""


def small_memory(samples: int, classes: int) -> Mapping[str, str]:
    """Say that a memory has fewer samples than there are classes."""
    if not 0 < samples < classes:
        return {}
    return {
        "memory": f"{samples} samples for {classes} classes (memory_samples): at least "
        f"{classes - samples} classes have none, and the seed draws which"
    }
