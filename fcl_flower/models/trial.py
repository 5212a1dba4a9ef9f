"""A network of a user's own, tried with one batch before anything is trained.

What it cannot do is said in one sentence then, and not by a traceback in round 1.
"""

from copy import deepcopy
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fcl_flower.core.errors import ContractError

_TEXT: Final = (-1,)  # as in `fcl_flower.models.registry`, which imports this file
_WORDS: Final = 16


class Trial(NamedTuple):
    """What a trial has found of a body.

    Attributes:
        features: width of what it returns.
        smallest_batch: fewest inputs that it takes in training: 2 where it normalises
            each feature by the statistics of a batch.
    """

    features: int
    smallest_batch: int


def try_body(body: nn.Module, input_shape: tuple[int, ...]) -> Trial:
    """Try a copy of a body on zeros, after its lazy layers have got their shapes.

    Args:
        body: from ``(batch, *input_shape)`` to (batch, features).
        input_shape: of one input.

    Raises:
        ContractError: the body cannot take such inputs, does not return features, or
            has parameters that cannot be trained and sent.
    """
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
            found = _features(tried.eval(), 2, input_shape)
        made = tried.state_dict().keys() - body.state_dict().keys()
        if made:
            raise ContractError(
                f"{type(body).__name__}: got {', '.join(sorted(made))} made in "
                "forward, expected all layers made in __init__"
            )
        return Trial(found.shape[1], _smallest_batch(tried.train(), input_shape))


def _smallest_batch(body: nn.Module, input_shape: tuple[int, ...]) -> int:
    for count in (1, 2):
        try:
            found = _features(body, count, input_shape)
        except ContractError:
            if count == 2:
                raise
        else:
            if found.requires_grad:
                _backward(body, found)
            return count
    raise AssertionError("two inputs either work or raise")


def _backward(body: nn.Module, found: Tensor) -> None:
    try:
        found.sum().backward()  # type: ignore[no-untyped-call]
    except Exception as error:  # of anybody's code
        raise ContractError(
            f"{type(body).__name__}: got {error!s:.200} for its gradient, expected one"
        ) from error


def _features(body: nn.Module, count: int, input_shape: tuple[int, ...]) -> Tensor:
    """Run a body on zeros.

    Raises:
        ContractError: it fails, or the result is not (count, features) of float32.
    """
    name, expected = type(body).__name__, f"expected ({count}, features)"
    asked = f"for {count} inputs of shape {input_shape}"
    if input_shape == _TEXT:
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
    """Refuse parameters that cannot be trained in, or sent as, NumPy's float32.

    Raises:
        ContractError: a parameter or buffer has another type or no shape.
    """
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
