"""Torch's global random numbers, seeded for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's generators; give the processor's its state back afterwards.

    Where there is no accelerator the processor's is the only one, and is seeded itself:
    ``torch.manual_seed`` imports torch's compiler, which takes a second, and notes the
    stack of every call in case an accelerator appears.
    """
    with torch.random.fork_rng(devices=[]):
        if torch.accelerator.is_available():
            torch.manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)
        yield
