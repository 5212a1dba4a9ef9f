"""A model by name, with a network of a user's own tried before anything is trained."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fcl_flower.config.parsing import Params
from fcl_flower.core.errors import ContractError, config_error
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Array
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.models.registry import (
    TABULAR,
    TEXT,
    ModelEntry,
    check_modality,
    model_entry,
)

_WORDS = 16
"""Words of the texts on which a network is tried."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's generators; give the processor's its state back afterwards.

    Where there is no accelerator the processor's is the only one, and is seeded itself:
    ``torch.manual_seed`` imports torch's compiler, which takes a second, and notes the
    stack of every call in case an accelerator appears.
    """
    with torch.random.fork_rng(devices=[]):
        if torch.accelerator.is_available():
            torch.manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)
        yield


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
    """Make a freshly initialised model; the same arguments give the same weights.

    The body's weights depend on ``params`` and ``seed`` alone, so that every client
    starts from the same body however many heads it has. Torch's global generator stays
    as it was.

    Args:
        name: one of `MODELS`.
        tasks: number of tasks, at least 1.
        classes: logits per head: the classes of one task, or all labels of the scenario
            with a single head.
        single_head: one head serves every task.
        seed: the run's seed.
        table: word vectors, shape (words + 1, D), where the data are text.
        columns: of tabular data; 0 elsewhere.
        params: settings of the model, of its entry's type; None for the defaults.

    Raises:
        ConfigError: the name is unknown, the model does not suit the data, or there is
            no such encoder.
        ContractError: ``params`` are those of another model, or a user's own network
            cannot be trained (`try_body`).
    """
    entry = model_entry(name)
    params = entry.params() if params is None else params
    if type(params) is not entry.params:
        raise ContractError(
            f"model {name}: got {type(params).__name__}, expected "
            f"{entry.params.__name__}"
        )
    ours = isinstance(entry.body, str) and entry.body.startswith("fcl_flower.")
    with seeded(derive(seed, "model")):
        body = _body(name, entry, table, columns, params)
        features = entry.features or body.features
        input_shape = (columns,) if columns else entry.input_shape
        smallest_batch = 1
        if not (ours or entry.encoder):
            found, smallest_batch = try_body(body, input_shape)
            if found != features:
                raise ContractError(
                    f"model {name}: got {found} features, expected {features}"
                )
            body.register_forward_pre_hook(_copied)
        return MultiHeadModel(
            body,
            features=features,
            input_shape=input_shape,
            smallest_batch=smallest_batch,
            tasks=tasks,
            classes=classes,
            single_head=single_head,
        )


def _copied(body: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Hand on copies: a network may change its input, which belongs to a cache."""
    return tuple(x.clone() if isinstance(x, Tensor) else x for x in inputs)


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
            raise config_error("model", name, f"one for {columns} columns")
    elif entry.input_shape in (TEXT, TABULAR):
        check_modality(name, "images")
    if entry.params.model_fields:
        arguments.append(params)
    if not isinstance(entry.body, str):
        return entry.body(*arguments)
    module, _, attribute = entry.body.partition(":")
    return getattr(import_module(module), attribute)(*arguments)


# ---- a network of a user's own


def from_module(
    module: nn.Module | Callable[[], nn.Module],
    input_shape: tuple[int, ...],
    *,
    batch_size: int = 32,
    learning_rate: float = 1e-3,
) -> ModelEntry:
    """Make an entry of a user's own module; its features are counted by a run on zeros.

    Args:
        module: from ``(batch, *input_shape)`` to (batch, features); or a callable that
            makes one, whose initial weights then follow from the run's seed. Of a
            module itself every client starts from a copy.
        input_shape: (C, H, W) of images, (C, T) of series, (columns,) of tables.
        batch_size: examples in a training step, where the user gives none.
        learning_rate: Adam's rate at the start of a task, likewise.

    Raises:
        ConfigError: the shape is no such shape.
        ContractError: ``module`` made no module, cannot take such inputs, or does not
            return features.
    """
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
        features, _ = try_body(body, input_shape)
    summary = f"{type(body).__name__}, the user's own"
    return ModelEntry(make, input_shape, features, batch_size, learning_rate, summary)


def try_body(body: nn.Module, input_shape: tuple[int, ...]) -> tuple[int, int]:
    """Try a copy of a body on zeros, after its lazy layers have got their shapes.

    Returns:
        the width of its features, and the fewest inputs that it takes in training: 2
        where it normalises each feature by the statistics of a batch.
    """
    name = type(body).__name__
    if any(map(is_lazy, body.parameters())):
        modes = {part: part.training for part in body.modules()}
        with torch.no_grad():
            _features(body.eval(), 2, input_shape)
        for part, mode in modes.items():
            part.training = mode
    _check_parameters(body)
    with torch.random.fork_rng(devices=[]):
        tried = deepcopy(body)
        with torch.no_grad():
            width = _features(tried.eval(), 2, input_shape).shape[1]
        if made := tried.state_dict().keys() - body.state_dict().keys():
            raise ContractError(
                f"{name}: got {', '.join(sorted(made))} made in forward, expected all "
                "layers made in __init__"
            )
        smallest, tried = 1, tried.train()
        try:
            found = _features(tried, 1, input_shape)
        except ContractError:
            smallest, found = 2, _features(tried, 2, input_shape)
        try:
            if found.requires_grad:
                found.sum().backward()  # type: ignore[no-untyped-call]
        except Exception as error:  # of anybody's code
            raise ContractError(
                f"{name}: got {error!s:.200} for its gradient, expected one"
            ) from error
    return width, smallest


def _features(body: nn.Module, count: int, input_shape: tuple[int, ...]) -> Tensor:
    name, expected = type(body).__name__, f"expected ({count}, features)"
    asked = f"for {count} inputs of shape {input_shape}"
    if input_shape == TEXT:
        inputs = torch.zeros(count, _WORDS, dtype=torch.int64)
    else:
        inputs = torch.zeros(count, *input_shape)
    try:
        found: object = body(inputs)
    except Exception as error:  # of anybody's code
        raise ContractError(
            f"{name}: got {error!s:.200} {asked}, {expected}"
        ) from error
    if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != count:
        shape = getattr(found, "shape", type(found).__name__)
        raise ContractError(f"{name}: got {shape} {asked}, {expected}")
    if not found.shape[1]:
        raise ContractError(f"{name}: got no features {asked}, expected at least one")
    if found.dtype != torch.float32:
        raise ContractError(
            f"{name}: got features of {found.dtype}, expected torch.float32"
        )
    return found


def _check_parameters(body: nn.Module) -> None:
    """Refuse parameters that cannot be trained in, or sent as, NumPy's float32."""
    name = type(body).__name__
    for key, parameter in body.named_parameters():
        if is_lazy(parameter):
            raise ContractError(
                f"{name}: got no shape of {key}, expected forward to use its layer"
            )
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise ContractError(
                f"{name}: got {key} of {parameter.dtype}, expected torch.float32; "
                "training.precision computes in bfloat16"
            )
    for key, buffer in body.named_buffers():
        if buffer.dtype == torch.bfloat16:
            raise ContractError(
                f"{name}: got {key} of {buffer.dtype}, expected torch.float32"
            )
