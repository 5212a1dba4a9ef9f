"""One seed per purpose, derived from the run's seed and nothing else."""

import hashlib


def derive(seed: int, purpose: str, *key: int) -> int:
    """Return a 63-bit seed for one purpose.

    The same arguments give the same seed on every machine, whatever the node id,
    the time, or the order in which messages arrive.

    Args:
        seed: the seed of the run, at least 0.
        purpose: such as ``"shuffle"``; two purposes never share a stream.
        key: what else the stream depends on, such as client and round.
    """
    text = "/".join([str(seed), purpose, *map(str, key)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
