"""An exported network as files that other programs open without this project."""

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch

from fcl_flower.core.errors import config_error, require_extra
from fcl_flower.exports.hugging_face import write_transformers
from fcl_flower.exports.manifest import INPUT, OUTPUT, card, write_manifest
from fcl_flower.exports.networks import Exported

MANIFEST: Final = "manifest.json"
"""The name of the manifest within a file or a folder."""

About = Mapping[str, Any]


def write_pt(exported: Exported, about: About, path: Path) -> None:
    """Write the weights as PyTorch does; ``torch.load`` opens it with weights only."""
    torch.save(exported.network.state_dict(), path)


def write_safetensors(exported: Exported, about: About, path: Path) -> None:
    """Write the weights as safetensors, with the manifest in the header."""
    with require_extra("onnx", "format safetensors"):
        from safetensors.torch import save_file
    tensors = {
        n: t.contiguous().clone() for n, t in exported.network.state_dict().items()
    }
    save_file(tensors, path, {MANIFEST: json.dumps(about)})


def write_pt2(exported: Exported, about: About, path: Path) -> None:
    """Write the whole graph as `torch.export` does, with the manifest in it."""
    with _quiet():
        graph = torch.export.export(
            exported.whole, (exported.raw[:2],), dynamic_shapes=exported.sizes
        )
        _check(exported, "pt2", graph.module())
        extra = {MANIFEST: json.dumps(about)}
        torch.export.save(graph, path, extra_files=extra)


def write_onnx(exported: Exported, about: About, path: Path) -> None:
    """Write the whole graph as ONNX, with the manifest in its metadata."""
    with require_extra("onnx", "format onnx"):
        import onnx  # noqa: F401 - torch needs it
        import onnxscript  # noqa: F401 - likewise
        from onnxruntime import InferenceSession
    with _quiet():
        program = torch.onnx.export(
            exported.whole,
            (exported.raw[:2],),
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=exported.sizes,
            dynamo=True,
            verbose=False,
        )
    assert program is not None  # with dynamo
    program.model.metadata_props[MANIFEST] = json.dumps(about)
    program.save(path, external_data=False)
    session = InferenceSession(path)

    def run(raw: torch.Tensor) -> torch.Tensor:
        (logits,) = session.run([OUTPUT], {INPUT: raw.numpy()})
        return torch.from_numpy(logits)

    _check(exported, "onnx", run)


def write_hub(exported: Exported, about: About, folder: Path) -> None:
    """Write a folder for Hugging Face's hub: a card, weights, and the whole graph."""
    folder.mkdir(exist_ok=True)
    write_safetensors(exported, about, folder / "model.safetensors")
    write_onnx(exported, about, folder / "model.onnx")
    _add_card(about, folder)


def write_encoder(exported: Exported, about: About, folder: Path) -> None:
    """Write a folder that `from_pretrained` opens, with a card."""
    write_transformers(exported, folder)
    _add_card(about, folder)


def _add_card(about: About, folder: Path) -> None:
    (folder / "README.md").write_text(card(about), encoding="utf-8")
    files = sorted(path for path in folder.iterdir() if path.name != MANIFEST)
    write_manifest(about, folder / MANIFEST, files)


WRITERS: Final[Mapping[str, Callable[[Exported, About, Path], None]]] = {
    "pt": write_pt,
    "safetensors": write_safetensors,
    "onnx": write_onnx,
    "pt2": write_pt2,
    "transformers": write_encoder,
    "hub": write_hub,
}


def _check(
    exported: Exported, form: str, run: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Compare a graph with the learner, on batches of other sizes than its example.

    Raises:
        ConfigError: the graph gives other logits.
    """
    expected = exported.logits[: len(exported.raw)][:, list(exported.rows)]
    for count in (len(exported.raw), 1):
        logits = run(exported.raw[:count])
        if not torch.allclose(logits, expected[:count], 1e-4, 1e-4):
            other = "another, as the graph gives other logits than the learner here"
            raise config_error("format", form, other)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's warnings about itself, about which a user can do nothing."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
