"""Where noise that hides data comes from: nobody but its owner may know it.

Noise that follows from the run's seed can be subtracted by whoever knows the seed: the
server, and every client. So it comes from the operating system, and from the seed only
in a simulation, whose clients are one process's own and whose runs have to repeat.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from fcl_flower.core.seeds import derive

SIMULATION: Final = "FCL_SIMULATION"
"""Name of what is set in the environment of a simulation's processes. A setting of the
run would come from the server, which must not choose the noise of its clients."""


def is_simulated() -> bool:
    """Return whether this process belongs to a simulation."""
    return SIMULATION in os.environ


def secret_generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """Return a generator that nobody else can repeat, outside of a simulation.

    Args:
        seed: of the run; used in a simulation alone, as are the others.
        purpose: see `core.seeds.derive`.
        key: likewise.
    """
    if is_simulated():
        return np.random.default_rng(derive(seed, purpose, *key))
    return np.random.default_rng(int.from_bytes(os.urandom(32), "big"))


@contextmanager
def simulated() -> Iterator[None]:
    """Say for a while that this process is a simulation."""
    before = os.environ.get(SIMULATION)
    os.environ[SIMULATION] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SIMULATION]
        else:
            os.environ[SIMULATION] = before
