"""The keys of one sum: what two clients agree on, nobody else can make.

X25519 (RFC 7748), at a tenth of the time of P-384, the curve of Flower's keys. A
private key is made of a secret of 16 bytes: 128 bits are what X25519 is good for, and
an element of the field in which a secret is shared (`shares`).
"""

import os

from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

SECRET_BYTES = 16
KEY_BYTES = 32
_PRIME = 2**255 - 19


def new_secret() -> bytes:
    """Return what a private key, or any other, is made of."""
    return os.urandom(SECRET_BYTES)


def derived_key(secret: bytes, use: str) -> bytes:
    """Return the key of a secret for one use (HKDF, RFC 5869), of `KEY_BYTES`."""
    return HKDF(SHA256(), KEY_BYTES, None, f"fcl-flower {use}".encode()).derive(secret)


def public_key(secret: bytes) -> bytes:
    """Return the public key of a secret, of `KEY_BYTES`."""
    return _private(secret).public_key().public_bytes_raw()


def agreed_key(secret: bytes, public: bytes, use: str) -> bytes:
    """Return the key for one use of who has a secret and who has a public key.

    Raises:
        ValueError: there is no such public key, or with it all would agree on one key.
    """
    # Some numbers have two spellings; of one key there must not be two.
    if len(public) != KEY_BYTES or int.from_bytes(public, "little") >= _PRIME:
        raise ValueError(f"expected a public key of {KEY_BYTES} bytes below 2^255 - 19")
    shared = _private(secret).exchange(X25519PublicKey.from_public_bytes(public))
    return derived_key(shared, use)


def _private(secret: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(derived_key(secret, "private key"))
