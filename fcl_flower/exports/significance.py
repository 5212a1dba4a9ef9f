"""Whether methods differ by more than chance does: a paired test over seeds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from scipy import stats

from fcl_flower.results.metrics import confidence_margin

Unit = TypeVar("Unit", bound=int | tuple[int, int])
"""What is measured once with each method: a seed, or a seed's client."""


@dataclass(frozen=True, slots=True)
class Paired:
    """One method held against a reference, unit by unit.

    Attributes:
        difference: mean over the units of the method's value minus the reference's.
        deviation: standard deviation of these differences (n - 1); None of one.
        pairs: units that both have.
        p: two-sided p-value of the paired t-test; None where it says nothing: below two
            units, or where all differences are the same.
        margin: from ``difference`` to the ends of its 95 % interval; None below two.
    """

    difference: float
    deviation: float | None
    pairs: int
    p: float | None
    margin: float | None


def paired(method: Mapping[Unit, float], reference: Mapping[Unit, float]) -> Paired:
    """Return Student's paired t-test of two methods over the units of both.

    ``t = mean(d) sqrt(n) / s(d)`` with n - 1 degrees of freedom, d the differences
    (Student, Biometrika 1908). It takes them as drawn, each by itself, from one normal
    distribution; of three seeds only a large difference is told from none.

    Args:
        method: value by unit.
        reference: likewise; at least one unit is in both.
    """
    units = sorted(method.keys() & reference.keys())
    differences = [method[unit] - reference[unit] for unit in units]
    mean, count = statistics.fmean(differences), len(units)
    if count < 2:
        return Paired(mean, None, count, None, None)
    deviation = statistics.stdev(differences)
    if deviation == 0:
        return Paired(mean, deviation, count, None, 0.0)
    error = deviation / math.sqrt(count)
    p = 2 * float(stats.t.sf(abs(mean) / error, count - 1))
    return Paired(mean, deviation, count, p, confidence_margin(deviation, count))


def adjusted(values: Sequence[float | None]) -> list[float | None]:
    """Return p-values adjusted for how many there are, in the same order.

    Holm (Scandinavian Journal of Statistics 1979): of m values the k-th smallest, from
    0, is multiplied by m - k, and none is smaller than the one before; at most 1. To
    call those below 0.05 different errs in one of twenty tables, not of twenty rows.

    Args:
        values: None for a test that says nothing, which does not count.
    """
    known = sorted((p, place) for place, p in enumerate(values) if p is not None)
    found: list[float | None] = [None] * len(values)
    least = 0.0
    for rank, (p, place) in enumerate(known):
        least = max(least, min(1.0, (len(known) - rank) * p))
        found[place] = least
    return found
