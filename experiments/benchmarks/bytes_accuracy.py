"""(d) Bytes against accuracy: FedAvg and FedWeIT over settings of the wire.

A small study on digits, the same seeds for all `SETTINGS`.
"""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from results import Results, Row, ratios, spread, table

from fcl_flower.config.parsing import Scalar
from fcl_flower.config.run_config import RunConfig
from fcl_flower.setup.resolve import resolve
from fcl_flower.simulation.in_process import run_in_process

STRATEGIES = ("fedavg", "fedweit")
SETTINGS: dict[str, dict[str, Scalar]] = {
    "float32": {},
    "float16": {"wire_dtype": "float16"},
    "bfloat16": {"wire_dtype": "bfloat16"},
    **{levels: {"wire_dtype": levels} for levels in ("int8", "int4", "ternary")},
}
"""Keys of `federation`; the others' bytes are divided by those of the first."""


@dataclass(frozen=True)
class Size:
    """How much of it; all of digits, two classes a task."""

    clients: int = 4
    tasks: int = 4
    rounds: int = 5


FULL, QUICK = Size(), Size(clients=2, tasks=2, rounds=2)


def measure(results: Results, size: Size, repeats: int, pfl_python: str) -> None:
    """Run every setting, with as many seeds as there are repeats."""
    for seed in range(1, repeats + 1):
        for strategy in STRATEGIES:
            for name, settings in SETTINGS.items():
                key = {**_key(size, strategy, name), "seed": seed}
                results.once(key, partial(_one, size, strategy, settings, seed))


def _key(size: Size, strategy: str, name: str) -> Row:
    counts = {"clients": size.clients, "tasks": size.tasks, "rounds": size.rounds}
    return {"part": "d", **counts, "strategy": strategy, "setting": name}


def _one(size: Size, strategy: str, settings: Mapping[str, Scalar], seed: int) -> Row:
    config = RunConfig.from_settings(
        strategy=strategy,
        dataset="digits",
        clients=size.clients,
        tasks=size.tasks,
        rounds=size.rounds,
        seed=seed,
        **{f"federation.{key}": value for key, value in settings.items()},
    )
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        summary = run_in_process(resolve(config).config, Path(folder))
    return {
        "accuracy": summary["average_accuracy"],
        "up": summary["bytes_up"],
        "down": summary["bytes_down"],
        "load": load,
    }


def report(results: Results, size: Size) -> str:
    """Return the table: bytes and accuracy, beside the first setting's."""
    first, lines = next(iter(SETTINGS)), []
    for strategy in STRATEGIES:
        exact = results.of(**_key(size, strategy, first))
        for name in SETTINGS:
            rows = results.of(**_key(size, strategy, name))
            lost = [
                row["accuracy"] - one["accuracy"]
                for row, one in zip(rows, exact, strict=True)
            ]
            lines.append([strategy, name, spread([row["accuracy"] for row in rows])])
            lines[-1].append(spread(lost, "+.3f"))
            for way in ("up", "down"):
                sent = [row[way] for row in rows]
                lines[-1].append(spread([count / 1e6 for count in sent]))
                lines[-1].append(ratios([row[way] for row in exact], sent))
    head = (
        *("strategy", "setting", "accuracy", f"change from {first}"),
        *("MB up", "times fewer", "MB down", "times fewer"),
    )
    return (
        f"Digits, {size.clients} clients, {size.tasks} tasks, {size.rounds} rounds a "
        f"task; bytes of the whole run.\n\n{table(head, lines)}"
    )
