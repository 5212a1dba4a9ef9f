"""The optimizers of local training, whose state is a value that outlasts a round.

Adam: Kingma and Ba, ICLR 2015, https://arxiv.org/abs/1412.6980. SGD with momentum as
PyTorch has it: v <- momentum v + g, w <- w - rate v (Sutskever et al., ICML 2013,
https://proceedings.mlr.press/v28/sutskever13.html, equations 1 and 2, with the rate
outside of v). With Nesterov's momentum (equations 3 and 4 there) the step is along
g + momentum v.

The arithmetic is that of ``torch.optim``, bit for bit, by its functional forms: its
classes cost more than the step of a small network, and their first use in a process
imports torch's compiler, which takes a second.
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
    """Adam with the published constants, or SGD with a momentum in [0, 1).

    ``weight_decay`` is the factor of each parameter in its own gradient, at least 0;
    ``nesterov`` asks for a momentum above 0.
    """

    name: Literal["adam", "sgd"] = "adam"
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False


class Optimizer:
    """Minimise over named leaves, each at the rate times a factor of its own.

    A leaf without a gradient is left as it is, and so is its state.

    Attributes:
        rate: of the next steps, above 0.
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
        """Begin without any state; ``fused`` makes a step one operation.

        ``factors`` are on the rate, by the name of a leaf; 1 where absent.
        """
        self.rate = rate
        self._choice = choice
        self._parameters = parameters
        self._factors = {name: (factors or {}).get(name, 1.0) for name in parameters}
        self._fused = fused or None  # None: torch may choose what is not fused
        self._state_names = STATE_NAMES[choice.name]
        self._state: dict[str, dict[str, Tensor]] = {}

    def restore(self, moments: Arrays) -> None:
        """Go on where `moments` was taken; a leaf that is not in it begins anew."""
        for name, parameter in self._parameters.items():
            device = str(parameter.device)  # also of the step: the update is fused
            found = {
                part: to_torch(moments[f"{part}/{name}"], device)
                for part in self._state_names
                if f"{part}/{name}" in moments
            }
            if found:
                self._state[name] = found

    def moments(self) -> dict[str, Array]:
        """Read the state of each leaf that has had a gradient; call it last.

        ``step/NAME``, ``mean/NAME`` and ``square/NAME`` of Adam; ``velocity/NAME`` of
        SGD with momentum, nothing without. Not copied: another step would change it.
        """
        return {
            f"{part}/{name}": self._state[name][part].cpu().numpy()
            for name in self._parameters
            if name in self._state
            for part in self._state_names
        }

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self._parameters.values():
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move every leaf that has a gradient: those of one rate together."""
        alike: dict[tuple[float, bool], list[str]] = {}
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                begun = name in self._state  # torch wants a state of all or of none
                alike.setdefault((self._factors[name], begun), []).append(name)
        for (factor, _), names in alike.items():
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
                if velocity is not None:  # the first step makes them
                    self._state[name] = {"velocity": velocity}
            return
        for name, leaf in zip(names, leaves, strict=True):
            if name not in self._state:
                device = leaf.device if self._fused else "cpu"  # as torch wants it
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
        """Compute what the last step has multiplied a leaf's mean gradient with.

        rate / (sqrt(v) + eps) of Adam, where v is unbiased; rate / (1 - momentum) of
        SGD, whose steps are along that many times the mean of the gradients, also with
        Nesterov's momentum. The leaf has had a gradient, and the result its shape.
        """
        rate = self.rate * self._factors[name]
        if self._choice.name == "sgd":
            size = rate / (1 - self._choice.momentum)
            return torch.full_like(self._parameters[name], size)
        state = self._state[name]
        root = (state["square"] / (1 - BETAS[1] ** float(state["step"]))).sqrt_()
        return torch.div(torch.tensor(rate), root.add_(EPSILON), out=root)
