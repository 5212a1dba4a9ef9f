"""Samples with features of length 1 or of known classes, and small analytic runs."""

import numpy as np
from fakes import tiny

from strategies.analytic.sums import add_up, gram

CLASSES, WIDTH = 4, 6

D, C = 12, 3
MEANS = np.random.default_rng(5).standard_normal((9, D))
"""Of the classes that there are; a task has three of them."""


def samples(count, seed=0, classes=CLASSES, width=WIDTH):
    """Return features of length 1, and classes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, count)
    h = rng.standard_normal((count, width)) + np.eye(classes, width)[y]
    return h / np.linalg.norm(h, axis=1, keepdims=True), y


def start(folder, **values):
    """Return a run of three clients on digits, with an untrained network."""
    digits = {
        "strategy": "analytic",
        "dataset": "digits",
        "model": "small",
        "scenario": "class-incremental",
        "clients": 3,
        "tasks": 3,
        "classes_per_task": 3,
    }
    return tiny(folder, **{**digits, **values})


def draw(classes, each=40, seed=0, noise=0.7):
    """Return samples of some classes about their means, and labels of a task."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(classes)), each)
    return MEANS[list(classes)][y] + noise * rng.standard_normal((len(y), D)), y


def sums(h, y):
    """Return the sums over samples of a task with C classes."""
    return add_up([gram(h, y, C)] if len(y) else [], C, D)
