"""A trained network as files that need none of this project to be opened."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from fcl_flower.core.errors import extra
from fcl_flower.exports.trained import Trained


def write_pt(found: Trained, path: Path) -> None:
    """Write the state as PyTorch does; ``torch.load`` opens it with weights only."""
    torch.save(found.network.state_dict(), path)


def write_safetensors(found: Trained, path: Path) -> None:
    """Write the state as safetensors, with what it is in the header.

    Raises:
        ConfigError: safetensors is not installed.
    """
    with extra("onnx", "format safetensors"):
        from safetensors.torch import save_file
    tensors = {n: t.contiguous() for n, t in found.network.state_dict().items()}
    save_file(tensors, path, found.about)


def write_onnx(found: Trained, path: Path) -> None:
    """Write the whole network: ``input`` (batch, *input_shape) to ``logits``.

    The batch may have any size.

    Raises:
        ConfigError: onnx or onnxscript is not installed.
    """
    with extra("onnx", "format onnx"):
        import onnx  # noqa: F401 - torch needs it
        import onnxscript  # noqa: F401 - likewise
    with warnings.catch_warnings(), _quiet(logging.getLogger("torch.onnx")):
        # Of torch about itself: nothing that a user could mend.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            found.network,
            (found.test.x[:2],),
            path,
            input_names=["input"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            external_data=False,
            verbose=False,
        )


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Let a logger and those below it tell of errors alone while the context lasts."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
