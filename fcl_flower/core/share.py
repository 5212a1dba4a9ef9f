"""A share of a count, such as the quorum of a round's clients."""

import math


def share(fraction: float, count: int) -> int:
    """Round a fraction of a count up to a whole number.

    The product may be a little above the whole number that it is.

    >>> 0.28 * 25 > 7, share(0.28, 25)
    (True, 7)
    """
    return math.ceil(round(fraction * count, 9))
