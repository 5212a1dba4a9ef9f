"""The optimizers of local training, and what of them outlasts a round.

Adam: Kingma and Ba, ICLR 2015, https://arxiv.org/abs/1412.6980. SGD with momentum as
PyTorch has it: v <- momentum v + g, w <- w - rate v (Sutskever et al., ICML 2013,
https://proceedings.mlr.press/v28/sutskever13.html, equations 1 and 2, with the rate
outside of v).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from fcl_flower.core.types import Array, Arrays
from fcl_flower.training.tensors import to_numpy, to_torch

_KEPT = {
    torch.optim.Adam: {"step": "step", "mean": "exp_avg", "square": "exp_avg_sq"},
    torch.optim.SGD: {"velocity": "momentum_buffer"},
}
"""Per optimizer, from our names of what it knows of a parameter to PyTorch's."""


@dataclass(frozen=True, slots=True)
class OptimizerChoice:
    """Which optimizer.

    Attributes:
        name: Adam with the published constants, or SGD.
        momentum: of SGD, at least 0 and below 1.
        weight_decay: factor of each parameter in its own gradient, at least 0.
    """

    name: Literal["adam", "sgd"] = "adam"
    momentum: float = 0.0
    weight_decay: float = 0.0


def create_optimizer(
    choice: OptimizerChoice,
    parameters: Mapping[str, torch.nn.Parameter],
    rate: float,
    rates: Mapping[str, float] | None = None,
    *,
    fused: bool = False,
) -> torch.optim.Optimizer:
    """Return an optimizer that knows nothing yet, with a group for each parameter.

    Args:
        choice: which one.
        parameters: the leaves to train, by name; a group's ``name``.
        rate: learning rate, above 0.
        rates: factors on the rate by parameter name; 1 where absent. Whoever sets a
            group's rate multiplies it with its ``factor``.
        fused: a parameter's step is one operation.
    """
    factors = rates or {}
    groups = [
        {
            "params": [parameter],
            "name": name,
            "factor": factors.get(name, 1.0),
        }
        for name, parameter in parameters.items()
    ]
    decay = choice.weight_decay
    if choice.name == "sgd":
        momentum = choice.momentum
        return torch.optim.SGD(groups, rate, momentum, weight_decay=decay, fused=fused)
    return torch.optim.Adam(groups, rate, weight_decay=decay, fused=fused)


def step_size(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, torch.nn.Parameter],
    name: str,
) -> torch.Tensor:
    """Return what the last step has multiplied a parameter's mean gradient with.

    Entry by entry and above 0: rate / (sqrt(v) + eps) with Adam; with SGD rate /
    (1 - momentum), as its velocity is that many times the mean of the gradients.

    Args:
        optimizer: of `create_optimizer`.
        parameters: those it was made with.
        name: of one that has had a gradient.
    """
    (group,) = (g for g in optimizer.param_groups if g["name"] == name)
    if isinstance(optimizer, torch.optim.SGD):
        return torch.full_like(parameters[name], group["lr"] / (1 - group["momentum"]))
    moments = optimizer.state[parameters[name]]
    unbiased = 1 - group["betas"][1] ** float(moments["step"])
    root = (moments["exp_avg_sq"] / unbiased).sqrt_()
    return torch.full_like(root, group["lr"]).div_(root.add_(group["eps"]))


def restore_moments(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, torch.nn.Parameter],
    kept: Arrays,
) -> None:
    """Let an optimizer go on where `moments` was taken."""
    names = _KEPT[type(optimizer)]
    for name, parameter in parameters.items():
        device = str(parameter.device)  # also of the step: the update is fused
        found = {
            key: to_torch(kept[f"{ours}/{name}"], device)
            for ours, key in names.items()
            if f"{ours}/{name}" in kept
        }
        if found:
            optimizer.state[parameter] = found


def moments(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter]
) -> dict[str, Array]:
    """Return what an optimizer knows of each parameter that has had a gradient.

    ``step/NAME``, ``mean/NAME`` and ``square/NAME`` of Adam; ``velocity/NAME`` of SGD
    with momentum, nothing without.
    """
    names = _KEPT[type(optimizer)]
    kept: dict[str, Array] = {}
    for name, parameter in parameters.items():
        found = optimizer.state.get(parameter, {})
        for ours, key in names.items():
            if key in found:
                kept[f"{ours}/{name}"] = to_numpy(found[key])
    return kept
