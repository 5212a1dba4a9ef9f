"""The optimizers of local training, whose state outlasts a round as a value.

Adam is by Kingma and Ba, ICLR 2015, https://arxiv.org/abs/1412.6980. SGD has momentum
as in PyTorch: v <- momentum v + g, w <- w - rate v (Sutskever et al., ICML 2013,
https://proceedings.mlr.press/v28/sutskever13.html, equations 1 and 2, with the rate
outside of v). With Nesterov's momentum (equations 3 and 4 there) the step is along
g + momentum v.

The arithmetic equals that of ``torch.optim``, bit for bit, since this module calls its
functional forms. The classes of ``torch.optim`` cost more than the step of a small
network. Their first use in a process imports torch's compiler, which takes a second.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from fcl_flower.core.types import Array, Arrays
from fcl_flower.training.tensors import to_torch

BETAS = (0.9, 0.999)
EPSILON = 1e-8
STATE_NAMES = {"adam": ("step", "mean", "square"), "sgd": ("velocity",)}


@dataclass(frozen=True, slots=True)
class OptimizerChoice:
    """The choice of Adam with the published constants, or of SGD.

    Attributes:
        name: the optimizer.
        momentum: momentum of SGD, in [0, 1).
        weight_decay: factor of each parameter in its own gradient, at least 0.
        nesterov: whether SGD's momentum, then above 0, is Nesterov's.
    """

    name: Literal["adam", "sgd"] = "adam"
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False


class Optimizer:
    """An optimizer of named parameters, each at the rate times its own factor.

    A parameter without a gradient keeps its value and its state.

    Attributes:
        rate: learning rate of the next steps, above 0.
    """

    def __init__(
        self,
        choice: OptimizerChoice,
        parameters: Mapping[str, torch.nn.Parameter],
        rate: float,
        factors: Mapping[str, float] | None = None,
        *,
        fused: bool = False,
    ) -> None:
        """Begin without any state.

        Args:
            choice: choice of the optimizer.
            parameters: parameters by name.
            rate: learning rate.
            factors: factors on the rate by a parameter's name; 1 where absent.
            fused: whether a step is a single operation.
        """
        self.rate = rate
        self._choice = choice
        self._parameters = parameters
        self._factors = {name: (factors or {}).get(name, 1.0) for name in parameters}
        self._fused = fused or None  # None lets torch choose an unfused form
        self._state_names = STATE_NAMES[choice.name]
        self._state: dict[str, dict[str, Tensor]] = {}

    def restore(self, moments: Arrays) -> None:
        """Continue from the state of `moments`; parameters without one begin anew."""
        for name, parameter in self._parameters.items():
            device = str(parameter.device)  # a fused update has its step there, too
            state = {
                part: to_torch(moments[f"{part}/{name}"], device)
                for part in self._state_names
                if f"{part}/{name}" in moments
            }
            if state:
                self._state[name] = state

    def moments(self) -> dict[str, Array]:
        """Read the state of each parameter that has had a gradient.

        Adam has ``step/NAME``, ``mean/NAME`` and ``square/NAME``; SGD with momentum has
        ``velocity/NAME``, without momentum nothing. Call this method after the last
        step: the arrays are no copies, so another step would change them.
        """
        return {
            f"{part}/{name}": self._state[name][part].cpu().numpy()
            for name in self._parameters
            if name in self._state
            for part in self._state_names
        }

    def zero_grad(self) -> None:
        """Remove all gradients."""
        for parameter in self._parameters.values():
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient; those of one rate move together."""
        groups: dict[tuple[float, bool], list[str]] = {}
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                # All parameters of a call to torch must have a state, or none of them.
                begun = name in self._state
                groups.setdefault((self._factors[name], begun), []).append(name)
        for (factor, _), names in groups.items():
            self._move(names, self.rate * factor)

    def _move(self, names: list[str], rate: float) -> None:
        leaves: list[Tensor] = [self._parameters[name] for name in names]
        gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
        common: dict[str, Any] = {
            "fused": self._fused,
            "lr": rate,
            "weight_decay": self._choice.weight_decay,
            "maximize": False,
        }
        if self._choice.name == "sgd":
            common |= {"momentum": self._choice.momentum, "dampening": 0.0}
            velocities = [self._state.get(name, {}).get("velocity") for name in names]
            sgd(leaves, gradients, velocities, nesterov=self._choice.nesterov, **common)
            for name, velocity in zip(names, velocities, strict=True):
                if velocity is not None:  # the first step makes the velocities
                    self._state[name] = {"velocity": velocity}
            return
        for name, leaf in zip(names, leaves, strict=True):
            if name not in self._state:
                device = leaf.device if self._fused else "cpu"  # as torch requires
                self._state[name] = {
                    "step": torch.zeros((), device=device),
                    "mean": torch.zeros_like(leaf),
                    "square": torch.zeros_like(leaf),
                }
        steps, means, squares = (
            [self._state[name][part] for name in names] for part in self._state_names
        )
        common |= {"amsgrad": False, "beta1": BETAS[0], "beta2": BETAS[1]}
        adam(leaves, gradients, means, squares, [], steps, eps=EPSILON, **common)

    def step_size(self, name: str) -> Tensor:
        """Compute the factor of a parameter's mean gradient in the last step.

        Adam's factor is rate / (sqrt(v) + eps) with unbiased v. SGD's factor is
        rate / (1 - momentum), also with Nesterov's momentum, since its steps are along
        that many times the mean of the gradients. The parameter must have had a
        gradient; the result has its shape.
        """
        rate = self.rate * self._factors[name]
        if self._choice.name == "sgd":
            size = rate / (1 - self._choice.momentum)
            return torch.full_like(self._parameters[name], size)
        state = self._state[name]
        root = (state["square"] / (1 - BETAS[1] ** float(state["step"]))).sqrt_()
        return torch.div(torch.tensor(rate), root.add_(EPSILON), out=root)
