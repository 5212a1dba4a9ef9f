"""Models made by name, with a check of users' networks before any training."""

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
    MODELS,
    TABULAR,
    TEXT,
    ModelEntry,
    check_modality,
)

_WORDS = 16
"""The number of words of the texts on which a network is tried."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's generators within the context; restore the CPU's generator after it.

    Without an accelerator only the CPU's generator is seeded, since
    ``torch.manual_seed`` is slow: it imports torch's compiler, which takes a second,
    and keeps the stack of every call in case an accelerator appears.
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

    The body's weights depend on ``params`` and ``seed`` only. So every client starts
    from the same body, however many heads it has. Torch's global generator keeps its
    state.

    Args:
        name: name of a model in `MODELS`.
        tasks: number of tasks, at least 1.
        classes: logits of a head: the classes of a task, or with a single head all
            labels of the scenario.
        single_head: whether one head serves every task.
        seed: the run's seed.
        table: word vectors, shape (words + 1, D), for texts.
        columns: number of columns of tabular data; 0 for other data.
        params: settings of the model, of its entry's type; None for the defaults.

    Raises:
        ConfigError: the name is unknown, the model does not suit the data, or there is
            no such encoder.
        ContractError: ``params`` belong to another model, or a user's network cannot be
            trained (`try_body`).
    """
    _check_default_type()
    entry = MODELS[name]
    params = entry.params() if params is None else params
    if type(params) is not entry.params:
        raise ContractError(
            f"model {name}: got {type(params).__name__}, expected "
            f"{entry.params.__name__}"
        )
    built_in = isinstance(entry.body, str) and entry.body.startswith("fcl_flower.")
    with seeded(derive(seed, "model")):
        body = _body(name, entry, table, columns, params)
        features = entry.features or body.features
        input_shape = (columns,) if columns else entry.input_shape
        smallest_batch = 1
        if not (built_in or entry.encoder):
            width, smallest_batch = try_body(body, input_shape)
            if width != features:
                raise ContractError(
                    f"model {name}: got {width} features, expected {features}"
                )
            body.register_forward_pre_hook(_copied)
        # A language model has the logits of its own vocabulary.
        head = body.own_head() if hasattr(body, "own_head") else None
        return MultiHeadModel(
            body,
            features=features,
            input_shape=input_shape,
            smallest_batch=smallest_batch,
            tasks=tasks,
            classes=classes if head is None else len(head.weight),
            single_head=single_head,
            head=head,
        )


def _check_default_type() -> None:
    """Refuse another default type than float32, which networks and messages have."""
    if (kind := torch.get_default_dtype()) != torch.float32:
        expected = "torch.float32: call torch.set_default_dtype(torch.float32)"
        raise config_error("torch.get_default_dtype()", kind, expected)


def _copied(body: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copy inputs, since they belong to a cache and a network may change them."""
    return tuple(x.clone() if isinstance(x, Tensor) else x for x in inputs)


def _body(
    name: str, entry: ModelEntry, table: Array | None, columns: int, params: Params
) -> Any:  # noqa: ANN401 - some bodies have an attribute ``features``
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


# ---- a user's network


def from_module(
    module: nn.Module | Callable[[], nn.Module],
    input_shape: tuple[int, ...],
    *,
    batch_size: int = 32,
    learning_rate: float = 1e-3,
) -> ModelEntry:
    """Make an entry of a user's module; a run on zeros counts its features.

    Args:
        module: module from ``(batch, *input_shape)`` to (batch, features), of which
            every client starts from a copy; or a callable that makes such a module,
            whose initial weights then follow from the run's seed.
        input_shape: (C, H, W) of images, (C, T) of series, (columns,) of tables.
        batch_size: default number of examples in a training step.
        learning_rate: default of Adam's rate at the start of a task.

    Raises:
        ConfigError: ``input_shape`` has another form.
        ContractError: ``module`` makes no module, cannot take such inputs, or does not
            return features.
    """
    if not 1 <= len(input_shape) <= 3 or min(input_shape) < 1:
        raise config_error(
            "input_shape", input_shape, "(C, H, W), (C, T) or (columns,)"
        )
    _check_default_type()
    make = (lambda: _copy(module)) if isinstance(module, nn.Module) else module
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

    The copy is tested on one sample and on two, saved, loaded, and trained.

    Returns:
        the number of its features, and the smallest batch that it takes in training: 2
        if it normalises each feature by the statistics of a batch.

    Raises:
        ContractError: the body cannot take such inputs, return features, be copied, or
            be trained.
    """
    name = type(body).__name__
    if any(map(is_lazy, body.parameters())):
        modes = {part: part.training for part in body.modules()}
        with torch.no_grad():
            _features(body.eval(), 2, input_shape)
        for part, mode in modes.items():
            part.training = mode
    _check_parts(body)
    with torch.random.fork_rng(devices=[]):
        copied = _copy(body)
        with torch.no_grad():
            width = _features(copied.eval(), 2, input_shape).shape[1]
            _features(copied, 1, input_shape)
        if late_names := copied.state_dict().keys() - body.state_dict().keys():
            raise ContractError(
                f"{name}: got {', '.join(sorted(late_names))} made in forward, expected"
                " all layers made in __init__"
            )
        smallest = 1
        try:
            _features(copied.train(), 1, input_shape)
        except ContractError:
            smallest = 2
        _check_gradients(copied, smallest, input_shape)
    return width, smallest


def _copy(module: nn.Module) -> nn.Module:
    """Copy a module, and load into the copy what the module saves."""
    name = type(module).__name__
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        raise ContractError(
            f"{name}: got a traced or scripted module, expected the module itself, "
            "before torch.jit"
        )
    for key, value in module.state_dict().items():
        if not isinstance(value, Tensor) or value.is_quantized:
            kind = "a quantized tensor" if isinstance(value, Tensor) else repr(value)
            raise ContractError(
                f"{name}: got {key} with {kind:.60}, expected plain tensors alone: "
                "neither extra state nor quantized layers can be averaged"
            )
    try:
        copied = deepcopy(module)
        copied.load_state_dict(module.state_dict())
    except Exception as error:  # a user's module may raise anything
        why = str(error).partition(".")[0]
        raise ContractError(
            f"{name}: got {why:.120} for a copy, expected a module"
            " that can be copied: torch.nn.utils.parametrizations.weight_norm can, and "
            "pruned layers after torch.nn.utils.prune.remove"
        ) from error
    return copied


def _features(body: nn.Module, count: int, input_shape: tuple[int, ...]) -> Tensor:
    name, expected = type(body).__name__, f"expected ({count}, features)"
    mode = "training" if body.training else "a test"
    if count == 1 and not body.training:
        expected += ", as samples are predicted one by one, too"
    request = f"for {count} inputs of shape {input_shape} in {mode}"
    if input_shape == TEXT:
        inputs = torch.zeros(count, _WORDS, dtype=torch.int64)
    else:
        inputs = torch.zeros(count, *input_shape)
    try:
        features: object = body(inputs)
    except Exception as error:  # a user's module may raise anything
        raise ContractError(
            f"{name}: got {error!s:.200} {request}, {expected}"
        ) from error
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != count:
        shape = getattr(features, "shape", type(features).__name__)
        raise ContractError(f"{name}: got {shape} {request}, {expected}")
    if not features.shape[1]:
        raise ContractError(f"{name}: got no features {request}, expected at least one")
    if features.dtype != torch.float32:
        raise ContractError(
            f"{name}: got features of {features.dtype}, expected torch.float32"
        )
    return features


def _check_gradients(
    body: nn.Module, smallest: int, input_shape: tuple[int, ...]
) -> None:
    """Refuse a body that does not pass a gradient on to each trained parameter."""
    name = type(body).__name__
    # In training some blocks may be skipped at random, in a test some are not used.
    for mode, count in ((True, smallest), (False, 2)):
        features = _features(body.train(mode), count, input_shape)
        try:
            if features.requires_grad:
                features.sum().backward()  # type: ignore[no-untyped-call]
        except Exception as error:  # a user's module may raise anything
            raise ContractError(
                f"{name}: got {error!s:.200} for its gradient, expected one"
            ) from error
    trained = {n: p for n, p in body.named_parameters() if p.requires_grad}
    if missed := [n for n, parameter in trained.items() if parameter.grad is None]:
        shown = "any parameter" if len(missed) == len(trained) else missed[0]
        raise ContractError(
            f"{name}: got no gradient for {shown}, expected one for each trained "
            "parameter: forward must not detach features, and what it does not use must"
            " be frozen with requires_grad_(False)"
        )


def _check_parts(body: nn.Module) -> None:
    """Refuse parts that no client can train, copy or send."""
    name = type(body).__name__
    for key, parameter in body.named_parameters():
        if is_lazy(parameter):
            raise ContractError(
                f"{name}: got no shape of {key}, expected forward to use its layer"
            )
        if not parameter.numel():
            raise ContractError(
                f"{name}: got {key} of shape {tuple(parameter.shape)}, expected no "
                "empty parameters"
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
