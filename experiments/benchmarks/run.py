"""The benchmarks: measure, and write a table of each.

python experiments/benchmarks/run.py [a b c d] FOLDER [--quick] [--repeats 3]

FOLDER/measurements.jsonl gets a line for each measurement as it comes, and what is
there is not measured again: an interrupted sitting goes on. FOLDER/NAME.md gets the
table of a part. --quick is a trial of minutes, whose numbers say little.
"""

import argparse
import shlex
import sys
from pathlib import Path

import client_visits
import fedweit_step
import many_clients
import secure_sums
from results import Results, machine

PARTS = {
    "a": client_visits,
    "b": fedweit_step,
    "c": many_clients,
    "d": secure_sums,
}


def main() -> None:
    """Measure the parts that are asked for, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="a to d; all if none")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pfl-python", default="", help="a Python that has pfl")
    given = parser.parse_args()
    if odd := set(given.parts) - PARTS.keys():
        parser.error(f"parts {sorted(odd)}, expected some of {', '.join(PARTS)}")
    if given.repeats < 1:
        parser.error(f"--repeats: got {given.repeats}, expected at least 1")
    results = Results(given.folder / "measurements.jsonl")
    for letter in given.parts or PARTS:
        part = PARTS[letter]
        size = part.QUICK if given.quick else part.FULL
        part.measure(results, size, given.repeats, given.pfl_python)
        file = given.folder / f"{part.__name__}.md"
        text = "\n\n".join(
            (
                f"# {(part.__doc__ or '').splitlines()[0]}",
                f"`{shlex.join(['python', *sys.argv])}`",
                f"{machine(results.of(part=letter))}.",
                part.report(results, size),
            )
        )
        file.write_text(text)
        print(f"\n{text}", flush=True)


if __name__ == "__main__":
    main()
