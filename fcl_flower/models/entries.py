"""All models by name, and what suits them: known before torch is loaded."""

from fcl_flower.core.errors import refuse
from fcl_flower.core.registry import Registry
from fcl_flower.models.entry import TABULAR, TEXT, ModelEntry
from fcl_flower.models.params import (
    EfficientNetLiteParams,
    LeNetParams,
    PatchFiltersParams,
)
from fcl_flower.models.transformer.params import (
    DisentangledParams,
    FrozenParams,
    LoraParams,
)
from fcl_flower.models.transformer.pretrained import EncoderParams

_HERE = "fcl_flower.models"

_MODELS = {
    "small": ModelEntry(
        f"{_HERE}.convolutional.digits_cnn:SmallNet",
        (1, 8, 8),
        64,
        20,
        1e-3,
        "two convolutions for 8x8 digits",
    ),
    "grey-cnn": ModelEntry(
        f"{_HERE}.convolutional.grey_cnn:GreyCnn",
        (1, 28, 28),
        64,
        32,
        1e-3,
        "two convolutions for 28x28 grey images",
    ),
    "lenet": ModelEntry(
        f"{_HERE}.convolutional.lenet:lenet",
        (3, 32, 32),
        0,
        50,
        1e-3 / 3,
        "the LeNet of FedWeIT",
        LeNetParams,
    ),
    "kim-cnn": ModelEntry(
        f"{_HERE}.convolutional.kim_cnn:KimCnn",
        TEXT,
        384,
        16,
        1e-3,
        "Kim's network for text: filters of 3, 4 and 5 words over fixed word vectors",
    ),
    "har-cnn": ModelEntry(
        f"{_HERE}.convolutional.har_cnn:HarCnn",
        (9, 128),
        64,
        32,
        1e-3,
        "two convolutions over time for nine channels of 128 steps",
    ),
    "mlp": ModelEntry(
        f"{_HERE}.mlp:Mlp",
        TABULAR,
        128,
        32,
        1e-3,
        "two hidden layers for tabular data",
    ),
    "efficientnet": ModelEntry(
        f"{_HERE}.convolutional.efficientnet:EfficientNet",
        (3, 32, 32),
        256,
        50,
        1e-3,
        "a small EfficientNet, with group normalisation",
    ),
    "efficientnet-lite0": ModelEntry(
        f"{_HERE}.convolutional.efficientnet_lite:EfficientNetLite",
        (3, 32, 32),
        1280,
        50,
        1e-3,
        "EfficientNet-Lite0, pre-trained on ImageNet and frozen: only heads learn",
        EfficientNetLiteParams,
    ),
    "patch-filters": ModelEntry(
        f"{_HERE}.convolutional.patch_filters:PatchFilters",
        (3, 32, 32),
        0,
        50,
        1e-3,
        "fixed filters of patches of photographs: only heads learn",
        PatchFiltersParams,
    ),
    "resnet18": ModelEntry(
        f"{_HERE}.convolutional.resnet:ResNet18",
        (3, 32, 32),
        512,
        50,
        1e-3,
        "ResNet-18 for 32x32 images",
    ),
    "transformer": ModelEntry(
        f"{_HERE}.transformer.encoder:Transformer",
        TEXT,
        0,
        16,
        1e-4,
        "a pre-trained encoder of texts, trained as a whole",
        EncoderParams,
        encoder="whole",
    ),
    "disentangled-transformer": ModelEntry(
        f"{_HERE}.transformer.disentangled:DisentangledTransformer",
        TEXT,
        0,
        16,
        1e-4,
        "an encoder of texts with a space for all tasks and one for each, trained",
        DisentangledParams,
        encoder="whole",
    ),
    "frozen-transformer": ModelEntry(
        f"{_HERE}.transformer.frozen:FrozenTransformer",
        TEXT,
        0,
        16,
        1e-3,
        "the same frozen, with nothing to train but the head",
        FrozenParams,
        encoder="frozen",
    ),
    "enhanced-transformer": ModelEntry(
        f"{_HERE}.transformer.enhancers:EnhancedTransformer",
        TEXT,
        0,
        16,
        3e-3,
        "the same frozen, with Enhancers that are trained instead",
        EncoderParams,
        encoder="enhanced",
    ),
    "lora-transformer": ModelEntry(
        f"{_HERE}.transformer.lora:LoraTransformer",
        TEXT,
        0,
        16,
        3e-3,
        "the same frozen, with changes of low rank (LoRA) in its linear layers",
        LoraParams,
        encoder="lora",
    ),
    "vit": ModelEntry(
        f"{_HERE}.transformer.encoder:Transformer",
        (3, 32, 32),
        0,
        32,
        1e-4,
        "a pre-trained encoder of images, trained as a whole",
        EncoderParams,
        encoder="whole",
    ),
    "frozen-vit": ModelEntry(
        f"{_HERE}.transformer.frozen:FrozenTransformer",
        (3, 32, 32),
        0,
        32,
        1e-3,
        "the same frozen, with nothing to train but the head",
        FrozenParams,
        encoder="frozen",
    ),
    "enhanced-vit": ModelEntry(
        f"{_HERE}.transformer.enhancers:EnhancedTransformer",
        (3, 32, 32),
        0,
        32,
        3e-3,
        "the same frozen, with Enhancers that are trained instead",
        EncoderParams,
        encoder="enhanced",
    ),
    "lora-vit": ModelEntry(
        f"{_HERE}.transformer.lora:LoraTransformer",
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
    """Return what is known of a model.

    Raises:
        ConfigError: the name is unknown.
    """
    return MODELS[name]


def check_modality(name: str, modality: str) -> None:
    """Refuse a model that does not take the data.

    Args:
        name: of the model.
        modality: of the data: ``images``, ``time-series``, ``tabular`` or ``text``.

    Raises:
        ConfigError: the name is unknown, or the model takes something else.
    """
    if model_entry(name).modality != modality:
        fitting = [n for n, entry in MODELS.items() if entry.modality == modality]
        raise refuse("model", name, f"one for {modality}: {', '.join(fitting)}")
