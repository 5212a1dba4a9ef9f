"""Messages that never leave their process: a tensor's bytes stay in its own memory.

What is sent is checked, counted and decoded as anywhere else, from the same bytes; they
are only not copied first.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from fcl_flower.core.sparse import SparseArray
from fcl_flower.core.types import AnyArray

_WITHIN_PROCESS = ContextVar("within_process", default=False)


@contextmanager
def within_process() -> Iterator[None]:
    """Say for a while that no message leaves this process."""
    before = _WITHIN_PROCESS.set(True)
    try:
        yield
    finally:
        _WITHIN_PROCESS.reset(before)


def may_share(tensor: AnyArray) -> bool:
    """Return whether a message may hold a tensor's memory in place of a copy.

    Nothing changes an array once it is in a payload, but what it is a view of may be
    changed: the weights of a network that goes on learning. So it has to be the whole
    of what NumPy, or a message before, has allocated.
    """
    if not _WITHIN_PROCESS.get() or isinstance(tensor, SparseArray):
        return False
    owner: object = tensor
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    if isinstance(owner, np.ndarray):
        return owner.nbytes == tensor.nbytes
    if isinstance(owner, memoryview):
        return owner.nbytes == tensor.nbytes and owner.readonly
    return isinstance(owner, bytes) and len(owner) == tensor.nbytes
