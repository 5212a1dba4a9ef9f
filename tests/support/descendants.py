"""What comes of a command or a test, found by a mark in its environment.

A mark is inherited by every process, also by those that leave the session and lose
their parent, which a family by parents would miss.
"""

import os
import time

import psutil

MARK = "FCL_TEST_MARK"
"""Set in the environment of a command, and so of all that comes of it."""


def marked(mark):
    """Return the processes that have this mark, without the one that asks."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(mark) and process.pid != os.getpid():
                found.append(process)
        except psutil.Error:
            continue  # somebody else's, or gone
    return found


def vanished(mark, seconds=10):
    """Whether they are gone, or go by themselves within this time."""
    deadline = time.monotonic() + seconds
    while marked(mark):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
