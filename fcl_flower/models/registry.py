"""The table of models: one file with a body and one line here make a new one."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from fcl_flower.config.sections import Section
from fcl_flower.core.errors import ConfigError, refuse
from fcl_flower.core.seeds import derive
from fcl_flower.core.types import Array
from fcl_flower.models.multi_head import MultiHeadModel
from fcl_flower.models.transformer.pretrained import EncoderParams

__all__ = [
    "FEATURES",
    "MODELS",
    "TEXT",
    "ModelEntry",
    "MultiHeadModel",
    "check_kind",
    "create_model",
    "model_entry",
]

TEXT = (-1,)
"""The input shape of a model for text: numbers of words, as many as there are."""

FEATURES = (0,)
"""That of a model for plain numbers, before it is known how many there are."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """What is known of a model before its module is imported.

    Attributes:
        body: ``module:callable`` that returns an `nn.Module` from
            ``(batch, *input_shape)`` to (batch, features). It takes no argument; but
            for text the table of word vectors, for plain numbers how many there are,
            and `EncoderParams` where ``encoder`` says so.
        input_shape: shape of one input: (C, H, W) of an image, (C, T) of a series of
            T steps, `TEXT` or `FEATURES`.
        features: width of what the body returns; 0 where the encoder says it.
        batch_size: examples in a training step, where the user gives none.
        learning_rate: Adam's rate at the start of a task, likewise.
        summary: one line for people.
        encoder: ``whole``, a pre-trained encoder that is trained on, or ``enhanced``,
            a frozen one with Enhancers; empty for a network that is made from nothing.
        params: the parameters of its family.
    """

    body: str
    input_shape: tuple[int, ...]
    features: int
    batch_size: int
    learning_rate: float
    summary: str
    encoder: str = ""
    params: type[Section] = Section

    @property
    def kind(self) -> str:
        """Return what it takes: ``text``, ``features``, ``series`` or ``images``."""
        if self.input_shape == TEXT:
            return "text"
        return ("features", "series", "images")[len(self.input_shape) - 1]


_HERE = "fcl_flower.models"

MODELS: dict[str, ModelEntry] = {
    "small": ModelEntry(
        f"{_HERE}.convolutional.digits_cnn:SmallNet",
        (1, 8, 8),
        64,
        20,
        1e-3,
        "two convolutions for 8x8 digits",
    ),
    "lenet": ModelEntry(
        f"{_HERE}.convolutional.lenet:LeNet",
        (3, 32, 32),
        500,
        50,
        1e-3 / 3,
        "the LeNet of FedWeIT",
    ),
    "lenet-small": ModelEntry(
        f"{_HERE}.convolutional.lenet:small_lenet",
        (3, 32, 32),
        400,
        50,
        1e-3 / 3,
        "a LeNet with 20 % fewer channels and neurons",
    ),
    "lenet-large": ModelEntry(
        f"{_HERE}.convolutional.lenet:large_lenet",
        (3, 32, 32),
        600,
        50,
        1e-3 / 3,
        "a LeNet with 20 % more channels and neurons",
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
        FEATURES,
        128,
        32,
        1e-3,
        "two hidden layers for plain numbers",
    ),
    "efficientnet": ModelEntry(
        f"{_HERE}.convolutional.efficientnet:EfficientNet",
        (3, 32, 32),
        256,
        50,
        1e-3,
        "a small EfficientNet, with group normalisation",
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
        encoder="whole",
        params=EncoderParams,
    ),
    "enhanced-transformer": ModelEntry(
        f"{_HERE}.transformer.enhancers:EnhancedTransformer",
        TEXT,
        0,
        16,
        3e-3,
        "the same frozen, with Enhancers that learn in its stead",
        encoder="enhanced",
        params=EncoderParams,
    ),
    "vit": ModelEntry(
        f"{_HERE}.transformer.encoder:Transformer",
        (3, 32, 32),
        0,
        32,
        1e-4,
        "a pre-trained encoder of images, trained as a whole",
        encoder="whole",
        params=EncoderParams,
    ),
    "enhanced-vit": ModelEntry(
        f"{_HERE}.transformer.enhancers:EnhancedTransformer",
        (3, 32, 32),
        0,
        32,
        3e-3,
        "the same frozen, with Enhancers that learn in its stead",
        encoder="enhanced",
        params=EncoderParams,
    ),
}


def model_entry(name: str) -> ModelEntry:
    """Return what is known of a model.

    Raises:
        ConfigError: the name is unknown.
    """
    if name not in MODELS:
        known = ", ".join(sorted(MODELS))
        raise ConfigError(f"model: got {name!r}, expected one of {known}.")
    return MODELS[name]


def check_kind(name: str, kind: str) -> None:
    """Refuse a model that does not take the data.

    Args:
        name: of the model.
        kind: of the data: ``text``, ``features``, ``series`` or ``images``.

    Raises:
        ConfigError: the name is unknown, or the model takes something else.
    """
    if model_entry(name).kind != kind:
        fitting = [known for known, entry in MODELS.items() if entry.kind == kind]
        raise ConfigError(
            f"model: got {name!r} for {kind}, expected one of {', '.join(fitting)}."
        )


def create_model(
    name: str,
    *,
    tasks: int,
    classes: int,
    single_head: bool,
    seed: int,
    params: Section | None = None,
    table: Array | None = None,
    num_features: int = 0,
) -> MultiHeadModel:
    """Return a freshly initialised model; the same arguments give the same weights.

    The body's weights depend on ``name`` and ``seed`` only, so that every client
    starts from the same body however many heads it has. Torch's global generator
    is left as it was.

    Args:
        name: a key of `MODELS`.
        tasks: number of tasks, at least 1.
        classes: logits per head: the classes of one task, or all labels of the
            scenario with a single head.
        single_head: one head serves every task.
        seed: the run's seed.
        table: word vectors, shape (words + 1, D), where the data are text.
        params: of the model's family; None for the defaults.
        num_features: numbers in a sample of tabular data; 0 elsewhere.

    Raises:
        ConfigError: the name is unknown, the model does not suit the data, or there is
            no such encoder.
    """
    entry = model_entry(name)
    arguments: list[Any] = []
    if entry.encoder:
        if not isinstance(params, EncoderParams) or not params.encoder:
            raise refuse("model.encoder", "", f"one for model {name}")
        arguments = [params]
    elif table is not None:
        check_kind(name, "text")
        arguments = [table]
    elif num_features:
        check_kind(name, "features")
        arguments = [num_features]
    elif entry.kind in ("text", "features"):
        check_kind(name, "images")
    module, _, attribute = entry.body.partition(":")
    make = getattr(import_module(module), attribute)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "model"))
        body = make(*arguments)
        return MultiHeadModel(
            body,
            features=entry.features or body.features,
            input_shape=(num_features,) if num_features else entry.input_shape,
            tasks=tasks,
            classes=classes,
            single_head=single_head,
        )
