"""The policy by which a strategy combines the tensors of several clients.

A strategy says which tensors are averaged; the policy says how. With ``mean`` clients
count by the strategy's weights. All other rules count clients equally, since a client
itself reports its weight. A weight of 0 leaves a client out.
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
    """Compute the largest number of examples that counts; infinite for no limit.

    ``limit`` is a multiple, at least 1, of the median of all counts above 0; 0 stands
    for no limit. The median of an even number of counts is the lower middle count,
    which no minority of clients can make large.
    """
    positive = [count for count in counts if count]
    return limit * median_low(positive) if limit and positive else math.inf


def shares_counted(counts: Sequence[float], limit: float) -> list[float]:
    """Compute the share of each count, in (0, 1], that `most_counted` lets count."""
    largest = most_counted(counts, limit)
    return [min(1.0, largest / count) for count in counts]


@dataclass(frozen=True, slots=True)
class Aggregation:
    """An aggregation policy.

    Attributes:
        rule: ``mean``; ``median`` and ``trimmed-mean`` of each coordinate (Yin et al.,
            ICML 2018, definitions 1 and 2); ``geometric-median`` of whole updates
            (Pillutla et al., IEEE TSP 2022, algorithm 2); or ``krum``, the mean of the
            updates that multi-Krum selects (Blanchard et al., NeurIPS 2017, section 4).
        hostile_fraction: fraction of the updates, in (0, 0.5), that ``trimmed-mean``
            cuts off at each end, and that ``krum`` leaves out.
        clip_to_median: largest Euclidean norm of an update's difference from its start,
            as a multiple of the median norm of all differences; 0 for no limit.
        weighting: ``examples`` weights clients by their numbers of examples;
            ``uniform`` weights all clients with examples equally.
        examples_limit: limit of the counted examples, see `most_counted`.
    """

    rule: Rule = "mean"
    hostile_fraction: float = 0.2
    clip_to_median: float = 0.0
    weighting: Weighting = "examples"
    examples_limit: float = 0.0

    @property
    def compares(self) -> bool:
        """Whether the policy compares updates, so that it needs several of them."""
        return self.rule != "mean" or self.clip_to_median > 0

    def count(self, updates: Mapping[int, Update]) -> dict[int, Update]:
        """Copy updates with the numbers of examples by which they are weighted."""
        counts = [update.num_examples for update in updates.values()]
        uniform = self.weighting == "uniform"
        largest = 1 if uniform else most_counted(counts, self.examples_limit)
        return {
            client: replace(update, num_examples=int(min(update.num_examples, largest)))
            for client, update in updates.items()
        }

    def combine_groups(self, updates: Mapping[int, Update], before: Payload) -> Payload:
        """Combine whole groups, weighting each client by its number of examples.

        ``before`` holds the dense tensors from which the clients started. The result is
        ``before`` if no client has examples.
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

        An absent entry of a client does not count: the rule covers the entry's senders
        only, and an entry without senders keeps its start. With a median or a trimmed
        mean, an entry also keeps its start if hostile clients may be most of its
        senders. For rules of whole updates an absent entry is one that did not move.

        Args:
            sent: finite tensors by name of each client, at least one. ``start`` is
                needed if some are sparse or absent.
            weights: weight of each client, at least 0; only ratios matter. None, or all
                0, weighs all equally. Products are in the precision of the tensors for
                Python's numbers, in double precision for NumPy's.
            start: dense tensors from which the clients started. None if each client had
                its own; differences are then taken from the coordinate-wise median.

        Returns:
            dense tensors of the dtypes of ``start``, or else of the first client;
            integers are rounded.
        """
        if weights is not None:
            counted = [k for k, weight in enumerate(weights) if weight > 0]
            sent = [sent[k] for k in counted] or sent
            weights = [weights[k] for k in counted] or None
        origin = start
        if origin is None:
            origin = _each(median(1), sent, sent[0]) if self.compares else sent[0]
        if self.clip_to_median:
            sent = clipped(sent, origin, self.clip_to_median)
        # Among so many senders, hostile ones are fewer than half.
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
