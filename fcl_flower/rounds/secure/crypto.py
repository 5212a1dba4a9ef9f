"""Keys, shares, fixed point and masks of a sum.

Only two clients can compute the key on which they agree: X25519 (RFC 7748), at a tenth
of the time of P-384, the curve of Flower's keys. A private key is made of a secret of
16 bytes. X25519 gives 128 bits of security, and the field in which a secret is shared
has room for them (`share_secret`).
"""

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fcl_flower.core import update_checks
from fcl_flower.core.errors import ContractError, WireError, config_error
from fcl_flower.core.types import (
    AnyArray,
    Array,
    Payload,
    SparseArray,
    Update,
    group_kind,
)

SECRET_BYTES = 16
KEY_BYTES = 32
_PRIME = 2**255 - 19


def new_secret() -> bytes:
    """Draw a secret, of which keys are derived."""
    return secrets.token_bytes(SECRET_BYTES)


def derived_key(secret: bytes, use: str) -> bytes:
    """Derive a secret's key for one use (HKDF, RFC 5869), of `KEY_BYTES`."""
    return HKDF(SHA256(), KEY_BYTES, None, f"fcl-flower {use}".encode()).derive(secret)


def public_key(secret: bytes) -> bytes:
    """Compute the public key of a secret, of `KEY_BYTES`."""
    return _private(secret).public_key().public_bytes_raw()


def agreed_keys(secret: bytes, publics: Iterable[bytes], use: str) -> list[bytes]:
    """Agree on a key for one use with the owner of each public key.

    Raises:
        ValueError: a public key is none, or would give all clients the same key.
    """
    private, keys = _private(secret), []
    for public in publics:
        # Some numbers have two encodings; a key must have one.
        if len(public) != KEY_BYTES or int.from_bytes(public, "little") >= _PRIME:
            raise ValueError(
                f"expected a public key of {KEY_BYTES} bytes below 2^255 - 19"
            )
        shared = private.exchange(X25519PublicKey.from_public_bytes(public))
        keys.append(derived_key(shared, use))
    return keys


def _private(secret: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(derived_key(secret, "private key"))


# ---- shares

_FIELD = 2**130 - 5
"""A prime above every secret; shares are integers modulo it."""
_PLACE_BYTES = 4
"""The bytes of a share's number, at its head."""
_VALUE_BYTES = 17
SHARE_BYTES = _PLACE_BYTES + _VALUE_BYTES


def share_secret(secret: bytes, threshold: int, shares: int) -> list[bytes]:
    """Share a secret of 16 bytes, so that any ``threshold`` shares determine it.

    Shamir, CACM 1979, https://doi.org/10.1145/359168.359176: shares are the values at
    1, 2, ... of a random polynomial modulo 2^130 - 5, whose value at 0 is the secret.
    """
    random = [secrets.randbelow(_FIELD) for _ in range(threshold - 1)]
    parts = []
    for place in range(1, shares + 1):
        value = 0
        for coefficient in (*random, int.from_bytes(secret, "big")):
            value = (value * place + coefficient) % _FIELD
        head = place.to_bytes(_PLACE_BYTES, "big")
        parts.append(head + value.to_bytes(_VALUE_BYTES, "big"))
    return parts


def join_shares(shares: Iterable[bytes]) -> bytes:
    """Join shares to their secret; wrong or too few shares give another secret.

    Raises:
        ValueError: they cannot be shares of one secret.
    """
    places, values = [], []
    for share in shares:
        if len(share) != SHARE_BYTES:
            raise ValueError(f"expected shares of {SHARE_BYTES} bytes")
        places.append(int.from_bytes(share[:_PLACE_BYTES], "big"))
        values.append(int.from_bytes(share[_PLACE_BYTES:], "big"))
    weights = _weights_at_zero(tuple(places))
    whole = sum(map(int.__mul__, weights, values)) % _FIELD
    if whole >= 2 ** (8 * SECRET_BYTES):
        raise ValueError(f"expected shares of a secret of {SECRET_BYTES} bytes")
    return whole.to_bytes(SECRET_BYTES, "big")


@lru_cache
def _weights_at_zero(places: tuple[int, ...]) -> list[int]:
    """Compute the weights of values at some places in the value at 0 (Lagrange)."""
    if len({*places}) < len(places):
        raise ValueError("expected shares of different places")
    weights = []
    for place in places:
        above = below = 1
        for other in places:
            if other != place:
                above = above * other % _FIELD
                below = below * (other - place) % _FIELD
        weights.append(above * pow(below, -1, _FIELD) % _FIELD)
    return weights


# ---- fixed point

BITS = 32
"""The bits behind the binary point."""
RANGE_BITS = 62
"""The bits of a sum; one more is its sign, and one is left over for rounding."""
MOST = 2.0 ** (RANGE_BITS - BITS)
"""The largest sum."""

Vector: TypeAlias = npt.NDArray[np.uint64]

CHECKS = 2
"""Zeros at the head of a vector. A mask that was not taken off leaves other numbers
there, with a probability of 1 - 2^-128."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The tensors that a vector holds, in order."""

    tensors: tuple[tuple[str, str, str, tuple[int, ...]], ...]
    """Group, name, dtype and shape of each."""
    weighted: bool
    """Each tensor counts as often as its client has examples."""

    @classmethod
    def of(cls, payload: Payload, *, weighted: bool) -> Self:
        """Describe the tensors of ``payload``, which are dense."""
        tensors = (
            (group, name, tensor.dtype.name, tuple(tensor.shape))
            for group, arrays in payload.items()
            for name, tensor in arrays.items()
        )
        return cls(tuple(tensors), weighted)

    @classmethod
    def from_array(cls, array: AnyArray) -> Self:
        """Read the array of `to_array`."""
        table = json.loads(np.asarray(array).tobytes())
        tensors = tuple((g, n, d, tuple(shape)) for g, n, d, shape in table["tensors"])
        return cls(tensors, table["weighted"])

    def to_array(self) -> Array:
        """Write the layout as the bytes of a text, to travel among tensors."""
        text = json.dumps({"tensors": self.tensors, "weighted": self.weighted})
        return np.frombuffer(text.encode(), np.uint8)

    @property
    def size(self) -> int:
        """Length of a vector."""
        entries = [int(np.prod(shape)) for *_, shape in self.tensors]
        return CHECKS + 1 + sum(entries)


def encode_fixed_point(update: Update, layout: Layout, clients: int) -> Vector:
    """Encode an update for a sum over so many vectors, without its ``meta`` groups.

    A group that the update lacks is zeros, unless examples weigh.

    Raises:
        ConfigError: a value is too large for the sum.
        ContractError: the update does not fit the layout.
        WireError: a value is not finite.
    """
    update_checks.finite(update.payload)
    weight = update.num_examples if layout.weighted else 1
    parts = {"the number of examples": np.array([float(update.num_examples)])}
    for where, tensor in _laid_out(update.payload, layout).items():
        parts[where] = weight * np.asarray(tensor, np.float64).ravel()
    for what, values in parts.items():
        largest = float(np.abs(values).max(initial=1.0))
        if clients * largest > MOST:
            raise config_error(
                "federation.secure_aggregation",
                True,
                f"false, as {what} reaches {largest:g} and the sum over {clients} "
                f"clients may reach {MOST:g}",
            )
    values = np.concatenate([np.zeros(CHECKS), *parts.values()])
    vector: Vector = np.rint(np.ldexp(values, BITS)).astype(np.int64).view(np.uint64)
    return vector


def decode_fixed_point(total: Vector, layout: Layout) -> Update:
    """Decode a sum of vectors: the number of examples, and tensors.

    Where examples weigh, the tensors are divided by the number, which gives their mean.

    Raises:
        WireError: the number of examples is negative or no integer.
    """
    values = np.ldexp(total.view(np.int64).astype(np.float64), -BITS)[CHECKS:]
    examples, values = float(values[0]), values[1:]
    if examples < 0 or examples != int(examples):
        raise WireError(f"sum: expected a number of examples, got {examples:g}")
    if layout.weighted:
        values = values / max(examples, 1.0)
    payload: dict[str, dict[str, AnyArray]] = {}
    for group, name, dtype, shape in layout.tensors:
        size = int(np.prod(shape))
        tensor, values = values[:size].reshape(shape), values[size:]
        if np.dtype(dtype).kind in "iu":  # such as BatchNorm's count of batches
            tensor = np.rint(tensor)
        payload.setdefault(group, {})[name] = tensor.astype(dtype)
    return Update(payload, int(examples))


def _laid_out(payload: Payload, layout: Layout) -> dict[str, AnyArray]:
    wanted: dict[str, dict[str, tuple[int, ...]]] = {}
    for group, name, _, shape in layout.tensors:
        wanted.setdefault(group, {})[name] = shape
    sent = {g: arrays for g, arrays in payload.items() if group_kind(g) != "meta"}
    missing = wanted.keys() - sent.keys()
    if not sent.keys() <= wanted.keys() or (layout.weighted and missing):
        raise ContractError(f"update: got {sorted(sent)}, expected {sorted(wanted)}")
    tensors: dict[str, AnyArray] = {}
    for group, shapes in wanted.items():
        arrays = sent.get(group, {n: np.zeros(shape) for n, shape in shapes.items()})
        dense = {
            name: tuple(tensor.shape)
            for name, tensor in arrays.items()
            if not isinstance(tensor, SparseArray)
        }
        if arrays.keys() != shapes.keys() or dense != shapes:
            raise ContractError(f"{group}: expected dense tensors of shapes {shapes}")
        tensors |= {f"{group}/{name}": arrays[name] for name in shapes}
    return tensors


# ---- masks

_BLOCK = 2**13
"""Entries of a vector that get all masks before the next entries: as many as a
processor's cache holds."""


def own_mask(seed: bytes) -> bytes:
    """Derive the key of the mask that a client adds for itself."""
    return derived_key(seed, "own mask")


def pair_masks(
    client: int, secret: bytes, others: Mapping[int, bytes]
) -> Iterator[tuple[bytes, bool]]:
    """Agree on the keys of the masks that a client has with others.

    Of each pair the client with the lower number adds the mask (True), and the other
    one takes it off.

    Raises:
        ValueError: a public key is none.
    """
    keys = agreed_keys(secret, others.values(), "mask of a pair")
    return zip(keys, (client < other for other in others), strict=True)


def add_masks(total: Vector, masks: Iterable[tuple[bytes, bool]]) -> None:
    """Add masks to a vector, in place, each by its key; False takes a mask off.

    A mask is AES-256 in counter mode, as in the paper, section 3.3: its entries are
    uniform in [0, 2^64). A key of 32 bytes is used for one mask only, as the counter
    starts at 0. Flower's own generator folds a key into 32 bits, which can be tried one
    by one.
    """
    streams = [
        (Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor(), plus)
        for key, plus in masks
    ]
    zeros = memoryview(bytes(8 * _BLOCK))
    buffer = bytearray(8 * _BLOCK + 15)  # as a cipher of blocks of 16 bytes asks for
    entries = np.frombuffer(buffer, "<u8", _BLOCK)
    for start in range(0, len(total), _BLOCK):
        part = total[start : start + _BLOCK]
        mask = entries[: len(part)]
        for stream, plus in streams:
            stream.update_into(zeros[: 8 * len(part)], buffer)
            (np.add if plus else np.subtract)(part, mask, out=part)
