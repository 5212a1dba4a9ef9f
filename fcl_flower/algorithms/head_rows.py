"""The rows of a single head that a client has learned, as they travel.

They are sparse tensors of the whole head: of its weight whole rows, of its bias the
entries of the same classes.
"""

from typing import Final, cast

import numpy as np

from fcl_flower.core.errors import WireError
from fcl_flower.core.types import Array, Arrays, SparseArray
from fcl_flower.core.update_checks import fits

WEIGHT: Final = "heads.0.weight"
BIAS: Final = "heads.0.bias"


def rows_of(head: Arrays, classes: Array) -> dict[str, SparseArray]:
    """Keep the rows of some classes of a head; ``classes`` are int64 and ascend."""
    return {
        name: SparseArray.of_channels(np.asarray(head[name]), classes)
        for name in (WEIGHT, BIAS)
    }


def rows_classes(rows: Arrays) -> Array:
    """List the classes of rows, int64, ascending."""
    return cast(SparseArray, rows[BIAS]).indices


def check_rows(group: str, rows: Arrays, head: Arrays) -> None:
    """Refuse anything but whole rows of a head with a `WireError`."""
    if rows.keys() != head.keys():
        raise WireError(f"{group}: expected {WEIGHT} and {BIAS}, got {[*rows]}")
    fits(group, rows, head, sparse=True)
    expected = rows_of(head, rows_classes(rows))[WEIGHT].indices
    if not np.array_equal(cast(SparseArray, rows[WEIGHT]).indices, expected):
        raise WireError(
            f"{group}/{WEIGHT}: expected whole rows, those of the classes of {BIAS}"
        )
