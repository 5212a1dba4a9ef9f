"""The section on bytes: how many, in which direction, and for which kind of payload."""

from collections.abc import Sequence

import numpy as np

from fcl_flower.results.report.charts.bars import columns_over_rounds
from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.content import Section, Table
from fcl_flower.results.report.schema import BytesOfKind, Round, Summary

_COLOURS = {
    "base": "var(--c0)",
    "adapters": "var(--c1)",
    "heads": "var(--c2)",
    "masks": "var(--c3)",
    "meta": "var(--c7)",
}
_FURTHER = ("var(--c4)", "var(--c5)", "var(--c6)")


def traffic_section(summary: Summary, rounds: Sequence[Round]) -> Section:
    """Return bytes per round by kind of payload, and totals beside nominal bytes."""
    kinds = _kinds(summary, rounds)
    total = summary.bytes_up + summary.bytes_down
    if not total or not kinds:
        return Section(
            "Nothing travelled",
            "No message carried any knowledge between the server and the clients.",
        )
    extra = (k for k in kinds if k not in _COLOURS)
    colours = _COLOURS | {k: _FURTHER[i % 3] for i, k in enumerate(extra)}
    ways = {
        way: {
            kind: np.array([getattr(r, f"bytes_{way}").get(kind, 0) for r in rounds])
            for kind in kinds
        }
        for way in ("up", "down")
    }
    limit = max(int(np.sum([*sizes.values()], axis=0).max()) for sizes in ways.values())
    by_kind = {
        k: _sum(summary.bytes_by_kind.up, summary.bytes_by_kind.down, k) for k in kinds
    }
    largest = max(by_kind, key=lambda kind: by_kind[kind])
    return Section(
        f"{numbers.size(total)} travelled; {by_kind[largest] / total:.0%} of it is "
        f"{largest}",
        "Bytes of the messages as they are sent, over all clients of a round: first "
        "up (clients to server), then down, on the same scale. Nominal bytes are the "
        "papers' count: 4 for each non-zero parameter, none for indices, masks and "
        "headers.",
        *(
            columns_over_rounds(
                sizes,
                colours,
                [r.task for r in rounds],
                limit,
                f"Bytes {way} in each round",
            )
            for way, sizes in ways.items()
        ),
        _totals(summary, kinds),
    )


def _kinds(summary: Summary, rounds: Sequence[Round]) -> list[str]:
    """Return the kinds that occur, the well-known ones first and in their order."""
    counts = [summary.bytes_by_kind.up, summary.bytes_by_kind.down]
    counts += [way for r in rounds for way in (r.bytes_up, r.bytes_down)]
    present = {kind for count in counts for kind, n in count.items() if n}
    known = [kind for kind in _COLOURS if kind in present]
    return known + sorted(present.difference(known))


def _sum(up: BytesOfKind, down: BytesOfKind, kind: str) -> int:
    return up.get(kind, 0) + down.get(kind, 0)


def _totals(summary: Summary, kinds: Sequence[str]) -> Table:
    up, down = summary.bytes_by_kind.up, summary.bytes_by_kind.down
    sizes = [(kind, up.get(kind, 0), down.get(kind, 0)) for kind in kinds]
    sizes += [
        ("all", summary.bytes_up, summary.bytes_down),
        ("nominal", summary.nominal_bytes_up, summary.nominal_bytes_down),
    ]
    return Table(
        ["kind", "up", "down", "both"],
        [
            [kind, *map(numbers.size_exact, (sent, received, sent + received))]
            for kind, sent, received in sizes
        ],
        "traffic",
    )
