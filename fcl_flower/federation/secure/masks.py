"""Pseudo-random masks: whoever has a key can make its mask, and nobody else.

A pair of clients has the same mask, which one adds and the other subtracts, so that it
vanishes from their sum. Each adds one more of its own, which is taken off the sum at
the end: it protects a vector that arrives after the server has given its client up.
"""

import base64
from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from flwr.common.secure_aggregation.crypto.symmetric_encryption import (
    generate_shared_key,
)
from flwr.supercore.primitives.asymmetric import bytes_to_public_key

from fcl_flower.federation.secure.fixed_point import Vector

KEY_BYTES = 32
CURVE = ec.SECP384R1()
"""That of Flower's keys."""


def keystream(key: bytes, size: int) -> Vector:
    """Return the mask of a key: AES-256 in counter mode, as in the paper (section 3.3).

    Flower's own generator folds a key into 32 bits, which can be tried one by one.

    Args:
        key: of 32 bytes, and used for one mask only, as the counter starts at 0.
        size: entries, each uniform in [0, 2^64). A shorter mask is a longer one's head.
    """
    cipher = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(cipher.update(bytes(8 * size)), "<u8").astype(np.uint64)


def secret_number(private: ec.EllipticCurvePrivateKey) -> bytes:
    """Return all that is secret of a key of `CURVE`, 48 bytes, the highest first.

    Flower's text of a key is six times as long, and sharing takes time for each 16
    bytes.
    """
    return private.private_numbers().private_value.to_bytes(CURVE.key_size // 8, "big")


def own_mask(seed: bytes, size: int) -> Vector:
    """Return the mask that a client adds for itself."""
    return keystream(seed, size)


def pair_masks(
    client: int, private: bytes, others: Mapping[int, bytes], size: int
) -> Vector:
    """Return the sum of the masks that a client has with others.

    Args:
        client: its number.
        private: the `secret_number` of its key.
        others: their public keys by number.
        size: entries of a mask.
    """
    total = np.zeros(size, np.uint64)
    own = ec.derive_private_key(int.from_bytes(private, "big"), CURVE)
    for other, public in others.items():
        agreed = generate_shared_key(own, bytes_to_public_key(public))
        mask = keystream(base64.urlsafe_b64decode(agreed), size)
        total = total + mask if client < other else total - mask
    return total
