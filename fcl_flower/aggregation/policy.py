"""The policy by which a strategy combines what several clients have sent.

A strategy says what is averaged; the policy says how. With ``mean`` clients count by
the strategy's weights. All other rules count them alike, since a weight is what a
client says of itself; a weight of 0 leaves it out.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fcl_flower.aggregation import Rule, Weighting
from fcl_flower.aggregation.mean import TensorOfEach, Tensors, Weights, weighted_mean
from fcl_flower.aggregation.robust import (
    clipped,
    count_hostile,
    geometric_median_weights,
    gram,
    krum_weights,
    median,
    trimmed_mean,
)
from fcl_flower.core.types import Array, Arrays, Payload, SparseArray, Update


def counted(
    updates: Mapping[int, Update], weighting: Weighting, limit: float
) -> dict[int, Update]:
    """Set the numbers of examples by which updates are weighted.

    ``uniform`` weights all clients with examples alike; `most_counted` explains
    ``limit``.
    """
    counts = {client: update.num_examples for client, update in updates.items()}
    uniform = weighting == "uniform"
    most = 1 if uniform else most_counted(counts.values(), limit)
    return {
        client: replace(update, num_examples=int(min(counts[client], most)))
        for client, update in updates.items()
    }


def shares_counted(counts: Sequence[float], limit: float) -> list[float]:
    """Compute the share of its examples, in (0, 1], that each entry is weighted by."""
    most = most_counted(counts, limit)
    return [min(1.0, most / count) for count in counts]


def most_counted(counts: Iterable[float], limit: float) -> float:
    """Return the most examples that anybody counts by; infinite for no limit.

    Args:
        counts: the examples of each.
        limit: in medians of those who have any; at least 1, or 0 for no limit. Of an
            even number the median is the lower middle one, which no minority can make
            large.
    """
    some = [count for count in counts if count]
    return limit * median_low(some) if limit and some else math.inf


Combine: TypeAlias = Callable[[Tensors, Array], npt.NDArray[np.float64]]
"""From one tensor of each client and what it was before, to what it becomes."""


def sent_by(needed: int, combine: Combine) -> Combine:
    """Restrict a rule to the entries that enough clients sent; the others stay.

    ``needed`` is 2 f + 1, of which f hostile ones are fewer than half.
    """

    def of(tensors: Tensors, old: Array) -> npt.NDArray[np.float64]:
        found = combine(tensors, old)
        return np.where(_senders(tensors, old) >= needed, found, old)

    return of


def _senders(tensors: Tensors, old: Array) -> npt.NDArray[np.int64]:
    count = np.zeros(old.size, np.int64)
    for tensor in tensors:
        if isinstance(tensor, SparseArray):
            count[tensor.indices] += 1
        elif tensor is not None:
            count += 1
    return count.reshape(old.shape)


@dataclass(frozen=True, slots=True)
class Aggregation:
    """A policy.

    Attributes:
        rule: ``mean``; ``median`` and ``trimmed-mean`` of each coordinate (Yin et al.,
            ICML 2018, definitions 1 and 2); ``geometric-median`` of whole updates
            (Pillutla et al., IEEE TSP 2022, algorithm 2); or ``krum``, the mean of the
            updates that multi-Krum selects (Blanchard et al., NeurIPS 2017, section 4).
        hostile_fraction: of the updates, in (0, 0.5): how many ``trimmed-mean`` cuts
            off at each end, and ``krum`` leaves out.
        clip_to_median: largest Euclidean norm of an update's difference from where it
            started, in median norms of all differences; 0 for any.
        weighting: see `counted`.
        examples_limit: likewise.
    """

    rule: Rule = "mean"
    hostile_fraction: float = 0.2
    clip_to_median: float = 0.0
    weighting: Weighting = "examples"
    examples_limit: float = 0.0

    @property
    def compares(self) -> bool:
        """Whether updates are compared, so that one alone has no meaning."""
        return self.rule != "mean" or self.clip_to_median > 0

    def count(self, updates: Mapping[int, Update]) -> dict[int, Update]:
        """Set the numbers of examples by which updates are weighted."""
        return counted(updates, self.weighting, self.examples_limit)

    def combine_groups(self, updates: Mapping[int, Update], before: Payload) -> Payload:
        """Combine whole groups, each client weighted by its number of examples.

        ``before`` is what the clients started from, dense. It is returned where no
        client has examples.
        """
        counts = [update.num_examples for update in updates.values()]
        if not any(counts):
            return before
        return {
            group: self.combine(
                [u.payload[group] for u in updates.values()], counts, old
            )
            for group, old in before.items()
        }

    def combine(
        self,
        sent: Sequence[Arrays],
        weights: Weights | None = None,
        start: Arrays | None = None,
    ) -> dict[str, Array]:
        """Combine the tensors of many clients into one set.

        An entry that a client did not send says nothing: only the senders count there,
        and where nobody sent it the start stays. For rules that look at whole updates
        it is an entry that did not move. With a median or a trimmed mean it also stays
        where hostile clients might be most of its senders.

        Args:
            sent: tensors by name of each client, at least one; finite. Where some are
                sparse or left out ``start`` is needed.
            weights: of each client, at least 0; only their ratios matter. None, or all
            0,
                weighs all alike. Products are in the precision of the tensors for
                Python's numbers, in double precision for NumPy's.
            start: what the clients started from, dense. None where each had its own:
                differences are then taken from the coordinate-wise median.

        Returns:
            Dense tensors of the dtypes of ``start``, or else of the first client's;
            integers are rounded.
        """
        if weights is not None:
            kept = [k for k, weight in enumerate(weights) if weight > 0]
            sent = [sent[k] for k in kept] or sent
            weights = [weights[k] for k in kept] or None
        origin = start
        if origin is None:
            origin = _each(median, sent, sent[0]) if self.compares else sent[0]
        if self.clip_to_median:
            sent = clipped(sent, origin, self.clip_to_median)
        needed = 2 * count_hostile(len(sent), self.hostile_fraction) + 1
        match self.rule:
            case "median":
                return _each(sent_by(needed, median), sent, origin)
            case "trimmed-mean":
                trimmed = trimmed_mean(self.hostile_fraction)
                return _each(sent_by(needed, trimmed), sent, origin)
            case "geometric-median":
                weights = geometric_median_weights(gram(sent, origin))
                return _each(sent_by(needed, weighted_mean(weights)), sent, origin)
            case "krum":
                weights = krum_weights(gram(sent, origin), self.hostile_fraction)
        return _each(weighted_mean(weights), sent, origin)


def _each(combine: Combine, sent: Sequence[Arrays], before: Arrays) -> dict[str, Array]:
    found = {}
    for name, old in before.items():
        dense = np.asarray(old)
        values = combine(TensorOfEach(sent, name), dense)
        whole = dense.dtype.kind in "iu"  # BatchNorm counts its batches
        found[name] = (np.rint(values) if whole else values).astype(dense.dtype)
    return found
