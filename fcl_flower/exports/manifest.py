"""The description of an exported network: JSON for programs, a card for people."""

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import torch
from jinja2 import Environment

from fcl_flower import __version__
from fcl_flower.data.texts import EMPTY, WORD
from fcl_flower.exports.networks import Exported
from fcl_flower.models.pretrained import EncoderParams

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
    versions = {
        "fcl-flower": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


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
{% set whose = "the server" if run.client is none else "client %s" % run.client %}
---
library_name: fcl-flower
tags:
- federated-learning
- continual-learning
- {{ kinds[input.kind] or "time-series" }}-classification
---
# {{ run.title|plain }}: {{ ("task " ~ task.name if task else "all tasks")|plain }} of \
{{ whose }}

A classifier that {{ whose }} of a federation has learned with `{{ run.strategy }}` \
([fcl-flower](https://pypi.org/project/fcl-flower/) {{ software["fcl-flower"] }}), \
as it was after round {{ run.round }}.

| | |
| --- | --- |
| network | `{{ model }}` |
| run | {{ (run.id or run.title)|plain }}, seed {{ run.seed }} |
| version | {{ run.version }} {{ run.written }} |
| tasks learned | {{ tasks|join(", ")|plain or "not known here" }} |
| classes | {{ classes|join(", ")|plain }} |
| accuracy | {{ accuracy.value|digits(".3f") ~ " on " ~ accuracy.on if accuracy else \
"not measured" }} |
| privacy | \
{% if privacy %}
epsilon {{ "counted at the server" if privacy.epsilon is none else \
privacy.epsilon|digits(".3g") }} at delta {{ privacy.delta|digits("g") }}, for each \
{{ privacy.unit }}{% else %}no differential privacy{% endif %} |

## Input

`{{ input.name }}`: {{ input.kind }}, {{ input.dtype }} of shape \
({{ input.shape|join(", ") }}). Inside of the network: {{ input.inside }}.
{% if input.columns %}
The columns are, in this order: {{ columns|join(", ") }}.
{% endif %}
{% if input.colour %}
An image is made {{ input.colour }} and resized bilinearly.
{% endif %}
{% if input.tokens %}
Tokens are {{ input.tokens.meaning }}.
{% endif %}

## Output

`{{ output.name }}`: {{ output.meaning }}.

## Software

{% for name, version in software.items() %}{{ name }} {{ version }}\
{{ ", " if not loop.last }}{% endfor %}

"""


def card(about: Mapping[str, Any]) -> str:
    """Write the same facts as the README.md of a folder for Hugging Face."""
    environment = Environment(trim_blocks=True, keep_trailing_newline=True)
    environment.filters |= {"plain": _plain, "digits": format}
    columns = [f"`{_plain(name)}`" for name in about["input"].get("columns", ())]
    template = environment.from_string(CARD)
    return template.render(**about, kinds=KINDS, columns=columns)


def _plain(text: str) -> str:
    """Keep a name, which anybody may have given, from being markup."""
    marked = "".join(f"\\{c}" if c in r"\`*_{}[]<>#|" else c for c in text)
    return " ".join(marked.split())
