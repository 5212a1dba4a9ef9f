"""Pseudo-random masks: whoever has a key can make its mask, and nobody else.

A pair of clients has the same mask, which one adds and the other subtracts, so that it
vanishes from their sum. Each adds one more of its own, which is taken off the sum at
the end: it protects a vector that arrives after the server has given its client up.
"""

from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fcl_flower.federation.secure.fixed_point import Vector
from fcl_flower.federation.secure.keys import agreed_key, derived_key


def keystream(key: bytes, size: int) -> Vector:
    """Return the mask of a key: AES-256 in counter mode, as in the paper (section 3.3).

    Flower's own generator folds a key into 32 bits, which can be tried one by one.

    Args:
        key: of 32 bytes, and used for one mask only, as the counter starts at 0.
        size: entries, each uniform in [0, 2^64). A shorter mask is a longer one's head.
    """
    cipher = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(cipher.update(bytes(8 * size)), "<u8").astype(np.uint64)


def own_mask(seed: bytes, size: int) -> Vector:
    """Return the mask that a client adds for itself."""
    return keystream(derived_key(seed, "own mask"), size)


def pair_masks(
    client: int, secret: bytes, others: Mapping[int, bytes], size: int
) -> Vector:
    """Return the sum of the masks that a client has with others.

    Args:
        client: its number.
        secret: of its key.
        others: their public keys by number.
        size: entries of a mask.

    Raises:
        ValueError: a public key is none.
    """
    total = np.zeros(size, np.uint64)
    for other, public in others.items():
        mask = keystream(agreed_key(secret, public, "mask of a pair"), size)
        total = total + mask if client < other else total - mask
    return total
