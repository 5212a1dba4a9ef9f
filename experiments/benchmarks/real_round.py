"""(e) A round of a real federation on one machine, with TLS, keys and two clients.

Ours and Flower's own FedAvg in turn, by `experiments/round_overhead`, which says more.
"""

import json
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from measurement import REAL_ROUNDS, environment, measured
from results import Results, Row, ratios, spread, table

OURS, FLOWERS = "ours", "Flower's"


@dataclass(frozen=True)
class Size:
    """How many rounds a run has, at least 3: the first and the last do not count."""

    rounds: int = 12


FULL, QUICK = Size(), Size(4)


def measure(results: Results, size: Size, repeats: int, pfl_python: str) -> None:
    """Run both loops in turn, several times."""
    for repeat in range(repeats):
        key = {**_key(size), "repeat": repeat}
        results.once(key, lambda: _one(size))


def _key(size: Size) -> Row:
    return {"part": "e", **asdict(size)}


def _one(size: Size) -> Row:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = str(REAL_ROUNDS / "benchmark.py")
        counts = ["--pairs", "1", "--rounds", str(size.rounds)]
        command = [sys.executable, script, *counts, str(folder / "rounds")]
        cost = measured(command, environment(folder / "installed"), folder / "log")
        lines = (folder / "rounds" / "rounds.jsonl").read_text().splitlines()
    rounds = [json.loads(line) for line in lines]
    found = {loop: _parts(rounds, loop) for loop in (OURS, FLOWERS)}
    for loop, parts in found.items():
        kept = sum(one["loop"] == loop for one in rounds)
        if kept != size.rounds - 2 or not all(map(math.isfinite, parts.values())):
            raise RuntimeError(f"{loop}: got {kept} rounds of {size.rounds}: {parts}")
    return {"load": cost.load, "wall": cost.wall, "seconds": found}


def _parts(rounds: Sequence[Row], loop: str) -> dict[str, float]:
    """Return the median seconds of each part of a round, and of the whole."""
    chosen = [
        {k: v for k, v in one.items() if k not in ("loop", "pair", "load")}
        for one in rounds
        if one["loop"] == loop
    ]
    parts = {k: statistics.median(one[k] for one in chosen) for k in chosen[0]}
    whole = statistics.median(sum(one.values()) for one in chosen)
    return {**parts, "the whole round": whole}


def report(results: Results, size: Size) -> str:
    """Return the table: where a round's wall seconds go."""
    rows = [row["seconds"] for row in results.of(**_key(size))]
    lines = []
    for part in rows[0][OURS]:
        ours, flowers = ([row[loop][part] for row in rows] for loop in (OURS, FLOWERS))
        lines.append([part, spread(ours), spread(flowers), ratios(ours, flowers)])
    head = ("median s of a round", OURS, FLOWERS, "ratio")
    return f"{size.rounds} rounds a run.\n\n{table(head, lines)}"
