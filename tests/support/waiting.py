"""Waiting for what other threads and programs do."""

import time

PATIENCE = 500.0
"""Seconds; the machine may be busy. What must not end by itself lasts longer."""


def await_true(condition, story=lambda: "it did not happen", ended=lambda: False):
    """Wait until a condition is true, and return what it returns.

    Args:
        condition: is called again and again.
        story: tells what happened instead, for the message of an error.
        ended: whether the condition can no longer become true.

    Raises:
        RuntimeError: it does not become true, and never will or takes too long.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        over = ended() or time.monotonic() > deadline  # before the last look
        if found := condition():
            return found
        if over:
            raise RuntimeError(story())
        time.sleep(0.05)
