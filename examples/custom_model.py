"""A model of your own: a body from inputs to features; heads are added to it.

    python examples/custom_model.py

You see the progress of one run of FedWeIT on digits, then its average accuracy.
"""

import argparse

from torch import Tensor, nn

import fcl_flower as fcl


class Patches(nn.Module):
    """A layer over each 2x2 patch of an 8x8 image, and one over all patches."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=2, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(256, 32),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return features, shape (batch, 32), of images, shape (batch, 1, 8, 8)."""
        return self.layers(x)


def main() -> None:
    """Train it with FedWeIT, which decomposes its layers as they are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()

    result = fcl.simulate(
        "fedweit",
        model=Patches,
        dataset="digits",
        clients=3,
        tasks=2,
        rounds=given.rounds,
        seed=1,
    )
    print(f"accuracy {result.average_accuracy:.3f}")


if __name__ == "__main__":
    main()
