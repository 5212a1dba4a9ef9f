"""Data of your own: arrays in memory become the streams of a federation.

Here scikit-learn's table of wines, 13 measurements of three cultivars; images of shape
(N, H, W) or (N, H, W, 3) and series of shape (N, channels, steps) go the same way.

    python examples/custom_dataset.py

You see the progress of one run, then the accuracy of two clients that learn all three.
"""

import argparse

from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

import fcl_flower as fcl


def wine() -> fcl.datasets.Dataset:
    """Return the data set, scaled by the training samples."""
    x, y = load_wine(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        x, y, test_size=0.3, stratify=y, random_state=0
    )
    scaler = StandardScaler().fit(x_train)
    return fcl.datasets.from_arrays(
        scaler.transform(x_train), y_train, scaler.transform(x_test), y_test
    )


def main() -> None:
    """Train on classes 0 to 2 as one task for each of two clients."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()

    result = fcl.simulate(
        "fedavg",
        data=wine(),
        scenario="overlapped",
        clients=2,
        tasks=1,
        classes_per_task=3,
        rounds=given.rounds,
        learning_rate=0.01,
        seed=1,
    )
    print(f"accuracy {result.average_accuracy:.3f}")


if __name__ == "__main__":
    main()
