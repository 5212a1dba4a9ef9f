"""Samples with features of length 1, and small runs of the analytic strategy."""

import numpy as np
from fakes import tiny

CLASSES, WIDTH = 4, 6


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
