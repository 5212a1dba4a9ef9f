"""A tiny language model of random weights, with a tokenizer of whole words."""

import gzip
import json

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.decoders import WordPiece
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

_TEXT = """
<unk> <end> <begin> user assistant system what colour has the sky grass snow blue green
white is say yes no twice and more a b c d e f
"""
WORDS = _TEXT.split()
"""The words of the tokenizer, by their numbers."""
TEMPLATE = (
    "{% for m in messages %}<begin> {{ m['role'] }} {{ m['content'] }} <end> "
    "{% endfor %}{% if add_generation_prompt %}<begin> assistant {% endif %}"
)


def saved_language_model(folder, kind="Llama", template=TEMPLATE, **changes):
    """Write a model and its tokenizer into a folder; return the folder's name."""
    config = getattr(transformers, f"{kind}Config")(
        **{
            "vocab_size": len(WORDS),
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 64,
            # Small weights would let a wrong block pass for a right one.
            "initializer_range": 0.5,
            "bos_token_id": None,
            "eos_token_id": 1,
            "pad_token_id": None,
            **changes,
        }
    )
    transformers.utils.logging.disable_progress_bar()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    inner = Tokenizer(WordLevel({w: n for n, w in enumerate(WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = WhitespaceSplit()
    inner.decoder = WordPiece(prefix="##", cleanup=False)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", eos_token="<end>"
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return str(folder)


COLOURS = {"sky": "blue", "grass": "green", "snow": "white"}
KINDS = {
    "colours": [
        {"prompt": f"what colour has {more} {thing}", "response": colour}
        for thing, colour in COLOURS.items()
        for more in ("the", "a b", "c", "d e")
    ],
    "echoes": [
        {"prompt": f"say {word} twice {more}", "response": f"{word} {word}"}
        for word in ("yes", "no", "blue", "grass")
        for more in ("", "and", "and more")
    ],
}
"""Two data sets of instructions, by name."""


def instructing(folder):
    """Return the settings of a small run that tunes a tiny model to instructions."""
    for name, rows in KINDS.items():
        for split in ("train", "test"):
            path = folder / "data" / name / f"{split}.jsonl.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            path.write_bytes(gzip.compress(lines.encode()))
    return {
        "model": "causal-lm",
        "model.encoder": saved_language_model(folder / "model"),
        "model.max_tokens": 24,
        "data.root": str(folder / "data"),
        "datasets": ",".join(KINDS),
        "scenario": "domains",
        "classes_per_task": 0,
    }


def numbers(text):
    """Return the numbers of a text's words."""
    return [WORDS.index(word) for word in text.split()]


def write_rows(path, rows):
    """Write JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
