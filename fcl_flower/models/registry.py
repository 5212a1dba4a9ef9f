"""The registry of models and their defaults, which does not load torch."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from fcl_flower.config.parsing import Params
from fcl_flower.core.errors import config_error
from fcl_flower.core.registry import Registry
from fcl_flower.models.pretrained import EncoderParams

if TYPE_CHECKING:
    from torch import nn

TEXT = (-1,)
"""The input shape of a model for texts with any number of token ids."""

INSTRUCTIONS = (-2,)
"""The input shape of a language model for any number of tokens and their answers."""

TABULAR = (0,)
"""The input shape of a model for tabular data with any number of columns."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """The function that makes a model's body, and the model's defaults.

    Attributes:
        body: callable that returns an `nn.Module` from ``(batch, *input_shape)`` to
            (batch, features); or its name ``module:name``, imported when it is called.
            Its arguments are the table of word vectors if ``input_shape`` is `TEXT` and
            there is no encoder, or the number of columns if it is `TABULAR`; then
            ``params`` if these have any field.
        input_shape: shape of one input: (C, H, W) of an image, (C, T) of a series of T
            steps, (columns,) of a row, `TEXT` or `TABULAR`.
        features: number of the body's features; 0 if its attribute ``features`` has it.
        batch_size: default number of examples in a training step.
        learning_rate: default of Adam's rate at the start of a task.
        summary: one line for people.
        params: parameter model of the family.
        encoder: kind of pre-trained encoder: ``whole`` is trained as a whole. The
            others are frozen: ``enhanced`` with Enhancers, ``lora`` with LoRA,
            ``prompted`` with prompts, ``frozen`` without anything. Empty for a network
            without a pre-trained encoder.
    """

    body: "str | Callable[..., nn.Module]"
    input_shape: tuple[int, ...]
    features: int
    batch_size: int
    learning_rate: float
    summary: str
    params: type[Params] = Params
    encoder: str = ""

    @property
    def modality(self) -> str:
        """The modality, such as ``images``; see ``modality`` of the data sets."""
        if self.input_shape == TEXT:
            return "text"
        if self.input_shape == INSTRUCTIONS:
            return "instructions"
        return ("tabular", "time-series", "images")[len(self.input_shape) - 1]


class LeNetParams(Params):
    """The settings of `LeNet`."""

    width: float = Field(1.0, gt=0)
    """Factor of the numbers of channels and neurons; 1 for the paper's numbers."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Fraction of the neurons of each fully connected layer that a training step leaves
    out, at least 0 and below 1."""


class PatchFiltersParams(Params):
    """The settings of the fixed filters."""

    filters: int = Field(100, ge=1)
    """Number of filters; each gives two features for each part of the image."""
    patch: int = Field(6, ge=2, le=16)
    """Pixels a side of a patch."""
    grid: int = Field(2, ge=1, le=8)
    """Parts a side of the image; a filter's responses are averaged over each part."""


class EfficientNetLiteParams(Params):
    """The settings of the pre-trained EfficientNet-Lite."""

    image_size: int = Field(112, ge=32)
    """Pixels a side to which the network scales images. With more pixels it is slower
    and, up to the 224 of its training, sees more."""


class FrozenParams(EncoderParams):
    """The settings of the models whose encoder is frozen, without added modules."""

    pooled_blocks: int = Field(2, ge=1)
    """Number of the last blocks whose means over tokens, side by side, are the
    features."""


class EnhancedParams(EncoderParams):
    """The settings of a frozen encoder with Enhancers."""

    bottleneck: int = Field(48, ge=1)
    """Width of an Enhancer."""
    placement: Literal["both", "attention", "feed-forward"] = "both"
    """Places of Enhancers in a block: behind the attention, behind the feed-forward
    network, or both."""
    num_blocks: int = Field(0, ge=0)
    """Number of the encoder's last blocks that have Enhancers; 0 for all."""


class LoraParams(EncoderParams):
    """The settings of a frozen encoder with LoRA."""

    num_blocks: int = Field(0, ge=0)
    """Number of the encoder's last blocks whose layers learn; 0 for all."""
    rank: int = Field(2, ge=1)
    """Rank of a linear layer's learned change, at least 1."""
    layers: Literal["all", "attention", "keys-values"] = "all"
    """Linear layers of a block that learn: all; those of queries and values
    (``attention``; timm has one layer for queries, keys and values); or those of keys
    and values."""


class LanguageParams(LoraParams):
    """The settings of a frozen language model with LoRA."""

    rank: int = Field(8, ge=1)
    """Rank of a linear layer's learned change, at least 1."""
    layers: Literal["all", "attention", "keys-values"] = "attention"
    """Linear layers of a block that learn: all, those of queries and values
    (``attention``), or those of keys and values."""
    max_tokens: int = Field(256, ge=3)
    """Largest number of tokens of a prompt with its answer; more are refused."""
    checkpoints: bool = False
    """Compute the inputs of blocks again for their gradients (gradient checkpointing):
    a step takes a third more time, and less memory."""

    @model_validator(mode="after")
    def _of_texts(self) -> Self:
        for key, default in (("pooling", "mean"), ("image_size", 0)):
            if getattr(self, key) != default:
                raise ValueError(f"{key}: a language model has none, leave it out")
        return self


class PromptParams(EncoderParams):
    """The settings of a frozen encoder with prompts."""

    num_blocks: int = Field(5, ge=1)
    """Number of the encoder's first blocks that have prompts: 5 of 12 in the paper. An
    encoder with fewer blocks has prompts in all."""
    components: int = Field(10, ge=1)
    """Components of a block's pool; in `coda-prompt` those that a task adds. The paper
    has 100 for ten tasks."""
    prompt_length: int = Field(8, ge=2, multiple_of=2)
    """Tokens of a prompt, an even number. The first half stands in front of the keys,
    the second half in front of the values."""


class DisentangledParams(EncoderParams):
    """The settings of an encoder of texts with two spaces on top."""

    max_tasks: int = Field(50, ge=1)
    """Largest number of tasks that the task-specific space can tell apart."""


_RGB = (3, 32, 32)

_NETWORKS: dict[str, tuple[str, tuple[int, ...], int, int, float, type[Params]]] = {
    "small": ("convolutional:SmallNet", (1, 8, 8), 64, 20, 1e-3, Params),
    "grey-cnn": ("convolutional:GreyCnn", (1, 28, 28), 64, 32, 1e-3, Params),
    "lenet": ("convolutional:LeNet", _RGB, 0, 50, 1e-3 / 3, LeNetParams),
    "kim-cnn": ("words:KimCnn", TEXT, 384, 16, 1e-3, Params),
    "har-cnn": ("convolutional:HarCnn", (9, 128), 64, 32, 1e-3, Params),
    "mlp": ("convolutional:Mlp", TABULAR, 128, 32, 1e-3, Params),
    "efficientnet": ("convolutional:EfficientNet", _RGB, 256, 50, 1e-3, Params),
    "efficientnet-lite0": (
        "frozen_images:EfficientNetLite",
        _RGB,
        1280,
        50,
        1e-3,
        EfficientNetLiteParams,
    ),
    "patch-filters": (
        "frozen_images:PatchFilters",
        _RGB,
        0,
        50,
        1e-3,
        PatchFiltersParams,
    ),
    "resnet18": ("convolutional:ResNet18", _RGB, 512, 50, 1e-3, Params),
}
"""The first five fields of a `ModelEntry`, and its ``params``, by name."""

_SUMMARIES = {
    "small": "two convolutions for 8x8 digits",
    "grey-cnn": "two convolutions for 28x28 grey images",
    "lenet": "the LeNet of FedWeIT",
    "kim-cnn": "Kim's network for text: filters of 3, 4 and 5 words over fixed word "
    "vectors",
    "har-cnn": "two convolutions over time for nine channels of 128 steps",
    "mlp": "two hidden layers for tabular data",
    "efficientnet": "a small EfficientNet, with group normalisation",
    "efficientnet-lite0": "EfficientNet-Lite0, pre-trained on ImageNet and frozen: "
    "only heads learn",
    "patch-filters": "fixed filters of patches of photographs: only heads learn",
    "resnet18": "ResNet-18 for 32x32 images",
}

_ENCODERS: dict[str, tuple[str, float, type[Params], str]] = {
    "": ("encoder:Transformer", 1e-4, EncoderParams, "whole"),
    "disentangled-": (
        "encoder:DisentangledTransformer",
        1e-4,
        DisentangledParams,
        "whole",
    ),
    "frozen-": ("encoder:FrozenTransformer", 1e-3, FrozenParams, "frozen"),
    "enhanced-": ("adapters:EnhancedTransformer", 3e-3, EnhancedParams, "enhanced"),
    "lora-": ("adapters:LoraTransformer", 3e-3, LoraParams, "lora"),
    "prompted-": ("prompts:PromptedTransformer", 1e-2, PromptParams, "prompted"),
}
"""The body, rate, params and kind of a model with a pre-trained encoder, by prefix."""

_ENCODER_SUMMARIES = {
    "": "a pre-trained encoder of {}, trained as a whole",
    "disentangled-": "an encoder of {} with a space for all tasks and one for each, "
    "trained",
    "frozen-": "the same frozen, with nothing to train but the head",
    "enhanced-": "the same frozen, with Enhancers that are trained instead",
    "lora-": "the same frozen, with changes of low rank (LoRA) in its linear layers",
    "prompted-": "the same frozen, with prompts that its first blocks attend to",
}


def _built_in() -> Iterator[tuple[str, ModelEntry]]:
    home = "fcl_flower.models"
    for name, (body, shape, width, size, rate, params) in _NETWORKS.items():
        summary = _SUMMARIES[name]
        entry = ModelEntry(f"{home}.{body}", shape, width, size, rate, summary, params)
        yield name, entry
    for name, shape, size, inputs in (
        ("transformer", TEXT, 16, "texts"),
        ("vit", _RGB, 32, "images"),
    ):
        for prefix, (body, rate, params, kind) in _ENCODERS.items():
            if prefix != "disentangled-" or inputs == "texts":
                summary = _ENCODER_SUMMARIES[prefix].format(inputs)
                fields = f"{home}.{body}", shape, 0, size, rate, summary, params, kind
                yield f"{prefix}{name}", ModelEntry(*fields)
    yield (
        "causal-lm",
        ModelEntry(
            f"{home}.language:LanguageModel",
            INSTRUCTIONS,
            0,
            8,
            1e-3,
            "a pre-trained language model, frozen, with LoRA: it learns instructions",
            LanguageParams,
            "lora",
        ),
    )


MODELS = Registry("model", "fcl_flower.models", ModelEntry, dict(_built_in()))
"""The registry of models.

Another package declares a `ModelEntry` under ``fcl_flower.models``. The context
``with MODELS.registered(name, from_module(...))`` adds a model to this process.
"""


def check_modality(name: str, modality: str) -> None:
    """Refuse a model that does not take data of a modality."""
    if MODELS[name].modality != modality:
        fitting = [n for n, entry in MODELS.items() if entry.modality == modality]
        raise config_error("model", name, f"one for {modality}: {', '.join(fitting)}")
