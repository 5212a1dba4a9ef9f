"""The policy by which a strategy combines what several clients have sent.

A strategy says what is averaged; the policy says how. With ``mean`` clients count by
the strategy's weights. All other rules count them alike, since a weight is what a
client says of itself; a weight of 0 leaves it out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fcl_flower.aggregation import Rule, Weighting
from fcl_flower.aggregation.by_coordinate import count_hostile, median, trimmed_mean
from fcl_flower.aggregation.by_update import (
    clipped,
    geometric_median_weights,
    gram,
    krum_weights,
)
from fcl_flower.aggregation.counts import counted
from fcl_flower.aggregation.senders import Combine, sent_by
from fcl_flower.aggregation.tensors import TensorOfEach
from fcl_flower.aggregation.weighted_mean import Weights, weighted_mean
from fcl_flower.core.types import Array, Arrays, Payload, Update


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
        weighting: see `counts.counted`.
        examples_limit: likewise.
    """

    rule: Rule = "mean"
    hostile_fraction: float = 0.2
    clip_to_median: float = 0.0
    weighting: Weighting = "examples"
    examples_limit: float = 0.0

    @property
    def compares(self) -> bool:
        """Return whether updates are held against each other: one alone has none."""
        return self.rule != "mean" or self.clip_to_median > 0

    def count(self, updates: Mapping[int, Update]) -> dict[int, Update]:
        """Return updates with the numbers of examples by which they are to count."""
        return counted(updates, self.weighting, self.examples_limit)

    def combine_groups(self, updates: Mapping[int, Update], before: Payload) -> Payload:
        """Return groups as clients have changed them, each by its number of examples.

        Args:
            updates: with all groups of ``before``.
            before: what the clients started from, dense; returned where none of them
                has any example.
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
        """Return one set of tensors for many.

        An entry of a `SparseArray` that a client did not send says nothing: only those
        who sent it count there, and where nobody did the start stays. For what looks
        at whole updates it is an entry that did not move. With a median or a trimmed
        mean it also stays where hostile clients might be most of those who sent it.

        Args:
            sent: tensors by name of each client, at least one; finite. Where some are
                sparse or left out ``start`` is needed.
            weights: of each client, at least 0; only their ratios matter. None, or all
                0: all count alike. The products of a mean are in the precision of the
                tensors where weights are Python's numbers, in double precision where
                they are NumPy's.
            start: what the clients started from, dense. None where that is not one
                for all: differences are then taken from the coordinate-wise median.

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
    """Return what the clients' tensors of each name become."""
    found = {}
    for name, old in before.items():
        dense = np.asarray(old)
        values = combine(TensorOfEach(sent, name), dense)
        whole = dense.dtype.kind in "iu"  # BatchNorm counts its batches
        found[name] = (np.rint(values) if whole else values).astype(dense.dtype)
    return found
