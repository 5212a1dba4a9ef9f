import base64
import os

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from flwr.common.secure_aggregation.crypto.symmetric_encryption import (
    generate_shared_key,
)
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.supercore.primitives.asymmetric import (
    generate_key_pairs,
    public_key_to_bytes,
)

from fcl_flower.federation.secure.masks import (
    CURVE,
    KEY_BYTES,
    keystream,
    pair_masks,
    secret_number,
)


def test_the_masks_of_pairs_vanish_from_a_sum_over_all_of_them_and_no_other():
    pairs = {client: generate_key_pairs() for client in (0, 3, 8)}
    public = {client: public_key_to_bytes(key) for client, (_, key) in pairs.items()}

    masks = [
        pair_masks(
            client,
            secret_number(private),
            {other: key for other, key in public.items() if other != client},
            5,
        )
        for client, (private, _) in pairs.items()
    ]

    assert not (masks[0] + masks[1] + masks[2]).any()
    assert (masks[0] + masks[1]).all()
    assert all(mask.all() for mask in masks)


def test_the_mask_of_a_pair_is_that_of_all_32_bytes_they_agree_on():
    (private, _), (_, public) = generate_key_pairs(), generate_key_pairs()
    key = base64.urlsafe_b64decode(generate_shared_key(private, public))

    found = pair_masks(1, secret_number(private), {2: public_key_to_bytes(public)}, 7)

    assert len(key) == KEY_BYTES
    assert (found == keystream(key, 7)).all()


def test_the_secret_number_is_the_whole_key_in_48_bytes():
    private, public = generate_key_pairs()
    number = secret_number(private)
    again = ec.derive_private_key(int.from_bytes(number, "big"), CURVE)
    assert len(number) == 48
    assert public_key_to_bytes(again.public_key()) == public_key_to_bytes(public)
    low = secret_number(ec.derive_private_key(7, CURVE))
    assert low == bytes(47) + b"\7"


def test_a_mask_is_aes_in_counter_mode_and_a_short_one_a_long_ones_head():
    key = bytes(range(32))
    # In counter mode each block is the encrypted number of the block.
    block = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()
    blocks = b"".join(block.update(n.to_bytes(16, "big")) for n in range(4))

    assert keystream(key, 8).tobytes() == blocks
    assert (keystream(key, 1000)[:8] == keystream(key, 8)).all()


def test_flowers_own_generator_knows_32_bits_of_a_key():
    """The day this fails its masks could be taken."""
    key = os.urandom(32)
    turned = key[4:] + key[:4]

    one, other = (pseudo_rand_gen(k, 2**32, [(9,)])[0] for k in (key, turned))

    assert (one == other).all()
    assert (keystream(key, 9) != keystream(turned, 9)).all()
