"""Whether methods differ by more than their seeds do: a paired test over seeds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy import stats


@dataclass(frozen=True, slots=True)
class Paired:
    """One method held against a reference, seed by seed.

    Attributes:
        difference: mean over the seeds of the method's value minus the reference's.
        deviation: standard deviation of these differences (n - 1); None of one.
        pairs: seeds that both have.
        p: two-sided p-value of the paired t-test; None where it says nothing: below two
            seeds, or where all differences are the same.
    """

    difference: float
    deviation: float | None
    pairs: int
    p: float | None


def paired(method: Mapping[int, float], reference: Mapping[int, float]) -> Paired:
    """Return Student's paired t-test of two methods over the seeds of both.

    ``t = mean(d) sqrt(n) / s(d)`` with n - 1 degrees of freedom, d the differences
    (Student, Biometrika 1908). It takes them as drawn from one normal distribution; of
    three seeds only a large difference is told from none.

    Args:
        method: value by seed.
        reference: likewise; at least one seed is in both.
    """
    seeds = sorted(method.keys() & reference.keys())
    differences = [method[seed] - reference[seed] for seed in seeds]
    mean = statistics.fmean(differences)
    if len(seeds) < 2:
        return Paired(mean, None, len(seeds), None)
    deviation = statistics.stdev(differences)
    if deviation == 0:
        return Paired(mean, deviation, len(seeds), None)
    t = mean * math.sqrt(len(seeds)) / deviation
    p = 2 * float(stats.t.sf(abs(t), len(seeds) - 1))
    return Paired(mean, deviation, len(seeds), p)


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
