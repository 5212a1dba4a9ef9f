"""What cases learn from beside the bundled data: encoders, texts, clients' folders.

All is drawn from fixed seeds, and small enough for a run of a second.
"""

import gzip
import json
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

TOPICS = [f"topic{number}" for number in range(6)]
WORDS = [f"{topic}x{number}" for topic in TOPICS for number in range(8)]
SIZE = {
    **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"intermediate_size": 24, "initializer_range": 0.5},
}


def write(folder: Path) -> None:
    """Write all of it into an empty folder."""
    transformers.utils.logging.disable_progress_bar()
    write_text_encoder(folder / "text-encoder")
    write_image_encoder(folder / "image-encoder")
    write_topics(folder)
    write_arrays(folder)
    for client, classes in enumerate((["ant", "bee", "cow"], ["dog", "bee", "emu"])):
        for task in (1, 2):
            path = folder / f"client-{client}" / f"task-{task:02}" / "train.csv"
            path.parent.mkdir(parents=True)
            path.write_text(table(classes[task - 1 : task + 1], 40 - 10 * client))


def write_text_encoder(folder: Path) -> None:
    """Write a tiny BERT of random weights, with a tokenizer of whole words."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **{"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]"},
        sep_token="[SEP]",
        model_max_length=16,
    ).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary), max_position_embeddings=20, **SIZE
    )
    save(config, folder)


def write_image_encoder(folder: Path) -> None:
    """Write a tiny vision transformer of random weights for 8x8 grey images."""
    config = transformers.ViTConfig(image_size=8, patch_size=4, num_channels=1, **SIZE)
    save(config, folder)


def save(config: transformers.PretrainedConfig, folder: Path) -> None:
    """Draw the weights of an encoder and write them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        transformers.AutoModel.from_config(config).save_pretrained(folder)


def write_topics(folder: Path) -> None:
    """Write a text set whose labels have words of their own, and word vectors."""
    rng = np.random.default_rng(0)
    rows = [
        {"label": topic, "text": " ".join(rng.choice(words, 7))}
        for _ in range(40)
        for topic, words in zip(TOPICS, np.split(np.array(WORDS), 6), strict=True)
    ]
    (folder / "topics").mkdir()
    for split, chosen in (("train", rows[48:]), ("test", rows[:48])):
        text = "\n".join(map(json.dumps, chosen))
        (folder / "topics" / f"{split}.jsonl.gz").write_bytes(
            gzip.compress(text.encode())
        )
    vectors = [
        f"{word} {' '.join(f'{v:.3f}' for v in rng.normal(size=8))}\n" for word in WORDS
    ]
    (folder / "topics.vec").write_text("".join([f"{len(WORDS)} 8\n", *vectors]))


def write_arrays(folder: Path) -> None:
    """Write a set of tables and one of time series, a frequency for each class."""
    rng = np.random.default_rng(0)
    labels = np.tile(np.arange(6), 20)
    table = rng.normal(size=(120, 4)) + 2 * np.eye(6, 4)[labels]
    angles = np.arange(128) * (labels[:, None, None] + 1) / 20
    waves = 2 * np.sin(angles + rng.normal(size=(120, 9, 1)))
    for name, samples in (("table", table), ("waves", waves)):
        x = samples.astype(np.float32)
        np.savez(
            folder / f"{name}.npz",
            **{"x_train": x[:90], "y_train": labels[:90]},
            **{"x_test": x[90:], "y_test": labels[90:]},
        )


def table(classes: list[str], each: int) -> str:
    """Draw a cloud of points around a corner for each class."""
    rng = np.random.default_rng(each)
    lines = ["x,label,y,z"]
    for number, name in enumerate(classes):
        points = 2 * np.array([number, -number, 1]) + rng.normal(size=(each, 3))
        lines += [f"{x:.3f},{name},{y:.3f},{z:.3f}" for x, y, z in points]
    return "\n".join(lines) + "\n"
