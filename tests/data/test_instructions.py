"""Instructions: files, tokens by hand, and the sentences of what is refused."""

import gzip
import json
import re

import numpy as np
import pytest
from language_models import numbers, saved_language_model, write_rows

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.instructions import (
    NO_LABEL,
    Instruction,
    chat_tokenizer,
    prompt_of,
    read_instructions,
)
from fcl_flower.data.registry import load_dataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved_language_model(tmp_path_factory.mktemp("lm"))


def test_the_sign_of_a_token_marks_the_answer_and_its_end_is_learned(folder):
    asked = [Instruction.of("say yes", "yes"), Instruction.of("say no twice", "no no")]
    x, y = chat_tokenizer(folder, 20).examples(asked)
    prompt = numbers("<begin> user say yes <end> <begin> assistant")
    answer = numbers("yes <end>")
    first = [n + 1 for n in prompt] + [-n - 1 for n in answer]
    assert x[0].tolist() == [*first, 0, 0]
    assert y[0].tolist() == [*answer, NO_LABEL]
    assert y[1].tolist() == numbers("no no <end>")
    assert (x[1] != 0).all()


def test_a_conversation_is_a_prompt_and_its_last_message_the_answer(folder, tmp_path):
    rows = [
        {"prompt": "say yes", "response": "yes"},
        {
            "messages": [
                {"role": "system", "content": "say no"},
                {"role": "user", "content": "say yes"},
                {"role": "assistant", "content": "no"},
            ]
        },
    ]
    write_rows(tmp_path / "train.jsonl", rows)
    one, other = (each for _, each in read_instructions(tmp_path / "train.jsonl"))
    assert one == Instruction.of("say yes", "yes")
    assert other == Instruction((("system", "say no"), ("user", "say yes")), "no")
    expected = (
        "<begin> system say no <end> <begin> user say yes <end> <begin> assistant"
    )
    tokens = chat_tokenizer(folder, 20).prompt(other.messages)
    assert tokens == numbers(expected)
    assert prompt_of(rows[1], "new") == other.messages
    assert prompt_of(rows[0], "new") == one.messages


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"prompt": "a"}, "line 1 has no response, expected prompt and response, or"),
        ({"prompt": " ", "response": "b"}, "line 1: prompt is empty, expected a text"),
        ({"prompt": "a", "response": 3}, "line 1: response is 3, expected a text"),
        ({"messages": []}, "messages is [], expected a list of messages"),
        (
            {"messages": [{"role": "user", "content": "a"}]},
            "the last role is 'user', expected a conversation that ends with",
        ),
        (
            {"messages": [{"role": "user"}]},
            "message 1 is {'role': 'user'}, expected an",
        ),
    ],
)
def test_a_row_that_is_no_instruction_is_named(row, sentence, tmp_path):
    write_rows(tmp_path / "train.jsonl", [row])
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        list(read_instructions(tmp_path / "train.jsonl"))


def test_an_answer_that_is_too_long_says_how_to_mend_it(folder):
    asked = [Instruction.of("say yes twice", "yes yes")]
    with pytest.raises(
        ConfigError, match=r"got 8 tokens and 3 of its answer.*to 11 or"
    ):
        chat_tokenizer(folder, 10).examples(asked)
    assert chat_tokenizer(folder, 11).examples(asked)[0].shape == (1, 11)


def test_a_model_without_a_template_is_refused(tmp_path):
    folder = saved_language_model(tmp_path, template=None)
    with pytest.raises(ConfigError, match="one with a chat template"):
        chat_tokenizer(folder, 10)


def test_a_template_that_writes_the_answer_elsewhere_is_refused(tmp_path):
    odd = "{% for m in messages|reverse %}{{ m['content'] }} {% endfor %}<end>"
    folder = saved_language_model(tmp_path, template=odd)
    with pytest.raises(ConfigError, match="writes the answer directly behind"):
        chat_tokenizer(folder, 10).examples([Instruction.of("say yes", "yes")])


def test_folders_and_labelled_texts_are_data_sets_of_instructions(tmp_path):
    for split in ("train", "test"):
        for name, rows in (
            ("chats", [{"prompt": "say yes", "response": "yes"}]),
            ("mails", [{"text": "a b", "label": "x"}, {"text": "c", "label": "y"}]),
        ):
            path = tmp_path / name / f"{split}.jsonl.gz"
            path.parent.mkdir(exist_ok=True)
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            path.write_bytes(gzip.compress(lines.encode()))
    chats = load_dataset("chats", tmp_path)
    assert chats.modality == "instructions"
    assert chats.train.x == (Instruction.of("say yes", "yes"),)
    mails = load_dataset("instructions:mails", tmp_path)
    prompt = "a b\n\nWhich label fits this text? Labels: x, y"
    assert mails.test.x[0] == Instruction.of(prompt, "x")
    assert mails.class_names == chats.class_names == ("response",)
    assert np.array_equal(mails.train.y, [0, 0])
    with pytest.raises(ConfigError, match="a data set of texts, not of images"):
        load_dataset("instructions:digits", tmp_path)
