"""Every strategy and every way of a run against the numbers that it is known to give.

``numbers.json`` holds what each case of ``cases.py`` gave on CPU: accuracies, bytes of
every kind in both directions, and checksums of the last states of server and clients.
A change that is not meant to change results must leave them as they are::

    python experiments/reference_numbers/check.py            # small cases, minutes
    python experiments/reference_numbers/check.py --all      # long ones, too: an hour
    python experiments/reference_numbers/check.py --only methods/fedavg,wire
    python experiments/reference_numbers/check.py --backend flower
    python experiments/reference_numbers/check.py --write --only rounds
"""

import argparse
import json
import math
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

import materials
import runs
from cases import LONG, ON_FLOWER, SMALL, Case

NUMBERS = Path(__file__).with_name("numbers.json")
Numbers: TypeAlias = dict[str, Any]


def main() -> None:
    """Compare the chosen cases, or write them anew; exit with 1 where one differs."""
    given = arguments()
    cases, known = chosen(given), json.loads(NUMBERS.read_text())
    began, wrong = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="fcl-") as name:
        folder = Path(name)
        materials.write(folder)
        if given.write:  # a case that does not repeat is no reference
            known |= dict(outcomes(cases, folder, given.backend))
        last = time.monotonic()
        for case, found in outcomes(cases, folder, given.backend):
            differing = differences(found, known[case])
            wrong += [case] * bool(differing)
            verdict = f"OTHER: {', '.join(differing)}" if differing else "the same"
            print(f"{case}: {verdict} ({time.monotonic() - last:.1f} s)", flush=True)
            last = time.monotonic()
    if given.write:
        write(known)
    print(f"{len(cases)} cases in {time.monotonic() - began:.0f} s")
    sys.exit(f"other numbers: {', '.join(wrong)}" if wrong else 0)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--small", action="store_true", help="small cases: the default")
    size.add_argument("--all", action="store_true", help="long cases, too")
    parser.add_argument("--only", default="", help="beginnings of names: A,B,...")
    parser.add_argument(
        "--backend", choices=("in-process", "flower"), default="in-process"
    )
    parser.add_argument("--write", action="store_true", help="write the numbers anew")
    given = parser.parse_args()
    if given.write and given.backend == "flower":
        parser.error("--write goes with --backend in-process")
    return given


def chosen(given: argparse.Namespace) -> dict[str, Case]:
    """Choose the cases that the command line asks for."""
    cases = {**SMALL, **LONG} if given.all else dict(SMALL)
    if given.backend == "flower":
        cases = {name: SMALL[name] for name in ON_FLOWER}
    beginnings = tuple(given.only.split(","))
    found = {n: case for n, case in cases.items() if n.startswith(beginnings)}
    return found or sys.exit(f"no case begins with {given.only}")


def outcomes(
    cases: Mapping[str, Case], folder: Path, backend: str
) -> Iterator[tuple[str, Numbers]]:
    """Run cases; yield what is compared of each as it is over.

    Args:
        cases: by name.
        folder: with the materials, and for the runs.
        backend: ``in-process`` or ``flower``.
    """
    if backend == "flower":
        yield from runs.run_on_flower(cases, folder)
        return
    for name, case in cases.items():
        with tempfile.TemporaryDirectory(dir=folder) as run:
            try:
                found = runs.run(case, Path(run), folder)
            except Exception as error:
                traceback.print_exc()
                found = {"failure": repr(error)}
        yield name, found


def differences(found: Numbers, expected: Numbers) -> list[str]:
    """Name the numbers that are others than those that were written."""
    failure = ["failure"] * ("failure" in found)
    return failure or [k for k in expected if not same(found[k], expected[k])]


def same(found: object, expected: object) -> bool:
    """Compare two values of a summary, of which NaN is NaN."""
    if isinstance(found, float) and isinstance(expected, float) and math.isnan(found):
        return math.isnan(expected)
    return found == expected


def write(known: Mapping[str, Numbers]) -> None:
    """Write the numbers of all cases that there are, a line each."""
    lines = (
        f"{json.dumps(name)}: {json.dumps(known[name], separators=(',', ':'))}"
        for name in {**SMALL, **LONG}
        if name in known and "failure" not in known[name]
    )
    NUMBERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
