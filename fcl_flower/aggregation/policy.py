"""The policy by which a strategy combines what several clients have sent.

A strategy says what is averaged; the policy says how. With ``mean`` clients count by
the strategy's weights. All other rules count them alike, since a weight is what a
client says of itself; a weight of 0 leaves it out.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

import numpy as np

from fcl_flower.aggregation import Rule, Weighting
from fcl_flower.aggregation.mean import (
    Combine,
    Tensors,
    Weights,
    as_type,
    weighted_mean,
)
from fcl_flower.aggregation.robust import (
    clipped,
    count_hostile,
    geometric_median_weights,
    gram,
    krum_weights,
    median,
    trimmed_mean,
)
from fcl_flower.core.types import Array, Arrays, Payload, Update


def most_counted(counts: Iterable[float], limit: float) -> float:
    """Find the most examples that anybody counts by; infinite for no limit.

    ``limit`` is in medians of those who have any: at least 1, or 0 for no limit. Of an
    even number the median is the lower middle one, which no minority can make large.
    """
    some = [count for count in counts if count]
    return limit * median_low(some) if limit and some else math.inf


def shares_counted(counts: Sequence[float], limit: float) -> list[float]:
    """Compute the share of its examples, in (0, 1], that each entry is weighted by."""
    most = most_counted(counts, limit)
    return [min(1.0, most / count) for count in counts]


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
        weighting: ``uniform`` weights all clients with examples alike.
        examples_limit: see `most_counted`.
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
        counts = [update.num_examples for update in updates.values()]
        uniform = self.weighting == "uniform"
        most = 1 if uniform else most_counted(counts, self.examples_limit)
        return {
            client: replace(update, num_examples=int(min(update.num_examples, most)))
            for client, update in updates.items()
        }

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
                0, weighs all alike. Products are in the precision of the tensors for
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
            origin = _each(median(1), sent, sent[0]) if self.compares else sent[0]
        if self.clip_to_median:
            sent = clipped(sent, origin, self.clip_to_median)
        # Of so many senders hostile ones are fewer than half.
        needed = 2 * count_hostile(len(sent), self.hostile_fraction) + 1
        match self.rule:
            case "median":
                rule = median(needed)
            case "trimmed-mean":
                rule = trimmed_mean(self.hostile_fraction, needed)
            case "geometric-median":
                weights = geometric_median_weights(gram(sent, origin))
                rule = weighted_mean(weights, needed)
            case "krum":
                weights = krum_weights(gram(sent, origin), self.hostile_fraction)
                rule = weighted_mean(weights)
            case "mean":
                rule = weighted_mean(weights)
        return _each(rule, sent, origin)


def _each(combine: Combine, sent: Sequence[Arrays], before: Arrays) -> dict[str, Array]:
    dense = {name: np.asarray(old) for name, old in before.items()}
    return {
        name: as_type(combine(Tensors(sent, name), old), old.dtype)
        for name, old in dense.items()
    }
