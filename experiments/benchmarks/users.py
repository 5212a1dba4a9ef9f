"""Users of pictures: one file that every side of a benchmark reads.

Speed does not depend on the pictures, so that real ones are repeated until there are
enough: those of CIFAR-10, then those of CIFAR-100 with labels folded to ten, from the
folder ``images`` of ``$FCL_DATA``; where there are none, noise of the same shape.
"""

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fcl_flower.data.registry import load_dataset

NAME = "users"
CLASSES = 10
CIFAR = ("cifar10", "cifar100")

Pictures = npt.NDArray[np.uint8]


def write_users(folder: Path, users: int, images: int, *, digits: bool = False) -> str:
    """Write ``users.npz`` into ``folder``; return what the pictures are.

    Args:
        folder: made if it is not there.
        users: at least 1.
        images: of a user, a multiple of ten.
        digits: scikit-learn's, 8x8, in place of 32x32 in colour.
    """
    folder.mkdir(parents=True, exist_ok=True)
    by_class, what = _digits() if digits else _colours()
    y = np.arange(users * images) % CLASSES
    x = np.empty((len(y), *by_class[0].shape[1:]), np.uint8)
    for label, pictures in enumerate(by_class):
        wanted = np.flatnonzero(y == label)
        x[wanted] = pictures[np.arange(len(wanted)) % len(pictures)]
    x_test, y_test = x[:CLASSES], y[:CLASSES]
    file = folder / f"{NAME}.npz"
    np.savez(file, x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    return what


def _colours() -> tuple[list[Pictures], str]:
    """Return pictures, (N, 32, 32, 3), of each of ten classes."""
    for name in CIFAR:
        path = Path(os.environ.get("FCL_DATA", "data")) / "images" / f"{name}.npz"
        if path.exists():
            with np.load(path) as file:
                return _by_class(file["x_train"], file["y_train"]), name
    noise = np.random.default_rng(0).integers(0, 256, (1000, 32, 32, 3), np.uint8)
    return _by_class(noise, np.arange(len(noise))), "noise"


def _digits() -> tuple[list[Pictures], str]:
    """Return pictures, (N, 8, 8), of each of ten classes."""
    train = load_dataset("digits", Path()).train
    return _by_class(np.asarray(train.x), train.y), "digits"


def _by_class(x: Pictures, y: npt.NDArray[np.int64]) -> list[Pictures]:
    return [x[y % CLASSES == label] for label in range(CLASSES)]
