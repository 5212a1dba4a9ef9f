"""The transfer gain: what a strategy's clients gained by communication."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fcl_flower.results import metrics
from fcl_flower.results.metrics import Accuracy, TransferGain
from fcl_flower.results.report.charts import intervals, over_tasks
from fcl_flower.results.report.html import numbers, page
from fcl_flower.results.report.html.markup import Markup

_DOTS = 20
"""Clients or seeds up to which each is a dot beside the bars."""


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A federated run and its local-only counterpart, seed by seed.

    Attributes:
        federated: title of the federated run.
        local_only: title of the same without communication.
        with_federation: for each seed, ``a``, shape (clients, tasks, tasks).
        without: the same of the local-only runs.
        colour: CSS colour of the federated run.
    """

    federated: str
    local_only: str
    with_federation: Sequence[Accuracy]
    without: Sequence[Accuracy]
    colour: str

    @property
    def unit(self) -> str:
        """Return what the spread is over: seeds where there are several."""
        return "seed" if len(self.without) > 1 else "client"

    @property
    def gain(self) -> TransferGain:
        """Return the gain per seed, or per client where there is one seed."""
        if self.unit == "client":
            return metrics.transfer_gain(self.with_federation[0], self.without[0])
        federated, local_only = [], []
        for a, b in zip(self.with_federation, self.without, strict=True):
            # A client that is missing in one run must not sway the other run's mean.
            unknown = np.isnan(a) | np.isnan(b)
            federated.append(
                metrics.mean_measured(np.where(unknown, np.nan, a), axis=0)
            )
            local_only.append(
                metrics.mean_measured(np.where(unknown, np.nan, b), axis=0)
            )
        return metrics.transfer_gain(np.stack(federated), np.stack(local_only))

    def verdict(self) -> tuple[str, str]:
        """Return one sentence on whether federation helped, and its tone.

        It is said to help or to hurt only if the 95 % interval leaves out zero.
        """
        gain, subject = self.gain, self.federated
        known = gain.per_unit[~np.isnan(gain.per_unit)]
        if not len(known):
            return (
                f"{subject}: nothing was measured at the end of both runs, so nothing "
                "can be said about federation.",
                "",
            )
        amount = f"{numbers.signed(gain.overall)} final accuracy over {self.local_only}"
        if len(known) == 1:
            return (
                f"{subject}: {amount}; with a single {self.unit} there is no telling "
                "whether federation did it.",
                "",
            )
        better = int((known > 0).sum())
        low, high = gain.overall - gain.margin, gain.overall + gain.margin
        evidence = (
            f"{amount}, 95 % interval {numbers.signed(low)} to {numbers.signed(high)}, "
            f"better for {better} of {numbers.plural(len(known), self.unit)}"
        )
        if self.unit == "client":
            evidence += "; one seed, so another may differ"
        if low <= 0 <= high:
            return f"No clear effect of federation on {subject}: {evidence}.", ""
        if gain.overall > 0:
            return f"Federation helped {subject}: {evidence}.", "good"
        return f"Federation hurt {subject}: {evidence}.", "bad"


def gain_sections(pairs: Sequence[Pair], noun: str) -> Iterator[Markup]:
    """Yield the overall gain of every pair, then the gain per task of each.

    Args:
        pairs: what is compared.
        noun: what a task is called, such as ``concept``.
    """
    if not pairs:
        yield page.section(
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


def _overall(gains: Sequence[tuple[Pair, TransferGain]]) -> Markup:
    clear = sum(pair.verdict()[1] == "good" for pair, _ in gains)
    count = numbers.plural(len(gains), "federated method")
    return page.section(
        f"The transfer gain is clearly above zero for {clear} of {count}",
        "Final accuracy with federation minus that of its local-only run. Disc "
        "and whisker: mean and standard deviation over clients, or over seeds where "
        "there are several; dots: single clients or seeds.",
        intervals.intervals(
            [
                intervals.Interval(
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
) -> Markup:
    best, worst = int(np.nanargmax(gain.per_task)), int(np.nanargmin(gain.per_task))
    heading = f"{pair.federated} gains {numbers.signed(gain.per_task[best])}"
    if best != worst:
        heading = (
            f"{heading} on {noun} {best}, the most, and "
            f"{numbers.signed(gain.per_task[worst])} on {noun} {worst}, the least"
        )
    dots = _dots(pair)
    return page.section(
        heading,
        f"Transfer gain per {noun} against {pair.local_only}. Bars: mean over "
        f"{pair.unit}s"
        + (f"; dots: single {pair.unit}s." if len(dots) else ".")
        + " The scale is the same for all methods.",
        over_tasks.bars_over_tasks(
            gain.per_task,
            dots,
            "transfer gain",
            limits,
            numbers.signed,
            lambda value: "var(--c2)" if value > 0 else "var(--c4)",
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
