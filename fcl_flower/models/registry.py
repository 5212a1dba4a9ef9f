"""All models by name, and what suits them: known before torch is loaded."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from fcl_flower.config.parsing import Params
from fcl_flower.core.errors import ContractError, config_error
from fcl_flower.core.registry import Registry
from fcl_flower.models.pretrained import EncoderParams

if TYPE_CHECKING:
    from torch import nn

TEXT = (-1,)
"""The input shape of a model for text: token ids, as many as there are."""

TABULAR = (0,)
"""That of a model for tabular data of any number of columns."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """How a model is made, and what suits it.

    Attributes:
        body: returns an `nn.Module` from ``(batch, *input_shape)`` to
            (batch, features); itself or as ``module:name``, imported when it is
            called. Its arguments are the table of word vectors where ``input_shape``
            is `TEXT` and there is no encoder, the number of columns where it is
            `TABULAR`, and after them the ``params`` where these have any field.
        input_shape: shape of one input: (C, H, W) of an image, (C, T) of a series of
            T steps, (columns,) of a row, `TEXT` or `TABULAR`.
        features: width of what the body returns; 0 where its ``features`` say it.
        batch_size: examples in a training step, where the user gives none.
        learning_rate: Adam's rate at the start of a task, likewise.
        summary: one line for people.
        params: the parameter model of the family.
        encoder: ``whole``, a pre-trained encoder that is trained on, ``enhanced``, a
            frozen one with Enhancers, ``lora``, one with LoRA, or ``frozen``, one
            alone; empty for a network that is made from nothing.
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
        """One of ``images``, ``time-series``, ``tabular`` and ``text``."""
        if self.input_shape == TEXT:
            return "text"
        return ("tabular", "time-series", "images")[len(self.input_shape) - 1]

    @property
    def is_ours(self) -> bool:
        """Whether the network is one of this package."""
        return isinstance(self.body, str) and self.body.startswith("fcl_flower.")


def from_module(
    module: "nn.Module | Callable[[], nn.Module]",
    input_shape: tuple[int, ...],
    *,
    batch_size: int = 32,
    learning_rate: float = 1e-3,
) -> ModelEntry:
    """Make an entry of a user's own module; its features are counted by a run on zeros.

    Args:
        module: from ``(batch, *input_shape)`` to (batch, features); or a callable
        without
            arguments that makes one, whose initial weights then follow from the run's
            seed. Of a module itself every client starts from a copy.
        input_shape: (C, H, W) of images, (C, T) of series, (columns,) of tables.
        batch_size: examples in a training step, where the user gives none.
        learning_rate: Adam's rate at the start of a task, likewise.

    Raises:
        ConfigError: the shape is no such shape.
        ContractError: ``module`` made no module, cannot take such inputs, or does not
            return features.
    """
    import torch  # here alone, since it takes seconds
    from torch import nn

    from fcl_flower.models.trial import try_body

    if not 1 <= len(input_shape) <= 3 or min(input_shape) < 1:
        raise config_error(
            "input_shape", input_shape, "(C, H, W), (C, T) or (columns,)"
        )
    make = (lambda: deepcopy(module)) if isinstance(module, nn.Module) else module
    with torch.random.fork_rng(devices=[]):
        body: object = make()  # type: ignore[no-untyped-call]
        if not isinstance(body, nn.Module):
            raise ContractError(
                f"{module!r} made a {type(body).__name__}, no nn.Module"
            )
        features = try_body(body, input_shape).features
    return ModelEntry(
        make,
        input_shape,
        features,
        batch_size,
        learning_rate,
        f"{type(body).__name__}, the user's own",
    )


class LeNetParams(Params):
    """Settings of `LeNet`."""

    width: float = Field(1.0, gt=0)
    """Factor of the numbers of channels and neurons; 1 for those of the paper."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Fraction of the neurons of each fully connected layer that a training step leaves
    out, at least 0 and below 1."""


class PatchFiltersParams(Params):
    """Settings of the fixed filters."""

    filters: int = Field(100, ge=1)
    """Filters; each gives two features a part of the image."""
    patch: int = Field(6, ge=2, le=16)
    """Pixels a side of a patch."""
    grid: int = Field(2, ge=1, le=8)
    """Parts a side of the image, over each of which answers are averaged."""


class EfficientNetLiteParams(Params):
    """Settings of the pre-trained EfficientNet-Lite."""

    image_size: int = Field(112, ge=32)
    """Pixels a side to which it enlarges images: with more it is slower and, up to the
    224 of its training, sees more."""


class FrozenParams(EncoderParams):
    """Settings of the models whose encoder is all frozen; Enhancers have none."""

    pooled_blocks: int = Field(2, ge=1)
    """From how many of the blocks, the last ones, the features are taken: the mean over
    tokens of each, side by side."""


class LoraParams(EncoderParams):
    """Settings of a frozen encoder with LoRA."""

    num_blocks: int = Field(0, ge=0)
    """How many of the blocks, the last ones, have layers that learn; 0 for all."""
    rank: int = Field(2, ge=1)
    """Rank of what a linear layer learns, at least 1."""
    layers: Literal["all", "attention"] = "all"
    """Which linear layers of a block learn: all, or those of queries and values."""


class DisentangledParams(EncoderParams):
    """Settings of an encoder of texts with two spaces on top."""

    max_tasks: int = Field(50, ge=1)
    """Tasks that can be told apart by the specific space, at most."""


_HERE = "fcl_flower.models"

_MODELS = {
    "small": ModelEntry(
        f"{_HERE}.convolutional:SmallNet",
        (1, 8, 8),
        64,
        20,
        1e-3,
        "two convolutions for 8x8 digits",
    ),
    "grey-cnn": ModelEntry(
        f"{_HERE}.convolutional:GreyCnn",
        (1, 28, 28),
        64,
        32,
        1e-3,
        "two convolutions for 28x28 grey images",
    ),
    "lenet": ModelEntry(
        f"{_HERE}.convolutional:lenet",
        (3, 32, 32),
        0,
        50,
        1e-3 / 3,
        "the LeNet of FedWeIT",
        LeNetParams,
    ),
    "kim-cnn": ModelEntry(
        f"{_HERE}.words:KimCnn",
        TEXT,
        384,
        16,
        1e-3,
        "Kim's network for text: filters of 3, 4 and 5 words over fixed word vectors",
    ),
    "har-cnn": ModelEntry(
        f"{_HERE}.convolutional:HarCnn",
        (9, 128),
        64,
        32,
        1e-3,
        "two convolutions over time for nine channels of 128 steps",
    ),
    "mlp": ModelEntry(
        f"{_HERE}.convolutional:Mlp",
        TABULAR,
        128,
        32,
        1e-3,
        "two hidden layers for tabular data",
    ),
    "efficientnet": ModelEntry(
        f"{_HERE}.convolutional:EfficientNet",
        (3, 32, 32),
        256,
        50,
        1e-3,
        "a small EfficientNet, with group normalisation",
    ),
    "efficientnet-lite0": ModelEntry(
        f"{_HERE}.frozen_images:EfficientNetLite",
        (3, 32, 32),
        1280,
        50,
        1e-3,
        "EfficientNet-Lite0, pre-trained on ImageNet and frozen: only heads learn",
        EfficientNetLiteParams,
    ),
    "patch-filters": ModelEntry(
        f"{_HERE}.frozen_images:PatchFilters",
        (3, 32, 32),
        0,
        50,
        1e-3,
        "fixed filters of patches of photographs: only heads learn",
        PatchFiltersParams,
    ),
    "resnet18": ModelEntry(
        f"{_HERE}.convolutional:ResNet18",
        (3, 32, 32),
        512,
        50,
        1e-3,
        "ResNet-18 for 32x32 images",
    ),
    "transformer": ModelEntry(
        f"{_HERE}.encoder:Transformer",
        TEXT,
        0,
        16,
        1e-4,
        "a pre-trained encoder of texts, trained as a whole",
        EncoderParams,
        encoder="whole",
    ),
    "disentangled-transformer": ModelEntry(
        f"{_HERE}.encoder:DisentangledTransformer",
        TEXT,
        0,
        16,
        1e-4,
        "an encoder of texts with a space for all tasks and one for each, trained",
        DisentangledParams,
        encoder="whole",
    ),
    "frozen-transformer": ModelEntry(
        f"{_HERE}.encoder:FrozenTransformer",
        TEXT,
        0,
        16,
        1e-3,
        "the same frozen, with nothing to train but the head",
        FrozenParams,
        encoder="frozen",
    ),
    "enhanced-transformer": ModelEntry(
        f"{_HERE}.adapters:EnhancedTransformer",
        TEXT,
        0,
        16,
        3e-3,
        "the same frozen, with Enhancers that are trained instead",
        EncoderParams,
        encoder="enhanced",
    ),
    "lora-transformer": ModelEntry(
        f"{_HERE}.adapters:LoraTransformer",
        TEXT,
        0,
        16,
        3e-3,
        "the same frozen, with changes of low rank (LoRA) in its linear layers",
        LoraParams,
        encoder="lora",
    ),
    "vit": ModelEntry(
        f"{_HERE}.encoder:Transformer",
        (3, 32, 32),
        0,
        32,
        1e-4,
        "a pre-trained encoder of images, trained as a whole",
        EncoderParams,
        encoder="whole",
    ),
    "frozen-vit": ModelEntry(
        f"{_HERE}.encoder:FrozenTransformer",
        (3, 32, 32),
        0,
        32,
        1e-3,
        "the same frozen, with nothing to train but the head",
        FrozenParams,
        encoder="frozen",
    ),
    "enhanced-vit": ModelEntry(
        f"{_HERE}.adapters:EnhancedTransformer",
        (3, 32, 32),
        0,
        32,
        3e-3,
        "the same frozen, with Enhancers that are trained instead",
        EncoderParams,
        encoder="enhanced",
    ),
    "lora-vit": ModelEntry(
        f"{_HERE}.adapters:LoraTransformer",
        (3, 32, 32),
        0,
        32,
        3e-3,
        "the same frozen, with changes of low rank (LoRA) in its linear layers",
        LoraParams,
        encoder="lora",
    ),
}


MODELS = Registry("model", "fcl_flower.models", ModelEntry, _MODELS)
"""All models. Another package declares a `ModelEntry` under ``fcl_flower.models``;
``with MODELS.registered(name, from_module(...))`` adds one to this process."""


def model_entry(name: str) -> ModelEntry:
    """Look up the entry of a model.

    Raises:
        ConfigError: the name is unknown.
    """
    return MODELS[name]


def check_modality(name: str, modality: str) -> None:
    """Refuse a model that does not take data of a modality.

    Raises:
        ConfigError: the name is unknown, or the model takes something else.
    """
    if model_entry(name).modality != modality:
        fitting = [n for n, entry in MODELS.items() if entry.modality == modality]
        raise config_error("model", name, f"one for {modality}: {', '.join(fitting)}")
