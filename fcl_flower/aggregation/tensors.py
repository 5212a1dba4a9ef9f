"""One tensor of each client: all at hand, or one at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from fcl_flower.core.types import AnyArray, Arrays


class Tensors(Protocol):
    """One tensor of each client; None where it was not sent."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[AnyArray | None]: ...


@dataclass(frozen=True, slots=True)
class TensorOfEach:
    """`Tensors` that are looked up in the updates one at a time, and held by nobody.

    Attributes:
        sent: tensors by name of each client.
        name: of the tensor.
    """

    sent: Sequence[Arrays]
    name: str

    def __len__(self) -> int:
        return len(self.sent)

    def __iter__(self) -> Iterator[AnyArray | None]:
        return (arrays.get(self.name) for arrays in self.sent)
