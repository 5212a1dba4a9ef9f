"""How much memory a call takes, and how much some processes take together."""

import tracemalloc
from collections import Counter

MB = 2**20


def peak_of(call):
    """Return the most memory that a call takes beyond what there was, in MB."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1] / MB
    finally:
        tracemalloc.stop()


def taken_by(processes):
    """Return what these processes would take on a machine without others, in MB.

    A file that several have in memory counts once; what others share counts, too.
    """
    own, files = 0, Counter()
    for process in processes:
        mapped = Counter()
        for one in process.memory_maps():
            mapped[one.path] += one.rss
        own += sum(mapped.pop(path) for path in [*mapped] if not path.startswith("/"))
        files |= mapped
    return (own + files.total()) / MB
