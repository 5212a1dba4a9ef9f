"""The models by name: ours, those of installed packages, and the user's own."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import nn

from fcl_flower.config.parsing import Params
from fcl_flower.core.errors import ContractError, config_error
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Array
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.models.registry import (
    MODELS,
    TABULAR,
    TEXT,
    ModelEntry,
    check_modality,
    from_module,
    model_entry,
)
from fcl_flower.models.trial import try_body


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
    with seeded(derive(seed, "model")):
        body = _body(name, entry, table, columns, params)
        features = entry.features or body.features
        input_shape = (columns,) if columns else entry.input_shape
        smallest_batch = 1
        if not (entry.is_ours or entry.encoder):
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
    return tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in inputs)


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
