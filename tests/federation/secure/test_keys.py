"""Keys and shares: who can make them, and who cannot."""

from itertools import combinations

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fcl_flower.federation.secure.crypto import (
    agreed_key,
    derived_key,
    join_shares,
    new_secret,
    public_key,
    share_secret,
)

PRIME = 2**255 - 19


def test_two_agree_on_a_key_for_each_use_and_a_third_on_another():
    one, other, third = (new_secret() for _ in range(3))

    key = agreed_key(one, public_key(other), "a use")

    assert agreed_key(other, public_key(one), "a use") == key
    assert agreed_key(one, public_key(other), "another") != key
    assert agreed_key(third, public_key(other), "a use") != key
    assert agreed_key(third, public_key(one), "a use") != key


def test_a_key_is_that_of_x25519_and_hkdf():
    secret, peer = new_secret(), X25519PrivateKey.generate()

    def hkdf(bits, use):
        return HKDF(SHA256(), 32, None, b"fcl-flower " + use).derive(bits)

    shared = peer.exchange(X25519PublicKey.from_public_bytes(public_key(secret)))
    theirs = peer.public_key().public_bytes_raw()
    own = X25519PrivateKey.from_private_bytes(hkdf(secret, b"private key"))
    assert agreed_key(secret, theirs, "seal") == hkdf(shared, b"seal")
    assert public_key(secret) == own.public_key().public_bytes_raw()
    assert derived_key(secret, "own mask") == hkdf(secret, b"own mask")


@pytest.mark.parametrize(
    "public",
    [
        b"",
        bytes(31),
        bytes(33),
        bytes(32),  # of low order: everybody's agreement would be the same
        (1).to_bytes(32, "little"),
        PRIME.to_bytes(32, "little"),
        (PRIME + 9).to_bytes(32, "little"),
    ],
    ids=lambda public: public.hex()[-70:] or "none",
)
def test_what_is_no_public_key_is_refused(public):
    with pytest.raises(ValueError, match=r"."):
        agreed_key(new_secret(), public, "a use")


def test_a_key_has_one_spelling():
    """Its highest bit says nothing to X25519: two clients could have one key."""
    public = public_key(new_secret())
    again = public[:31] + bytes([public[31] | 0x80])

    agreed_key(new_secret(), public, "a use")
    with pytest.raises(ValueError, match=r"32 bytes below 2\^255 - 19"):
        agreed_key(new_secret(), again, "a use")


def test_so_many_shares_give_the_secret_and_one_less_does_not():
    secret = new_secret()

    shares = share_secret(secret, 3, 5)

    assert len({*shares}) == 5
    for some in combinations(shares, 3):
        assert join_shares(some) == secret
    for few in combinations(shares, 2):
        assert join_shares(few) != secret
    assert join_shares(shares) == secret


@pytest.mark.parametrize("wrong", [b"", b"x", bytes(20), bytes(50)])
def test_what_is_no_share_gives_no_secret(wrong):
    secret = new_secret()
    first, second, _ = share_secret(secret, 3, 3)

    try:
        found = join_shares([first, second, wrong])
    except ValueError:
        return
    assert found != secret
