"""The transfer gain: what a strategy's clients gained by communication."""

from collections.abc import Iterator, Sequence

import numpy as np

from fcl_flower.results import metrics
from fcl_flower.results.metrics import Accuracy, TransferGain
from fcl_flower.results.report.charts import bars
from fcl_flower.results.report.comparison.grouping import Pair
from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.content import Section, Verdict

_DOTS = 20
"""Clients or seeds up to which each is a dot beside the bars."""


def verdict(pair: Pair) -> Verdict:
    """Return one sentence on whether federation helped, and its tone.

    It is said to help or to hurt only if the 95 % interval leaves out zero.
    """
    gain, subject = pair.gain, pair.federated
    known = gain.per_unit[~np.isnan(gain.per_unit)]
    if not len(known):
        return Verdict(
            f"{subject}: nothing was measured at the end of both runs, so nothing "
            "can be said about federation."
        )
    amount = f"{numbers.signed(gain.overall)} final accuracy over {pair.local_only}"
    if len(known) == 1:
        return Verdict(
            f"{subject}: {amount}; with a single {pair.unit} there is no telling "
            "whether federation did it."
        )
    better = int((known > 0).sum())
    low, high = gain.overall - gain.margin, gain.overall + gain.margin
    evidence = (
        f"{amount}, 95 % interval {numbers.signed(low)} to {numbers.signed(high)}, "
        f"better for {better} of {numbers.plural(len(known), pair.unit)}"
    )
    if pair.unit == "client":
        evidence += "; one seed, so another may differ"
    if low <= 0 <= high:
        return Verdict(f"No clear effect of federation on {subject}: {evidence}.")
    if gain.overall > 0:
        return Verdict(f"Federation helped {subject}: {evidence}.", "good")
    return Verdict(f"Federation hurt {subject}: {evidence}.", "bad")


def gain_sections(pairs: Sequence[Pair], noun: str) -> Iterator[Section]:
    """Yield the overall gain of every pair, then the gain per task of each.

    Args:
        pairs: what is compared.
        noun: what a task is called, such as ``concept``.
    """
    if not pairs:
        yield Section(
            "What federation gained is not known",
            "No run here has its local-only counterpart of the same seed beside it; "
            "without it a high accuracy says nothing about federation.",
        )
    gains = [(pair, pair.gain) for pair in pairs]
    gains = [(pair, gain) for pair, gain in gains if not np.isnan(gain.overall)]
    if not gains:
        return
    yield _overall(gains)
    limits = _limits(gains)
    yield from (_per_task(pair, gain, limits, noun) for pair, gain in gains)


def _overall(gains: Sequence[tuple[Pair, TransferGain]]) -> Section:
    clear = sum(verdict(pair).tone == "good" for pair, _ in gains)
    count = numbers.plural(len(gains), "federated method")
    return Section(
        f"The transfer gain is clearly above zero for {clear} of {count}",
        "Final accuracy with federation minus that of its local-only run. Disc "
        "and whisker: mean and standard deviation over clients, or over seeds where "
        "there are several; dots: single clients or seeds.",
        bars.intervals(
            [
                bars.Interval(
                    pair.federated,
                    gain.overall,
                    gain.spread,
                    gain.per_unit,
                    pair.colour,
                )
                for pair, gain in gains
            ],
            "transfer gain (federated minus local-only)",
            "Transfer gain of every federated method",
        ),
    )


def _per_task(
    pair: Pair, gain: TransferGain, limits: tuple[float, float], noun: str
) -> Section:
    best, worst = int(np.nanargmax(gain.per_task)), int(np.nanargmin(gain.per_task))
    heading = f"{pair.federated} gains {numbers.signed(gain.per_task[best])}"
    if best != worst:
        heading = (
            f"{heading} on {noun} {best}, the most, and "
            f"{numbers.signed(gain.per_task[worst])} on {noun} {worst}, the least"
        )
    dots = _dots(pair)
    return Section(
        heading,
        f"Transfer gain per {noun} against {pair.local_only}. Bars: "
        + numbers.mean_over(len(gain.per_unit), pair.unit)
        + (f"; dots: single {pair.unit}s." if len(dots) else ".")
        + " The scale is the same for all methods.",
        bars.bars_over_tasks(
            gain.per_task,
            dots,
            "transfer gain",
            limits,
            numbers.signed,
            ("var(--c2)", "var(--c4)"),
            f"Transfer gain of {pair.federated} per {noun}",
            noun,
        ),
    )


def _dots(pair: Pair) -> Accuracy:
    """Return the gain of each unit on each task; none where they are too many."""
    gains = [
        a[:, -1] - b[:, -1]
        for a, b in zip(pair.with_federation, pair.without, strict=True)
    ]
    if pair.unit == "seed":
        gains = [np.stack([metrics.mean_measured(g, axis=0) for g in gains])]
    return gains[0] if len(gains[0]) <= _DOTS else gains[0][:0]


def _limits(gains: Sequence[tuple[Pair, TransferGain]]) -> tuple[float, float]:
    shown = np.concatenate(
        [np.append(_dots(pair).ravel(), gain.per_task) for pair, gain in gains]
    )
    return float(np.nanmin(shown)), float(np.nanmax(shown))
