"""The models by name: ours, those of installed packages, and the user's own."""

from importlib import import_module
from typing import Any

from fcl_flower.config.params import Params
from fcl_flower.core.errors import ContractError, refuse
from fcl_flower.core.registry import Registry
from fcl_flower.core.seeds import derive
from fcl_flower.core.types import Array
from fcl_flower.models.convolutional.efficientnet_lite import EfficientNetLiteParams
from fcl_flower.models.convolutional.lenet import LeNetParams
from fcl_flower.models.convolutional.patch_filters import PatchFiltersParams
from fcl_flower.models.entry import TABULAR, TEXT, ModelEntry, from_module
from fcl_flower.models.multi_head import MultiHeadModel
from fcl_flower.models.seeded import seeded
from fcl_flower.models.transformer.frozen import FrozenParams
from fcl_flower.models.transformer.lora import LoraParams
from fcl_flower.models.transformer.pretrained import EncoderParams

__all__ = [
    "MODELS",
    "TABULAR",
    "TEXT",
    "ModelEntry",
    "MultiHeadModel",
    "check_modality",
    "create_model",
    "from_module",
    "model_entry",
]

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


def create_model(
    name: str,
    *,
    tasks: int,
    classes: int,
    single_head: bool,
    seed: int,
    table: Array | None = None,
    columns: int = 0,
    params: Params | None = None,
) -> MultiHeadModel:
    """Return a freshly initialised model; the same arguments give the same weights.

    The body's weights depend on ``params`` and ``seed`` only, so that every client
    starts from the same body however many heads it has. Torch's global generator
    is left as it was.

    Args:
        name: one of `MODELS`.
        tasks: number of tasks, at least 1.
        classes: logits per head: the classes of one task, or all labels of the
            scenario with a single head.
        single_head: one head serves every task.
        seed: the run's seed.
        table: word vectors, shape (words + 1, D), where the data are text.
        columns: of tabular data; 0 elsewhere.
        params: settings of the model, of its entry's type; None for the defaults.

    Raises:
        ConfigError: the name is unknown, the model does not suit the data, or there is
            no such encoder.
        ContractError: ``params`` are those of another model.
    """
    entry = model_entry(name)
    params = entry.params() if params is None else params
    if type(params) is not entry.params:
        raise ContractError(
            f"model {name}: got {type(params).__name__}, expected "
            f"{entry.params.__name__}"
        )
    with seeded(derive(seed, "model")):
        body = _body(name, entry, table, columns, params)
        return MultiHeadModel(
            body,
            features=entry.features or body.features,
            input_shape=(columns,) if columns else entry.input_shape,
            tasks=tasks,
            classes=classes,
            single_head=single_head,
        )


def _body(
    name: str, entry: ModelEntry, table: Array | None, columns: int, params: Params
) -> Any:  # noqa: ANN401 - some have an attribute of their own, ``features``
    arguments: list[Any] = []
    if entry.encoder:
        pass
    elif table is not None:
        check_modality(name, "text")
        arguments.append(table)
    elif columns:
        check_modality(name, "tabular")
        if entry.input_shape == TABULAR:
            arguments.append(columns)
        elif entry.input_shape != (columns,):
            raise refuse("model", name, f"one for {columns} columns")
    elif entry.input_shape in (TEXT, TABULAR):
        check_modality(name, "images")
    if entry.params.model_fields:
        arguments.append(params)
    if not isinstance(entry.body, str):
        return entry.body(*arguments)
    module, _, attribute = entry.body.partition(":")
    return getattr(import_module(module), attribute)(*arguments)
