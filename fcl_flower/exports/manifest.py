"""The description of an exported network: JSON for programs, a card for people."""

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import torch

from fcl_flower import __version__
from fcl_flower.data.texts import EMPTY, WORD
from fcl_flower.exports.networks import Exported
from fcl_flower.models.pretrained import EncoderParams

FORMAT: Final = 1
"""The format of the manifest."""
INPUT, OUTPUT = "input", "logits"
_PACKAGES = ("numpy", "torch", "onnx", "onnxscript", "safetensors", "transformers")


def manifest(found: Exported) -> dict[str, Any]:
    """Collect what somebody who has the files alone must know, as JSON has it."""
    model, about = found.model, found.model.about
    config = model.run.config
    task = None
    if found.task is not None and about.tasks:
        task = {"number": found.task, "name": about.tasks[found.task].name}
    elif found.task is not None:
        task = {"number": found.task, "name": f"concept {found.task}"}
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
        "classes": list(found.names),
        "rows": list(found.rows),
        "model": config.model.name,
        "input": _input(found),
        "output": {
            "name": OUTPUT,
            "dtype": "float32",
            "shape": ["N", len(found.names)],
            "meaning": "a logit for each of classes; softmax gives probabilities",
        },
        "accuracy": _accuracy(found),
        "privacy": _privacy(found),
        "software": _software(),
    }


def _input(found: Exported) -> dict[str, Any]:
    run = found.model.run
    shape = ["N", *found.raw.shape[1:]]
    about: dict[str, Any] = {
        "name": INPUT,
        "kind": run.spec.modality,
        "dtype": str(found.raw.dtype).removeprefix("torch."),
        "shape": shape,
    }
    if run.spec.modality == "images":
        grey = found.raw.shape[3] == 1
        about["colour"] = "grey" if grey else "RGB"
        about["resize"] = "bilinear"
        mean, deviation = (
            values[0] if len(values) == 1 else list(values)
            for values in run.normalisation
        )
        about["mean"], about["deviation"] = mean, deviation
        about["inside"] = (
            f"pixels / 255, less {mean}, divided by {deviation}; channels first"
        )
    elif run.spec.modality == "tabular":
        tasks = found.model.about.tasks
        about["columns"] = list(tasks[found.task or 0].columns) if tasks else []
        about["inside"] = "nothing is done to the numbers"
    elif run.spec.modality == "time-series":
        about["inside"] = "nothing is done to the numbers"
    else:
        about["shape"] = ["N", "tokens"]
        about["inside"] = "nothing is done to the numbers; 0 is padding, at the end"
        about["tokens"] = _tokens(found)
    return about


def _tokens(found: Exported) -> dict[str, Any]:
    run = found.model.run
    if isinstance(run.model_params, EncoderParams):
        return {
            "kind": "tokenizer",
            "offset": 1,
            "most": run.model_params.max_tokens,
            "meaning": "numbers of the encoder's own tokenizer, one more each; it lies "
            "in the folder of the format transformers",
        }
    words = found.model.words
    return {
        "kind": "words",
        "pattern": WORD.pattern,
        "lower": True,
        "none": EMPTY,
        "vocabulary": dict(words.numbers) if words is not None else {},
        "meaning": "numbers of the words that the pattern finds in the lower-cased "
        "text; a word that is not in the vocabulary is left out",
    }


def _accuracy(found: Exported) -> dict[str, Any] | None:
    if found.accuracy is not None:
        on = f"{found.tested} test samples of the task"
        return {"value": round(found.accuracy, 6), "on": on}
    if (known := found.model.about.accuracy) is not None:
        return {"value": round(known, 6), "on": "validation samples, a mean over tasks"}
    return None


def _privacy(found: Exported) -> dict[str, Any] | None:
    section = found.model.run.config.privacy
    if section.unit == "none":
        return None
    return {
        "unit": section.unit,
        "epsilon": found.model.about.epsilon,
        "delta": section.delta,
        "noise_multiplier": section.noise_multiplier,
    }


def _software() -> dict[str, str]:
    known = {"fcl-flower": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            known[name] = torch.__version__ if name == "torch" else version(name)
        except PackageNotFoundError:
            continue
    return known


def write_manifest(about: Mapping[str, Any], path: Path, files: Iterable[Path]) -> None:
    """Write a manifest as JSON, with the SHA-256 of each file beside it."""
    listed = {
        str(file.relative_to(path.parent)): {
            "sha256": _digest(file),
            "bytes": file.stat().st_size,
        }
        for file in files
    }
    text = json.dumps({**about, "files": listed}, indent=1, ensure_ascii=False)
    path.write_text(f"{text}\n", encoding="utf-8")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- the card


def card(about: Mapping[str, Any]) -> str:
    """Write the same facts as the README.md of a folder for Hugging Face."""
    run, given = about["run"], about["input"]
    whose = "the server" if run["client"] is None else f"client {run['client']}"
    task = about["task"]
    what = "all tasks" if task is None else f"task {task['name']}"
    kind = {"images": "image", "text": "text", "tabular": "tabular"}
    tag = f"{kind.get(given['kind'], 'time-series')}-classification"
    head = ["---", "library_name: fcl-flower", "tags:", "- federated-learning"]
    head += ["- continual-learning", f"- {tag}", "---"]
    lines = [
        *head,
        f"# {_plain(run['title'])}: {_plain(what)} of {whose}",
        "",
        f"A classifier that {whose} of a federation has learned with "
        f"`{run['strategy']}` ([fcl-flower](https://pypi.org/project/fcl-flower/) "
        f"{about['software']['fcl-flower']}), as it was after round {run['round']}.",
        "",
        "| | |",
        "| --- | --- |",
        f"| network | `{about['model']}` |",
        f"| run | {_plain(run['id'] or run['title'])}, seed {run['seed']} |",
        f"| version | {run['version']} {run['written']} |",
        f"| tasks learned | {_plain(', '.join(about['tasks'])) or 'not known here'} |",
        f"| classes | {_plain(', '.join(about['classes']))} |",
        f"| accuracy | {_measured(about['accuracy'])} |",
        f"| privacy | {_spent(about['privacy'])} |",
        "",
        "## Input",
        "",
        f"`{given['name']}`: {given['kind']}, {given['dtype']} of shape "
        f"({', '.join(map(str, given['shape']))}). Inside of the network: "
        f"{given['inside']}.",
    ]
    if given.get("columns"):
        columns = ", ".join(f"`{_plain(name)}`" for name in given["columns"])
        lines.append(f"The columns are, in this order: {columns}.")
    if "colour" in given:
        lines.append(f"An image is made {given['colour']} and resized bilinearly.")
    if "tokens" in given:
        lines.append(f"Tokens are {given['tokens']['meaning']}.")
    lines += [
        "",
        "## Output",
        "",
        f"`{about['output']['name']}`: {about['output']['meaning']}.",
        "",
        "## Software",
        "",
        ", ".join(f"{name} {value}" for name, value in about["software"].items()),
    ]
    return "\n".join(lines) + "\n"


def _measured(accuracy: Mapping[str, Any] | None) -> str:
    if accuracy is None:
        return "not measured"
    return f"{accuracy['value']:.3f} on {accuracy['on']}"


def _spent(privacy: Mapping[str, Any] | None) -> str:
    if privacy is None:
        return "no differential privacy"
    spent = privacy["epsilon"]
    epsilon = "counted at the server" if spent is None else f"{spent:.3g}"
    return (
        f"epsilon {epsilon} at delta {privacy['delta']:g}, for each {privacy['unit']}"
    )


def _plain(text: str) -> str:
    """Keep a name from being markup: anybody may have given it."""
    marked = "".join(f"\\{c}" if c in r"\`*_{}[]<>#|" else c for c in text)
    return " ".join(marked.split())
