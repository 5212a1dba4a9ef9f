from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fcl_flower.federation.secure.crypto import (
    agreed_key,
    keystream,
    new_secret,
    pair_masks,
    public_key,
)


def test_the_masks_of_pairs_vanish_from_a_sum_over_all_of_them_and_no_other():
    secrets = {client: new_secret() for client in (0, 3, 8)}
    public = {client: public_key(secret) for client, secret in secrets.items()}

    masks = [
        pair_masks(
            client,
            secret,
            {other: key for other, key in public.items() if other != client},
            5,
        )
        for client, secret in secrets.items()
    ]

    assert not (masks[0] + masks[1] + masks[2]).any()
    assert (masks[0] + masks[1]).all()
    assert all(mask.all() for mask in masks)


def test_the_mask_of_a_pair_is_that_of_all_32_bytes_they_agree_on():
    one, public = new_secret(), public_key(new_secret())
    key = agreed_key(one, public, "mask of a pair")

    found = pair_masks(1, one, {2: public}, 7)

    assert len(key) == 32
    assert (found == keystream(key, 7)).all()


def test_a_mask_is_aes_in_counter_mode_and_a_short_one_a_long_ones_head():
    key = bytes(range(32))
    # In counter mode each block is the encrypted number of the block.
    block = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()
    blocks = b"".join(block.update(n.to_bytes(16, "big")) for n in range(4))

    assert keystream(key, 8).tobytes() == blocks
    assert (keystream(key, 1000)[:8] == keystream(key, 8)).all()
