"""Measurements as they come, a line each, and the tables made of them."""

import json
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]
PACKAGES = ("flwr", "ray", "torch", "numpy")


class Results:
    """Rows in a file. What is there already is not measured again."""

    def __init__(self, file: Path) -> None:
        """Read what there is."""
        self.file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = file.read_text().splitlines() if file.exists() else []
        self.rows: list[Row] = [json.loads(line) for line in lines]

    def once(self, key: Row, measure: Callable[[], Row]) -> None:
        """Measure what ``key`` names, unless there is a row of it."""
        if not self.of(**key):
            row = {**key, **measure()}
            with self.file.open("a") as file:
                file.write(json.dumps(row) + "\n")
            self.rows.append(row)
            print(json.dumps(row), flush=True)

    def of(self, **key: object) -> list[Row]:
        """Return the rows that have all these values."""
        return [row for row in self.rows if key.items() <= row.items()]


def machine(rows: Sequence[Row]) -> str:
    """Return a line on where the rows were measured."""
    loads = [row["load"] for row in rows if "load" in row]
    load = f"load {min(loads):.1f} to {max(loads):.1f}" if loads else "load unknown"
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return (
        f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, {load}; "
        f"Python {platform.python_version()}, {versions}"
    )


def of_a_further(
    by: str, of: str, few: Sequence[Row], many: Sequence[Row]
) -> list[float]:
    """Return the cost of one more, without the start, of each repeat.

    Args:
        by: what one more is of, such as ``visits``.
        of: what it costs, such as ``cpu``.
        few: the short runs.
        many: the long runs, each measured after the short one in its place.
    """
    return [
        (long[of] - short[of]) / (long[by] - short[by])
        for short, long in zip(few, many, strict=True)
    ]


def spread(values: Sequence[float], form: str = ".3g") -> str:
    """Return the median, and the least and the most in brackets."""
    ends = f"{min(values):{form}} to {max(values):{form}}"
    return f"{statistics.median(values):{form}} ({ends})"


def ratios(values: Sequence[float], to: Sequence[float]) -> str:
    """Return the spread of the ratios of pairs, measured one after the other."""
    return spread([one / other for one, other in zip(values, to, strict=True)], ".2f")


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    every = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in every) + "\n"
