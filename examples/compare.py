"""Does federation help? Strategies beside their local-only counterparts.

python examples/compare.py --rounds 5 --seeds 1 2 3
"""

import argparse
from pathlib import Path

import fcl_flower as fcl


def main() -> None:
    """Print the table of FedAvg and FedWeIT on digits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--output", type=Path, help="folder of the runs and the page")
    given = parser.parse_args()

    comparison = fcl.compare(
        ["fedavg", "fedweit"],
        seeds=given.seeds,
        output=given.output,
        dataset="digits",
        clients=3,
        tasks=3,
        rounds=given.rounds,
    )
    print(comparison.table())


if __name__ == "__main__":
    main()
