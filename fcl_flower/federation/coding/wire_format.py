"""In which form the tensors of a run travel: precision, differences, compression."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from fcl_flower.core.types import group_kind
from fcl_flower.federation.coding.precision import LEVELS, WireDtype

if TYPE_CHECKING:
    from fcl_flower.algorithms.base import ServerStrategy
    from fcl_flower.config.sections import FederationSection


@dataclass(frozen=True, slots=True)
class WireFormat:
    """What the settings of a run and its algorithm make of a tensor on its way.

    float16 and bfloat16 are for all float32 tensors. A precision with a scale is for
    those groups alone that the algorithm names, as all others are exact: sums, counts
    and statistics.

    Attributes:
        dtype: of float32 tensors.
        compress: by Zstandard, tensor by tensor, where that is smaller.
        feedback: what was rounded away is added to the next difference.
        differences: see `ServerStrategy`.
        rounded: likewise.
    """

    dtype: WireDtype = "float32"
    compress: bool = False
    feedback: bool = True
    differences: tuple[str, ...] = ()
    rounded: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        section: "FederationSection",
        strategy: "ServerStrategy[Any] | type[ServerStrategy[Any]]",
    ) -> Self:
        """Return the format of a run.

        Args:
            section: its settings.
            strategy: the server side of its algorithm.
        """
        return cls(
            section.wire_dtype,
            section.wire_compression == "zstd",
            section.error_feedback,
            strategy.differences,
            strategy.rounded,
        )

    def precision(self, group: str) -> WireDtype:
        """Return how float32 tensors of a group travel, if not as differences."""
        if self.dtype in LEVELS and group_kind(group) not in self.rounded:
            return "float32"
        return self.dtype

    def by_difference(self, group: str) -> bool:
        """Return whether a group travels as the difference to what is known of it."""
        return self.dtype in LEVELS and group_kind(group) in self.differences


EXACT = WireFormat()
