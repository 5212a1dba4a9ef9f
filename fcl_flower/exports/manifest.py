"""The description of an exported network: JSON for programs, a card for people."""

import hashlib
import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from fcl_flower import __version__
from fcl_flower.data.texts import EMPTY, WORD
from fcl_flower.exports.networks import Exported
from fcl_flower.models.pretrained import EncoderParams
from fcl_flower.results.environment import installed

FORMAT: Final = 1
"""The format of the manifest."""
INPUT, OUTPUT = "input", "logits"
_PACKAGES = ("numpy", "onnx", "onnxscript", "safetensors", "transformers")
_NOTHING = "nothing is done to the numbers"


def manifest(exported: Exported) -> dict[str, Any]:
    """Collect all facts that the files alone do not tell, as JSON has them."""
    model, about = exported.model, exported.model.about
    config, task = model.run.config, None
    if (number := exported.task) is not None:
        name = about.tasks[number].name if about.tasks else f"concept {number}"
        task = {"number": number, "name": name}
    accuracy = None
    if exported.accuracy is not None:
        on = f"{exported.tested} test samples of the task"
        accuracy = {"value": round(exported.accuracy, 6), "on": on}
    elif about.accuracy is not None:
        on = "validation samples, a mean over tasks"
        accuracy = {"value": round(about.accuracy, 6), "on": on}
    privacy = None
    if config.privacy.unit != "none":
        keys = {"unit", "delta", "noise_multiplier"}
        privacy = config.privacy.model_dump(include=keys) | {"epsilon": about.epsilon}
    return {
        "format": FORMAT,
        "run": {
            "title": config.title,
            "id": config.run.id,
            "strategy": config.strategy.name,
            "seed": config.run.seed,
            "round": about.round,
            "version": about.name,
            "client": about.client,
            "written": about.written,
        },
        "task": task,
        "tasks": list(model.tasks),
        "classes": list(exported.names),
        "rows": list(exported.rows),
        "model": config.model.name,
        "input": _input(exported),
        "output": {
            "name": OUTPUT,
            "dtype": "float32",
            "shape": ["N", len(exported.names)],
            "meaning": "a logit for each of classes; softmax gives probabilities",
        },
        "accuracy": accuracy,
        "privacy": privacy,
        "software": _software(),
    }


def _input(exported: Exported) -> dict[str, Any]:
    run, raw = exported.model.run, exported.raw
    about: dict[str, Any] = {
        "name": INPUT,
        "kind": run.spec.modality,
        "dtype": str(raw.dtype).removeprefix("torch."),
        "shape": ["N", *raw.shape[1:]],
        "inside": _NOTHING,
    }
    match run.spec.modality:
        case "images":
            about["colour"] = "grey" if raw.shape[3] == 1 else "RGB"
            about["resize"] = "bilinear"
            mean, deviation = (
                values[0] if len(values) == 1 else list(values)
                for values in run.normalisation
            )
            about["mean"], about["deviation"] = mean, deviation
            about["inside"] = (
                f"pixels / 255, less {mean}, divided by {deviation}; channels first"
            )
        case "tabular":
            tasks = exported.model.about.tasks
            columns = list(tasks[exported.task or 0].columns) if tasks else []
            about["columns"] = columns
        case "text":
            about["shape"] = ["N", "tokens"]
            about["inside"] = f"{_NOTHING}; 0 is padding, at the end"
            about["tokens"] = _tokens(exported)
    return about


def _tokens(exported: Exported) -> dict[str, Any]:
    params, words = exported.model.run.model_params, exported.model.words
    if isinstance(params, EncoderParams):
        return {
            "kind": "tokenizer",
            "offset": 1,
            "most": params.max_tokens,
            "meaning": "numbers of the encoder's own tokenizer, one more each; it lies "
            "in the folder of the format transformers",
        }
    return {
        "kind": "words",
        "pattern": WORD.pattern,
        "lower": True,
        "none": EMPTY,
        "vocabulary": dict(words.numbers) if words is not None else {},
        "meaning": "numbers of the words that the pattern finds in the lower-cased "
        "text; a word that is not in the vocabulary is left out",
    }


def _software() -> dict[str, str]:
    own = {
        "fcl-flower": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    found = {name: installed(name) for name in _PACKAGES}
    return own | {name: number for name, number in found.items() if number}


def write_manifest(about: Mapping[str, Any], path: Path, files: Iterable[Path]) -> None:
    """Write a manifest as JSON, with size and SHA-256 of each file beside it."""
    listed = {}
    for file in files:
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        name = str(file.relative_to(path.parent))
        listed[name] = {"sha256": digest, "bytes": file.stat().st_size}
    text = json.dumps({**about, "files": listed}, indent=1, ensure_ascii=False)
    path.write_text(f"{text}\n", encoding="utf-8")


# ---- the card

KINDS = {"images": "image", "text": "text", "tabular": "tabular"}
"""The kind of classification by modality; any other is of time series."""

CARD = """\
---
library_name: fcl-flower
tags:
- federated-learning
- continual-learning
- {kind}-classification
---
# {title}: {task} of {whose}

A classifier that {whose} of a federation has learned
([fcl-flower](https://pypi.org/project/fcl-flower/)), as it was after round {round}.

| | |
| --- | --- |
{facts}
"""


def card(about: Mapping[str, Any]) -> str:
    """Write the same facts as the README.md of a folder for Hugging Face."""
    run, task, client = about["run"], about["task"], about["run"]["client"]
    privacy = about["privacy"] or "no differential privacy"
    facts = _facts({**about, "privacy": privacy})
    return CARD.format(
        kind=KINDS.get(about["input"]["kind"], "time-series"),
        title=_plain(run["title"]),
        task=_plain(f"task {task['name']}" if task else "all tasks"),
        whose="the server" if client is None else f"client {client}",
        round=run["round"],
        facts="\n".join(f"| {name} | {value} |" for name, value in facts),
    )


def _facts(about: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """List the known facts of a manifest but for a vocabulary, which is long."""
    for key, value in about.items():
        if isinstance(value, Mapping) and key != "vocabulary":
            yield from _facts(value, f"{prefix}{key} ")
        elif isinstance(value, list):
            yield f"{prefix}{key}", ", ".join(_plain(str(entry)) for entry in value)
        elif value is not None and key != "vocabulary":
            yield f"{prefix}{key}", _plain(str(value))


def _plain(text: str) -> str:
    """Keep a name, which anybody may have given, from being markup."""
    marked = "".join(f"\\{c}" if c in r"\`*_{}[]<>#|" else c for c in text)
    return " ".join(marked.split())
