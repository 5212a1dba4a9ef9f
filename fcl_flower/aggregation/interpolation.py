"""Move a state part of the way to another."""

from collections.abc import Sequence

import numpy as np

from fcl_flower.core.types import Arrays, Payload, group_kind


def interpolate(
    before: Payload, after: Payload, weight: float, averaged_groups: Sequence[str]
) -> Payload:
    """Interpolate the averaged groups between ``before`` and ``after``.

    x becomes x + w (x' - x); integers are rounded. All other groups, and those that
    ``before`` does not have, are taken from ``after``.

    Args:
        before: a state whose averaged groups are dense.
        after: the next state.
        weight: w, in (0, 1].
        averaged_groups: kinds of the averaged groups.
    """
    return {
        group: _interpolate_arrays(before[group], arrays, weight)
        if group_kind(group) in averaged_groups and group in before
        else arrays
        for group, arrays in after.items()
    }


def _interpolate_arrays(before: Arrays, after: Arrays, weight: float) -> Arrays:
    found = {}
    for name, tensor in after.items():
        old, new = np.asarray(before[name]), np.asarray(tensor)
        between = old + weight * (new.astype(np.float64) - old)
        whole = new.dtype.kind in "iu"  # BatchNorm counts its batches
        found[name] = (np.rint(between) if whole else between).astype(new.dtype)
    return found
