"""Keys, shares, fixed point and masks of a sum, by hand."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fcl_flower.core.errors import ConfigError, ContractError, WireError
from fcl_flower.core.types import SparseArray, Update
from fcl_flower.rounds.secure.crypto import (
    Layout,
    add_masks,
    agreed_keys,
    decode_fixed_point,
    derived_key,
    encode_fixed_point,
    join_shares,
    new_secret,
    own_mask,
    pair_masks,
    public_key,
    share_secret,
)

BITS = 32  # behind the binary point


def update(seed, examples, **more):
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((3, 4)).astype(np.float32)
    base = {"w": weights, "steps": np.asarray(seed + 1, np.int64)}
    return Update({"base": base, **more}, examples)


def of(value, steps=0):
    return {"base": {"w": np.full((3, 4), value), "steps": np.asarray(steps)}}


def layout(weighted=True):
    return Layout.of(update(0, 1).payload, weighted=weighted)


def test_the_mean_is_exact_up_to_the_rounding_of_each_summand():
    updates = [update(seed, examples) for seed, examples in enumerate((7, 40, 1))]

    vectors = [encode_fixed_point(one, layout(), clients=3) for one in updates]
    mean = decode_fixed_point(vectors[0] + vectors[1] + vectors[2], layout())

    expected = sum(one.num_examples * one.payload["base"]["w"] for one in updates) / 48
    # Half a unit for each summand, and the rounding of the result to float32.
    atol = 3 * 2.0 ** (-BITS - 1) / 48
    np.testing.assert_allclose(
        mean.payload["base"]["w"], expected, rtol=2e-7, atol=atol
    )
    assert mean.num_examples == 48
    steps = mean.payload["base"]["steps"]
    assert steps.dtype == np.int64
    assert steps == round((7 * 1 + 40 * 2 + 1 * 3) / 48)


def test_sums_are_not_divided_and_a_group_may_be_left_out():
    both = Layout.of({**update(0, 1).payload, "b": {"x": np.zeros(2)}}, weighted=False)
    more = update(1, 5, b={"x": np.array([-1.5, 2**20])})

    vectors = [encode_fixed_point(one, both, 2) for one in (update(0, 3), more)]
    found = decode_fixed_point(vectors[0] + vectors[1], both)

    assert found.num_examples == 8
    np.testing.assert_array_equal(found.payload["b"]["x"], [-1.5, 2**20])
    assert found.payload["base"]["steps"] == 3


@pytest.mark.parametrize("weighted", [True, False])
def test_a_layout_travels_among_tensors_and_what_is_meta_does_not(weighted):
    known = update(0, 2, meta={"data": np.asarray(7, np.uint64)})

    vector = encode_fixed_point(known, layout(weighted), 3)

    assert Layout.from_array(layout(weighted).to_array()) == layout(weighted)
    assert len(vector) == layout(weighted).size
    assert (vector == encode_fixed_point(update(0, 2), layout(weighted), 3)).all()


def test_a_value_that_does_not_fit_is_refused_on_the_client():
    message = (
        r"^federation.secure_aggregation: got true, expected false, as base/w reaches "
        r"5.36871e\+08 and the sum over 3 clients may reach 1.07374e\+09$"
    )
    with pytest.raises(ConfigError, match=message):
        encode_fixed_point(Update(of(2.0**29), 1), layout(), clients=3)

    vector = encode_fixed_point(Update(of(-(2.0**28)), 1), layout(), 3)
    found = decode_fixed_point(vector * np.uint64(3), layout(weighted=False))
    np.testing.assert_array_equal(found.payload["base"]["w"], -3 * 2.0**28)


BASE = of(0.0)["base"]
SPARSE = SparseArray((3, 4), np.arange(1), np.zeros(1, np.float32))


@pytest.mark.parametrize(
    ("payload", "error", "message"),
    [
        (of(np.nan), WireError, "base/w: holds NaN"),
        ({}, ContractError, "expected"),
        ({"base": {"w": np.zeros((3, 4))}}, ContractError, "expected"),
        ({"base": {**BASE, "w": np.zeros((4, 3))}}, ContractError, "expected"),
        ({"base": {**BASE, "other": np.zeros(1)}}, ContractError, "expected"),
        ({"base": BASE, "heads": {"w": np.zeros(1)}}, ContractError, "expected"),
        ({"base": {**BASE, "w": SPARSE}}, ContractError, "expected"),
    ],
    ids=["not finite", "nothing", "a part", "a shape", "more", "a group", "sparse"],
)
def test_an_update_of_another_layout_is_refused(payload, error, message):
    with pytest.raises(error, match=message):
        encode_fixed_point(Update(payload, 1), layout(), 3)


@pytest.mark.parametrize("examples", [-3, 2.5])
def test_a_sum_over_no_number_of_examples_is_refused(examples):
    vector = encode_fixed_point(update(0, 1), layout(), 3)
    vector[2] = np.int64(examples * 2**BITS).view(np.uint64)

    with pytest.raises(WireError, match="expected a number of examples"):
        decode_fixed_point(vector, layout())


# ---- keys and shares: who can make them, and who cannot

PRIME = 2**255 - 19
KEY = public_key(bytes(16))


def test_a_key_is_that_of_x25519_and_hkdf():
    secret, peer = new_secret(), X25519PrivateKey.generate()

    def hkdf(bits, use):
        return HKDF(SHA256(), 32, None, b"fcl-flower " + use).derive(bits)

    shared = peer.exchange(X25519PublicKey.from_public_bytes(public_key(secret)))
    theirs = peer.public_key().public_bytes_raw()
    own = X25519PrivateKey.from_private_bytes(hkdf(secret, b"private key"))
    assert agreed_keys(secret, [theirs] * 2, "seal") == [hkdf(shared, b"seal")] * 2
    mask = hkdf(shared, b"mask of a pair")
    assert [*pair_masks(1, secret, {0: theirs, 2: theirs})] == [
        (mask, False),
        (mask, True),
    ]
    assert public_key(secret) == own.public_key().public_bytes_raw()
    assert own_mask(secret) == hkdf(secret, b"own mask")
    assert derived_key(secret, "a use") == hkdf(secret, b"a use")


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
        # The highest bit says nothing to X25519: two clients could have one key.
        KEY[:31] + bytes([KEY[31] | 0x80]),
    ],
    ids=lambda public: public.hex()[-4:] or "none",
)
def test_what_is_no_public_key_is_refused(public):
    with pytest.raises(ValueError, match=r"."):
        agreed_keys(new_secret(), [KEY, public], "a use")


def joined(shares):
    try:
        return join_shares(shares)
    except ValueError:
        return None


def test_so_many_shares_give_the_secret_and_one_less_does_not():
    secret = new_secret()

    shares = share_secret(secret, 3, 5)

    assert len({*shares}) == 5
    for some in combinations(shares, 3):
        assert join_shares(some) == secret
    for few in combinations(shares, 2):
        assert joined(few) != secret
    assert join_shares(shares) == secret


def by_fractions(shares):
    """Join shares as Lagrange has it, over whole numbers modulo the prime."""
    field, whole = 2**130 - 5, 0
    points = [
        (int.from_bytes(s[:4], "big"), int.from_bytes(s[4:], "big")) for s in shares
    ]
    for place, value in points:
        weight = Fraction(1)
        for other, _ in points:
            weight *= Fraction(other, other - place) if other != place else 1
        whole += value * weight.numerator * pow(weight.denominator, -1, field)
    return (whole % field).to_bytes(16, "big")


def test_shares_are_values_of_a_polynomial_modulo_a_prime():
    secret = bytes(range(240, 256))

    shares = share_secret(secret, 34, 50)

    assert by_fractions(shares[:34]) == by_fractions(shares[16:]) == secret
    assert join_shares(shares[:34]) == join_shares(shares[16:]) == secret
    assert {len(share) for share in shares} == {21}
    # A second time there is another polynomial.
    assert not {*shares} & {*share_secret(secret, 34, 50)}


@pytest.mark.parametrize(
    "wrong", [b"", b"x", bytes(20), bytes(21), bytes(50), bytes(4) + b"\xff" * 17]
)
def test_what_is_no_share_gives_no_secret(wrong):
    secret = new_secret()
    first, second, _ = share_secret(secret, 3, 3)

    assert joined([first, second, wrong]) != secret


def test_one_share_twice_is_refused():
    first, second, _ = share_secret(new_secret(), 3, 3)
    with pytest.raises(ValueError, match="of different places"):
        join_shares([first, second, second])


# ---- masks


def mask_of(key, size):
    """Make a mask block by block: in counter mode each is its encrypted number."""
    block = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()
    numbers = range((size + 1) // 2)
    blocks = b"".join(block.update(number.to_bytes(16, "big")) for number in numbers)
    return np.frombuffer(blocks, "<u8")[:size]


@pytest.mark.parametrize("size", [1, 5, 2**13, 2**14 + 3])
def test_masks_are_aes_in_counter_mode_added_or_taken_off(size):
    keys = [bytes(range(32)), bytes(32), b"x" * 32]
    drawn = np.random.default_rng(0).integers(0, 2**64, size, np.uint64)
    total = drawn.copy()

    add_masks(total, zip(keys, (True, False, True), strict=True))

    first, second, third = (mask_of(key, size) for key in keys)
    assert (total == drawn + first - second + third).all()


def test_keys_that_differ_in_one_bit_make_masks_with_nothing_in_common():
    """Folding keys into 32 bits would make one mask of these."""
    masks = []
    for key in (bytes(32), bytes(3) + b"\1" + bytes(3) + b"\1" + bytes(24)):
        masks.append(np.zeros(100, np.uint64))
        add_masks(masks[-1], [(key, True)])

    assert (masks[0] != masks[1]).all()


def test_the_masks_of_pairs_vanish_from_a_sum_over_all_of_them_and_no_other():
    secrets = {client: new_secret() for client in (0, 3, 8)}
    public = {client: public_key(secret) for client, secret in secrets.items()}

    masks = []
    for client, secret in secrets.items():
        others = {other: key for other, key in public.items() if other != client}
        masks.append(np.zeros(5, np.uint64))
        add_masks(masks[-1], pair_masks(client, secret, others))

    assert not (masks[0] + masks[1] + masks[2]).any()
    assert (masks[0] + masks[1]).all()
    assert all(mask.all() for mask in masks)
