"""What is known of a model before it is made."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fcl_flower.config.params import Params
from fcl_flower.core.errors import ContractError, refuse

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
        """Return ``images``, ``time-series``, ``tabular`` or ``text``."""
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
    """Return a model whose body is a module of the user's own.

    How many features the body returns is found by running it on zeros.

    Args:
        module: from ``(batch, *input_shape)`` to (batch, features); or a callable
            without arguments that makes one, whose initial weights then follow from
            the run's seed. Of a module itself every client starts from a copy.
        input_shape: (C, H, W) of images, (C, T) of series, (columns,) of tables.
        batch_size: examples in a training step, where the user gives none.
        learning_rate: Adam's rate at the start of a task, likewise.

    Raises:
        ConfigError: the shape is no such shape.
        ContractError: what was made is no module, cannot take such inputs, or does not
            return features.
    """
    import torch  # here alone, since it takes seconds
    from torch import nn

    from fcl_flower.models.trial import try_body

    if not 1 <= len(input_shape) <= 3 or min(input_shape) < 1:
        raise refuse("input_shape", input_shape, "(C, H, W), (C, T) or (columns,)")
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
