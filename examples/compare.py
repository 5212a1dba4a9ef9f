"""Three methods and a baseline on arrays of your own, each beside itself alone.

    python examples/compare.py --seeds 1 2 3 --output runs/mine

You see the progress of each run, then a table with a row for each method, and the
address of a page with charts. ``transfer gain`` is the answer to "does federation
help?": accuracy with communication minus accuracy without.
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import fcl_flower as fcl


def my_arrays() -> fcl.datasets.Dataset:
    """Return grey images of digits, shape (N, 8, 8) in [0, 1]; put yours in here."""
    x, y = load_digits(return_X_y=True)
    x = x.reshape(-1, 8, 8) / 16
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[:1400], order[1400:]
    return fcl.datasets.from_arrays(x[train], y[train], x[test], y[test])


def main() -> None:
    """Print the table, and where the page is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--output", type=Path, help="folder of the runs and the page")
    given = parser.parse_args()

    comparison = fcl.compare(
        ["fedavg", "fedweit", "matched-ensemble", "stl"],
        seeds=given.seeds,
        data=my_arrays(),
        model="small",
        scenario="overlapped",
        clients=3,
        tasks=3,
        classes_per_task=2,
        rounds=given.rounds,
        output=given.output,
    )
    print(comparison.table())
    if given.output:
        print(comparison.report())


if __name__ == "__main__":
    main()
