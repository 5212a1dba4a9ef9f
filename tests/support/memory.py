"""How much memory a call takes."""

import tracemalloc

MB = 2**20


def peak_of(call):
    """Return the most memory that a call takes beyond what there was, in MB."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1] / MB
    finally:
        tracemalloc.stop()
