"""Epsilon against accuracy: noise on clients' updates, and what it leaves of learning.

Run from the root, in this process; a finished run is not repeated::

    python experiments/privacy/study.py              # minutes
    python experiments/privacy/study.py --table      # README.md's table, from the runs

30 clients share the digits, so that noise averages out, and the network has 1,040
weights, since noise goes on each of them.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn
from typing_extensions import override

import fcl_flower as fcl

HERE = Path(__file__).parent
RESULTS = HERE / "results.jsonl"
README = HERE / "README.md"
SEEDS = (1, 2, 3)
STRATEGIES = ("fedavg", "fedweit")
NOISE = (0.5, 2.0, 8.0)
VARIANTS: Mapping[str, Mapping[str, object]] = {
    "alone": {"local_only": True},
    "no noise": {},
    **{
        f"z = {z:g}": {"unit": "client", "noise_multiplier": z, "clip": 0.1}
        for z in NOISE
    },
}
FEDERATION: Mapping[str, object] = {
    "dataset": "digits",
    "clients": 30,
    "tasks": 2,
    "rounds": 5,
    "learning_rate": 0.01,
    "evaluate_before_aggregation": False,
}
BEGIN, END = "<!-- table -->\n", "<!-- /table -->"
_EPSILONS = {
    "epsilon_server": "epsilon, server",
    "epsilon_clients": "epsilon, clients",
}

Row = dict[str, Any]


class Small(nn.Module):
    """Body from (batch, 1, 8, 8) to (batch, 16); tanh, as bounded units bear noise.

    Papernot et al., AAAI 2021, https://arxiv.org/abs/2007.14191.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 16)

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features, shape (batch, 16)."""
        return torch.tanh(self.fc(x.flatten(1)))


def run(strategy: str, variant: str, seed: int) -> Row:
    """Return what one run gives."""
    with tempfile.TemporaryDirectory() as folder:
        result = fcl.simulate(
            strategy,
            model=Small,
            seed=seed,
            output=folder,
            progress=False,
            **FEDERATION,
            **VARIANTS[variant],
        )
        privacy = json.loads((Path(folder) / "summary.json").read_text()).get("privacy")
    return {
        "strategy": strategy,
        "variant": variant,
        "seed": seed,
        "accuracy": result.average_accuracy,
        "epsilon_server": privacy and privacy["epsilon_server"],
        "epsilon_clients": privacy and privacy["epsilon_clients"],
    }


def finished() -> list[Row]:
    """Return the runs that are there."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return [json.loads(line) for line in lines]


def table(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the table, of what is there."""
    names = ("strategy", "variant", "seeds", "accuracy, %", *_EPSILONS.values())
    yield f"| {' | '.join(names)} |"
    yield f"|{' --- |' * len(names)}"
    for strategy, variant in product(STRATEGIES, VARIANTS):
        found = [
            row
            for row in rows
            if (row["strategy"], row["variant"]) == (strategy, variant)
        ]
        if not found:
            continue
        accuracies = [100 * row["accuracy"] for row in found]
        spread = statistics.stdev(accuracies) if len(found) > 1 else 0.0
        seeds = ", ".join(str(row["seed"]) for row in found)
        epsilons = [
            "" if found[0][key] is None else f"{max(row[key] for row in found):.3g}"
            for key in _EPSILONS
        ]
        accuracy = f"{statistics.mean(accuracies):.1f} ± {spread:.1f}"
        cells = [strategy, variant, seeds, accuracy, *epsilons]
        yield f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def main() -> None:
    """Do what is missing, seed by seed; or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true")
    if parser.parse_args().table:
        before, _, rest = README.read_text().partition(BEGIN)
        lines = "\n".join(table(finished()))
        README.write_text(f"{before}{BEGIN}{lines}\n{END}{rest.partition(END)[2]}")
        return
    done = {(row["strategy"], row["variant"], row["seed"]) for row in finished()}
    for seed, strategy, variant in product(SEEDS, STRATEGIES, VARIANTS):
        if (strategy, variant, seed) not in done:
            row = run(strategy, variant, seed)
            with RESULTS.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(row, flush=True)


if __name__ == "__main__":
    main()
