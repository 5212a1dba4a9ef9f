"""Data sets of instructions, and their tokens: a prompt, and the answer to learn.

Federated continual instruction tuning trains a language model on such data (Guo et al.,
2025, https://arxiv.org/abs/2503.12897). A data set is one kind of instructions.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fcl_flower.core.errors import ConfigError, config_error
from fcl_flower.data.datasets import Dataset, Split
from fcl_flower.data.tables import Row, checked_text, read_rows
from fcl_flower.data.texts import TRAIN, TextDataset
from fcl_flower.models.pretrained import load_tokenizer

PROMPT: Final = "prompt"
RESPONSE: Final = "response"
MESSAGES: Final = "messages"
"""The keys of an instruction in a file: the first two, or the third."""

INSTRUCTIONS: Final = "instructions:"
"""The prefix of a name whose instructions ask for the labels of texts."""

CLASS: Final = "response"
"""The only class of a data set of instructions: all its answers are of one kind."""

NO_LABEL: Final = -100
"""The label of a place without an answer's token; PyTorch's losses ignore it."""

ASSISTANT: Final = "assistant"
"""The role of a message by the model."""

Message: TypeAlias = tuple[str, str]
"""The role and the content of a message of a conversation."""


class Instruction(NamedTuple):
    """An instruction: a conversation, and the assistant's answer to it.

    Attributes:
        messages: conversation before the answer, at least one message.
        response: answer that the model is to give.
    """

    messages: tuple[Message, ...]
    response: str

    @classmethod
    def of(cls, prompt: str, response: str) -> "Instruction":
        """Make an instruction of one message by the user."""
        return cls((("user", prompt),), response)


class InstructionDataset(Dataset[tuple[Instruction, ...]]):
    """A data set of instructions; all of them are of the class `CLASS`."""

    modality = "instructions"


def instruction_split(instructions: Sequence[Instruction]) -> Split:
    """Make a split of instructions."""
    y = np.zeros(len(instructions), np.int64)
    y.setflags(write=False)
    return Split(tuple(instructions), y)


# ---- files


def load_instructions(name: str, folder: Path) -> InstructionDataset:
    """Read ``train.jsonl.gz`` and ``test.jsonl.gz`` with `read_instructions`."""
    train, test = (
        instruction_split([row for _, row in read_instructions(folder / file)])
        for file in (TRAIN, "test.jsonl.gz")
    )
    return InstructionDataset(name, train, test, (CLASS,))


def has_instructions(path: Path) -> bool:
    """Tell whether the first line of a file of JSON lines has an instruction."""
    if ".jsonl" not in path.suffixes:
        return False
    _, row = next(read_rows(path, ()))
    return MESSAGES in row or {PROMPT, RESPONSE} <= {*row}


def read_instructions(path: Path) -> Iterator[tuple[int, Instruction]]:
    """Yield line and instruction of each row of a file of JSON lines.

    A row has ``prompt`` and ``response``, or ``messages``: objects with ``role`` and
    ``content``, the last of which is the assistant's.
    """
    for line, row in read_rows(path, ()):
        yield line, _instruction(row, f"{path}: line {line}")


def _instruction(row: Row, where: str) -> Instruction:
    if MESSAGES not in row:
        for key in (PROMPT, RESPONSE):
            if key not in row:
                raise ConfigError(
                    f"{where} has no {key}, expected {PROMPT} and {RESPONSE}, or "
                    f"{MESSAGES}"
                )
        prompt, response = (_text(row[k], f"{where}: {k}") for k in (PROMPT, RESPONSE))
        return Instruction.of(prompt, response)
    *before, (role, response) = _messages(row, where)
    if role != ASSISTANT or not before:
        expected = f"a conversation that ends with a message of the {ASSISTANT}"
        raise ConfigError(f"{where}: the last role is {role!r}, expected {expected}")
    return Instruction(tuple(before), response)


def prompt_of(row: Row, where: str) -> tuple[Message, ...]:
    """Read the conversation that a model is to answer, without an answer in the row.

    ``where`` begins an error, such as ``new.jsonl: line 2``.
    """
    if MESSAGES in row:
        *before, last = _messages(row, where)
        return tuple(before if last[0] == ASSISTANT and before else (*before, last))
    if PROMPT not in row:
        raise ConfigError(f"{where} has no {PROMPT}, expected it, or {MESSAGES}")
    return (("user", _text(row[PROMPT], f"{where}: {PROMPT}")),)


def _messages(row: Row, where: str) -> list[Message]:
    listed = row[MESSAGES]
    if not isinstance(listed, list) or not listed:
        expected = "a list of messages"
        raise ConfigError(f"{where}: {MESSAGES} is {listed!r:.60}, expected {expected}")
    return [_message(m, f"{where}: message {n}") for n, m in enumerate(listed, 1)]


def _message(value: object, where: str) -> Message:
    if not isinstance(value, Mapping) or not {"role", "content"} <= {*value}:
        expected = "an object with role and content"
        raise ConfigError(f"{where} is {value!r:.60}, expected {expected}")
    role = _text(value["role"], f"{where}: role")
    return role, _text(value["content"], f"{where}: content")


def _text(value: object, where: str) -> str:
    text = checked_text(value, where)
    if not text.strip():
        raise ConfigError(f"{where} is empty, expected a text: leave the row out")
    return text


# ---- labelled texts as instructions

_WORDS = 40
"""The number of words of a text that its instruction shows."""


def instructions_of(name: str, texts: Dataset) -> InstructionDataset:
    """Ask for the label of each text: the text, the labels, and the label as answer."""
    if not isinstance(texts, TextDataset):
        expected = f"a data set of texts, not of {texts.modality}"
        raise ConfigError(f"dataset: got {name!r}, expected {expected}")
    choices = ", ".join(texts.class_names)

    def instruction(text: str, label: int) -> Instruction:
        start = " ".join(text.split()[:_WORDS])
        prompt = f"{start}\n\nWhich label fits this text? Labels: {choices}"
        return Instruction.of(prompt, texts.class_names[label])

    train, test = (
        instruction_split(
            [instruction(x, y) for x, y in zip(s.x, s.y.tolist(), strict=True)]
        )
        for s in (texts.train, texts.test)
    )
    return InstructionDataset(name, train, test, (CLASS,))


# ---- tokens


class ChatTokenizer:
    """The tokenizer of a language model, with the model's own template of a chat.

    A prompt's token is one more than its number, and an answer's token is the negative
    of that. So 0 is padding, and the sign marks what is learned.

    Attributes:
        tokenizer: library's tokenizer.
        end: number of the token that ends an answer.
    """

    def __init__(self, tokenizer: Any, max_tokens: int, name: str) -> None:  # noqa: ANN401 - theirs
        """Take a model's tokenizer, and the most tokens of a prompt with its answer.

        Raises:
            ConfigError: the tokenizer has no template, or no token ends an answer.
        """
        if not getattr(tokenizer, "chat_template", None):
            expected = "one with a chat template, as models tuned to instructions have"
            raise config_error("model.encoder", name, expected)
        if tokenizer.eos_token_id is None:
            raise config_error(
                "model.encoder", name, "one with a token that ends texts"
            )
        self.tokenizer, self._max_tokens = tokenizer, max_tokens
        self.end = int(tokenizer.eos_token_id)

    def text(self, numbers: Sequence[int]) -> str:
        """Write an answer's tokens as a text."""
        text: str = self.tokenizer.decode(numbers, skip_special_tokens=True)
        return text.strip()

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Write a conversation as the numbers of the prompt's tokens."""
        return self._numbers(self._written(messages, begins_answer=True))

    def answer(self, instruction: Instruction) -> list[int]:
        """Write the answer as the numbers of its tokens, the end of the text included.

        Raises:
            ConfigError: the template does not write the answer behind the prompt.
        """
        prompt = self._written(instruction.messages, begins_answer=True)
        said = (*instruction.messages, (ASSISTANT, instruction.response))
        whole = self._written(said, begins_answer=False)
        if not whole.startswith(prompt):
            raise config_error(
                "model.encoder",
                self.tokenizer.name_or_path,
                "one whose chat template writes the answer directly behind the prompt",
            )
        numbers = self._numbers(whole.removeprefix(prompt))
        if self.end in numbers:  # a line break behind it is no part of the answer
            return numbers[: numbers.index(self.end) + 1]
        return [*numbers, self.end]

    def examples(
        self, instructions: Sequence[Instruction]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Convert instructions to inputs and labels.

        Returns:
            inputs, shape (N, tokens of the longest), padded with 0 at the end; and the
            numbers of each answer's tokens, shape (N, tokens of the longest answer),
            padded with `NO_LABEL`.

        Raises:
            ConfigError: an instruction has too many tokens.
        """
        pairs = [
            (self.prompt(each.messages), self.answer(each)) for each in instructions
        ]
        for (prompt, answer), each in zip(pairs, instructions, strict=True):
            if (size := len(prompt) + len(answer)) > self._max_tokens:
                start = each.messages[-1][1][:40]
                raise ConfigError(
                    f"instruction {start!r}: got {len(prompt)} tokens and "
                    f"{len(answer)} of its answer, expected at most "
                    f"{self._max_tokens} in all: set "
                    f"model.max_tokens to {size} or more, or shorten it"
                )
        x = np.zeros((len(pairs), max((len(p + a) for p, a in pairs), default=0)))
        y = np.full((len(pairs), max((len(a) for _, a in pairs), default=0)), NO_LABEL)
        for row, labels, (prompt, answer) in zip(x, y, pairs, strict=True):
            row[: len(prompt)] = np.array(prompt) + 1
            row[len(prompt) : len(prompt) + len(answer)] = -np.array(answer) - 1
            labels[: len(answer)] = answer
        return x.astype(np.int64), y.astype(np.int64)

    def _written(self, messages: Sequence[Message], *, begins_answer: bool) -> str:
        chat = [{"role": role, "content": content} for role, content in messages]
        text: str = self.tokenizer.apply_chat_template(
            chat, add_generation_prompt=begins_answer, tokenize=False
        )
        return text

    def _numbers(self, text: str) -> list[int]:
        numbers: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return numbers


@lru_cache(maxsize=4)
def chat_tokenizer(name: str, max_tokens: int) -> ChatTokenizer:
    """Load the tokenizer of a language model; later calls return the same object."""
    return ChatTokenizer(load_tokenizer(name), max_tokens, name)
