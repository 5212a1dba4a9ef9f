"""Strategies x attacks x policies: what hostile clients do to the others, on digits.

python experiments/attacks/study.py run    # what is not there yet, run by run
python experiments/attacks/study.py table  # of what there is

Ten clients, of which the last two or the last one are hostile. Each run leaves a line
in ``results.jsonl`` beside this file (``--results``): the accuracy of every client at
the end. So it can be stopped at any time, and goes on where it stopped.
"""

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fcl_flower as fcl

HERE = Path(__file__).parent
CLIENTS, SEEDS = 10, (1, 2, 3)
STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {"tasks": 2, "classes_per_task": 5, "rounds": 5, "epochs": 3},
    "fedweit": {"tasks": 2, "classes_per_task": 5, "rounds": 4, "epochs": 2},
    "concept-matching": {
        **{"tasks": 3, "rounds": 8, "evaluate_every": 8},
        "strategy.concepts": 3,
    },
    "fedet": {
        **{"tasks": 2, "rounds": 3, "scenario": "class-incremental"},
        **{"model": "small", "strategy.groups": 1},
    },
}
POLICIES: Mapping[str, Mapping[str, Any]] = {
    "mean": {},
    "clipped mean": {"clip_to_median": 1.0, "examples_limit": 1.0},
    "median": {"aggregation": "median"},
    "trimmed-mean": {"aggregation": "trimmed-mean"},
    "geometric-median": {"aggregation": "geometric-median"},
    "krum": {"aggregation": "krum"},
    "harmful dropped": {"strategy.drop_harmful": True},
}
ATTACKS = ("sign-flip", "", "noise", "label-flip", "counts", "scaling", "adapters")
OF_ONE = ("mean", "clipped mean", "median", "trimmed-mean", "harmful dropped")
"""Policies that are tried against a single attacker, too."""


class Cell(NamedTuple):
    """One run.

    Attributes:
        strategy: its name.
        attack: its name; empty for none.
        attackers: how many, the last ones.
        policy: of `POLICIES`.
        seed: of the run.
    """

    strategy: str
    attack: str
    attackers: int
    policy: str
    seed: int

    def run(self) -> list[float]:
        """Return the accuracy of each client at the end, mean over its tasks."""
        hostile = {"attack": self.attack, "attackers": self.attackers}
        with tempfile.TemporaryDirectory() as folder:
            result = fcl.simulate(
                self.strategy,
                dataset="digits",
                clients=CLIENTS,
                seed=self.seed,
                output=folder,
                **STRATEGIES[self.strategy],
                **POLICIES[self.policy],
                **hostile,
            )
            found: list[float] = np.nanmean(result.accuracy[:, -1], axis=1).tolist()
            return found


def cells() -> Iterator[Cell]:
    """Yield all runs, those that say most first."""
    for attackers in (2, 1):
        policies = POLICIES if attackers == 2 else OF_ONE
        for seed, attack, strategy, policy in product(
            SEEDS, ATTACKS, STRATEGIES, policies
        ):
            if makes_sense(strategy, attack, policy) and (attack or attackers == 2):
                number = attackers if attack else 0
                yield Cell(strategy, attack, number, policy, seed)


def makes_sense(strategy: str, attack: str, policy: str) -> bool:
    """Return whether a policy could have to do with an attack on a strategy.

    Only FedWeIT hands adapters on, of which each client decides by itself.
    """
    if policy == "harmful dropped":
        return strategy == "fedweit" and attack in ("", "adapters")
    return attack != "adapters" or (strategy == "fedweit" and policy == "mean")


def read(path: Path) -> dict[Cell, list[float]]:
    """Return the runs that are there."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = map(json.loads, lines)
    return {Cell(*line["cell"]): line["accuracy"] for line in found}


def run(path: Path) -> None:
    """Run what is not there yet; a run that fails ends this program."""
    for cell in cells():
        if cell not in read(path):
            line = {"cell": list(cell), "accuracy": cell.run()}
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")


def table(path: Path) -> str:
    """Return the mean accuracy of the honest clients, as a table in Markdown.

    Without attackers it is that of the first eight clients, which are honest in all.
    """
    found = read(path)
    rows = dict.fromkeys(cell[:3] for cell in [*found, *cells()])
    ordered = sorted(rows, key=lambda r: (list(STRATEGIES).index(r[0]), r[2], r[1]))
    head = ["strategy", "attack", "attackers", *POLICIES]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for strategy, attack, attackers in ordered:
        honest = CLIENTS - (attackers or 2)
        row = [strategy, attack or "none", str(attackers)]
        for policy in POLICIES:
            runs = (
                found.get(Cell(strategy, attack, attackers, policy, seed))
                for seed in SEEDS
            )
            row.append(_shown([statistics.fmean(r[:honest]) for r in runs if r]))
        if any(row[3:]):
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def _shown(values: list[float]) -> str:
    """Return mean and standard deviation, and how many seeds there are if not all."""
    if not values:
        return ""
    deviation = statistics.stdev(values) if len(values) > 1 else math.nan
    spread = "" if math.isnan(deviation) else f" ± {deviation:.3f}"
    few = "" if len(values) == len(SEEDS) else f" ({len(values)})"
    return f"{statistics.fmean(values):.3f}{spread}{few}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--results", type=Path, default=HERE / "results.jsonl")
    given = parser.parse_args()
    if given.what == "run":
        run(given.results)
    else:
        print(table(given.results))
