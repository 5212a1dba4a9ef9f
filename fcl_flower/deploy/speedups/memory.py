"""Memory that a process has freed is the system's again."""

import ctypes

_MMAP_THRESHOLD, _ARENA_MAX = -3, -8  # of mallopt(3)


def give_back_pieces() -> None:
    """Let pieces of messages leave the process as they are freed, where libc can.

    By default it keeps blocks of their size for later, between others in use: several
    times what a message takes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 2**20)
        mallopt(_ARENA_MAX, 2)
