"""Rounding of differences, and the memory of what it has taken away.

Error feedback (Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019,
https://arxiv.org/abs/1901.09847, algorithm 2): what rounding takes from one difference
is added to the next, so that the sum of all that was sent is the sum of all that was
wanted, up to one rounding. Without it rounding is at random, and right on average.
"""

import numpy as np

from fcl_flower.core.types import AnyArray, Array, Payload
from fcl_flower.federation.coding.differences import (
    entries,
    put,
    values_of,
    with_values,
)
from fcl_flower.federation.coding.wire_format import WireFormat
from fcl_flower.federation.transport.codec import Encoded, decode, encode

_LARGEST = 1e38
"""Hostile updates without a limit of their norm must not end a run."""


class Rounding:
    """Rounds differences of one sender."""

    def __init__(self, wire: WireFormat, rests: Payload) -> None:
        """Go on with the ``rests`` of earlier rounds."""
        self._wire = wire
        self._rests = {group: dict(arrays) for group, arrays in rests.items()}

    def rests(self, prefix: str) -> Payload:
        """Return what rounding has left so far, under the names of its groups.

        Args:
            prefix: what comes before their names.
        """
        # Copies: a store takes a group that is the object it has saved for unchanged.
        return {prefix + group: dict(a) for group, a in self._rests.items()}

    def difference(
        self, group: str, name: str, wanted: AnyArray, seed: int
    ) -> tuple[Encoded, AnyArray]:
        """Return a difference as it travels, and what the receiver reads.

        Args:
            group: of the tensor.
            name: of the tensor.
            wanted: the exact difference; entries that a `SparseArray` lacks stay.
            seed: of rounding at random, which it is without feedback.
        """
        wire = self._wire
        if not wire.feedback:
            wanted = with_values(wanted, _within_range(values_of(wanted)))
            made = encode(wanted, wire.dtype, compress=wire.compress, seed=seed)
            return made, decode(made)
        rests = self._rests.setdefault(group, {})
        rest = np.asarray(rests.get(name, np.zeros(wanted.shape, np.float32)))
        values = _within_range(values_of(wanted) + entries(rest, wanted))
        made = encode(with_values(wanted, values), wire.dtype, compress=wire.compress)
        read = decode(made)
        rests[name] = put(with_values(wanted, values - values_of(read)), rest)
        return made, read


def _within_range(values: Array) -> Array:
    """Return values of which none is so large that its scale overflows."""
    return np.nan_to_num(values, nan=0.0, posinf=_LARGEST, neginf=-_LARGEST).clip(
        -_LARGEST, _LARGEST
    )
