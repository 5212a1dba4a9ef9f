"""A share of a count, such as the quorum of a round's clients."""

import math


def share(fraction: float, count: int) -> int:
    """Round a fraction of a count up to a whole number.

    In floating point the product may lie a little above its true whole number.

    >>> 0.28 * 25 > 7, share(0.28, 25)
    (True, 7)
    """
    return math.ceil(round(fraction * count, 9))
