"""Small text sets with word vectors, as files."""

import gzip
import json

import numpy as np
from encoders import saved, saved_tokenizer


def write_text_set(root, train, test, name="tiny"):
    """Write (label, text) pairs as the two files of a set."""
    folder = root / name
    folder.mkdir()
    for split, rows in (("train", train), ("test", test)):
        lines = (json.dumps({"text": text, "label": label}) for label, text in rows)
        path = folder / f"{split}.jsonl.gz"
        path.write_bytes(gzip.compress("\n".join(lines).encode()))


def write_topics(root, labels=4, per_label=24, dimensions=8, name="tiny"):
    """Write a set whose labels have words of their own, and vectors for the words.

    Return the settings of a run over it.
    """
    rng = np.random.default_rng(0)
    rows = [
        (f"label{label}", " ".join(f"w{label}x{n}" for n in rng.integers(6, size=7)))
        for _ in range(per_label)
        for label in range(labels)
    ]
    write_text_set(root, rows, rows[: 2 * labels], name)
    words = sorted({word for _, text in rows for word in text.split()})
    vectors = rng.normal(size=(len(words), dimensions)).round(3)
    lines = [f"{len(words)} {dimensions}"]
    for word, vector in zip(words, vectors.tolist(), strict=True):
        lines.append(" ".join([word, *map(str, vector)]))
    (root / f"{name}.vec").write_text("\n".join(lines) + "\n")
    return {"dataset": name, "data_root": str(root), "word_vectors": f"{name}.vec"}


def encoded_topics(root, labels=4, per_label=24):
    """Write a set of topics, and a tiny encoder of its words.

    Return the settings of a run over it that has two spaces.
    """
    write_topics(root, labels, per_label)
    words = [f"w{label}x{n}" for label in range(labels) for n in range(6)]
    encoder = root / "encoder"
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    saved_tokenizer(saved(encoder, "bert"), [*special, *words])
    model = {"model": "disentangled-transformer", "model.encoder": str(encoder)}
    return {"dataset": "tiny", "data_root": str(root), "model.max_tokens": 12, **model}
