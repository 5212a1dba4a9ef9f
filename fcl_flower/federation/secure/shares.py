"""Shamir's secret sharing: a number of shares give a secret, and fewer say nothing.

That of PyCryptodome, for which a secret of 16 bytes is one number. Flower's own adds 16
bytes to every secret before it shares them.
"""

from collections.abc import Iterable

from Crypto.Protocol.SecretSharing import Shamir

_PLACE_BYTES = 4
"""Of which share it is, at the head of each."""


def split(secret: bytes, threshold: int, shares: int) -> list[bytes]:
    """Return shares of a secret of 16 bytes, any ``threshold`` of which give it."""
    return [
        place.to_bytes(_PLACE_BYTES, "big") + share
        for place, share in Shamir.split(threshold, shares, secret, ssss=False)
    ]


def join(shares: Iterable[bytes]) -> bytes:
    """Return the secret of shares: another one if they are wrong, or too few.

    Raises:
        ValueError: they cannot be shares of one secret.
    """
    placed = [
        (int.from_bytes(share[:_PLACE_BYTES], "big"), share[_PLACE_BYTES:])
        for share in shares
    ]
    return bytes(Shamir.combine(placed, ssss=False))
