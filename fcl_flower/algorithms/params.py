"""Hyper-parameters that several methods share; this module needs no torch."""

from collections.abc import Mapping
from typing import Literal, Self, TypeAlias

from pydantic import Field, model_validator
from typing_extensions import override

from fcl_flower.config.parsing import Counts, Params

MemoryPolicy: TypeAlias = Literal["balanced", "herding", "reservoir", "leverage"]


class RoomParams(Params):
    """The number of samples of old tasks that a client keeps.

    The default is our choice. iCaRL has 2000, for all that is learned in one place.
    """

    memory_samples: int = Field(200, ge=0)
    """The most samples that a client keeps of all its tasks together; 0 for none."""
    memory_per_class: int = Field(0, ge=0)
    """The most samples that a client keeps of each class, in the place of
    memory_samples. The memory then grows with the classes; 0 for a total."""

    @model_validator(mode="after")
    def _one_bound(self) -> Self:
        if self.memory_per_class and "memory_samples" in self.model_fields_set:
            raise ValueError(
                f"strategy.memory_samples: got {self.memory_samples}, expected none "
                f"beside strategy.memory_per_class {self.memory_per_class}: set one "
                "of the two"
            )
        return self

    def room(self, classes: int) -> int:
        """Count the samples that a client keeps of so many classes, at most."""
        if self.memory_per_class:
            return self.memory_per_class * classes
        return self.memory_samples


class MemoryParams(RoomParams):
    """The memory of old tasks at a client, the same for all methods of a comparison."""

    memory_bytes: int = Field(0, ge=0)
    """The most bytes that these samples take as stored, with all that is kept of each;
    0 for any number."""
    memory_policy: MemoryPolicy = "balanced"
    """The rule by which samples stay. Three policies keep equally many of each class:
    drawn at random (balanced), by herding, or with the probability of their leverage
    scores (leverage). By reservoir every sample stays with the same probability."""

    @property
    def looks_at_features(self) -> bool:
        """Whether the policy needs features of the samples."""
        return self.memory_policy in ("herding", "leverage")

    @override
    def remarks(self, classes: int, clients: int) -> Mapping[str, str]:
        return small_memory(self.room(classes), classes)


class BudgetParams(MemoryParams):
    """The memory of a client: a share of each task, or what `MemoryParams` say."""

    counts = (
        Counts(
            "strategy.memory_samples strategy.memory_per_class strategy.memory_bytes "
            "strategy.memory_policy",
            "strategy.budget",
            ("fixed",),
        ),
        Counts("strategy.buffer_fraction", "strategy.budget", ("fraction",)),
    )

    buffer_fraction: float = Field(0.03, gt=0, le=1)
    """The fraction of a task's training samples that is kept for replay, in (0, 1] (the
    paper's gamma)."""

    budget: Literal["fraction", "fixed"] = "fraction"
    """The size of the memory: a fraction of each task (buffer_fraction), or a fixed
    memory for all tasks (memory_samples or memory_per_class, memory_bytes,
    memory_policy)."""

    @override
    def remarks(self, classes: int, clients: int) -> Mapping[str, str]:
        return super().remarks(classes, clients) if self.budget == "fixed" else {}


class DistillationParams(Params):
    """The weight of the old model's answers, and the temperature that softens them."""

    strength: float = Field(1.0, ge=0)
    """The weight of the distillation, at least 0 (the paper's lambda)."""
    temperature: float = Field(2.0, gt=0)
    """The number that divides logits in the distillation, above 0 (T)."""


def small_memory(samples: int, classes: int) -> Mapping[str, str]:
    """Say that a memory has fewer samples than there are classes."""
    if not 0 < samples < classes:
        return {}
    return {
        "memory": f"{samples} samples for {classes} classes (memory_samples): at least "
        f"{classes - samples} classes have none, and the seed draws which"
    }
