"""Tasks of texts that say their label, for tests of methods on frozen encoders."""

import numpy as np
import torch
from encoders import CLASSES

from fcl_flower.algorithms.base import Turn
from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import Examples, TaskData


def stage(number=1, ends=False):
    return TaskStage(number, 0, starts_task=number == 1, ends_task=ends)


def texts(*labels, count=12, seed=0):
    """Return texts that say their label by three words among two of no meaning."""
    rng = np.random.default_rng(seed)
    y = np.repeat(labels, count)
    x = rng.integers(15, 40, size=(len(y), 5))
    x[:, :3] = 5 + y[:, None]
    x[::3, 4:] = 0
    return Examples(torch.from_numpy(x), torch.from_numpy(y))


def task(*labels, **how):
    train, valid, test = (texts(*labels, seed=seed, **how) for seed in range(3))
    return TaskData(train, valid, test, CLASSES)


def taught(found, made, state, own=None, rounds=1, data=None, ends=True):
    """Return server and client state after a client has learned a task alone."""
    own = own or {}
    for number in range(1, rounds + 1):
        now = stage(number, ends and number == rounds)
        received = made.send(state, now, 0)
        own, update = found.train(Turn(own, received, now, data))
        made.check_update(state, update)
        state = made.combine(state, now, {0: update})
    return state, own
