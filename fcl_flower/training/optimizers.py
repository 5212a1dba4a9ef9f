"""The optimizers of local training, whose state is a value that outlasts a round.

Adam: Kingma and Ba, ICLR 2015, https://arxiv.org/abs/1412.6980. SGD with momentum as
PyTorch has it: v <- momentum v + g, w <- w - rate v (Sutskever et al., ICML 2013,
https://proceedings.mlr.press/v28/sutskever13.html, equations 1 and 2, with the rate
outside of v).

The arithmetic is that of ``torch.optim``, bit for bit, by its functional forms: its
classes cost more than the step of a small network, and their first use in a process
imports torch's compiler, which takes a second.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd
from typing_extensions import override

from fcl_flower.core.types import Array, Arrays
from fcl_flower.training.tensors import to_torch

BETAS = (0.9, 0.999)
EPSILON = 1e-8


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


class Optimizer(ABC):
    """Minimises over named leaves, each at the rate times a factor of its own.

    A leaf without a gradient is left as it is, and so is what is known of it.

    Class attributes:
        kept: names of what is known of a leaf that has had a gradient.

    Attributes:
        rate: of the next steps, above 0.
    """

    kept: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        choice: OptimizerChoice,
        parameters: Mapping[str, torch.nn.Parameter],
        rate: float,
        factors: Mapping[str, float],
        *,
        fused: bool,
    ) -> None:
        """Know nothing yet; see `create_optimizer`."""
        self.rate = rate
        self._choice = choice
        self._parameters = parameters
        self._factors = {name: factors.get(name, 1.0) for name in parameters}
        self._fused = fused or None  # None: torch may choose what is not fused
        self._known: dict[str, dict[str, torch.Tensor]] = {}

    def restore(self, kept: Arrays) -> None:
        """Go on where `moments` was taken; a leaf that is not in it begins anew."""
        for name, parameter in self._parameters.items():
            device = str(parameter.device)  # also of the step: the update is fused
            found = {
                what: to_torch(kept[f"{what}/{name}"], device)
                for what in self.kept
                if f"{what}/{name}" in kept
            }
            if found:
                self._known[name] = found

    def moments(self) -> dict[str, Array]:
        """Return what is known of each leaf that has had a gradient; call it last.

        ``step/NAME``, ``mean/NAME`` and ``square/NAME`` of Adam; ``velocity/NAME`` of
        SGD with momentum, nothing without. Not copied: another step would change it.
        """
        return {
            f"{what}/{name}": self._known[name][what].cpu().numpy()
            for name in self._parameters
            if name in self._known
            for what in self.kept
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
                begun = name in self._known
                alike.setdefault((self._factors[name], begun), []).append(name)
        for (factor, _), names in alike.items():
            leaves = [self._parameters[name] for name in names]
            gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
            self._move(names, list(leaves), gradients, self.rate * factor)

    @abstractmethod
    def step_size(self, name: str) -> torch.Tensor:
        """Return what the last step has multiplied a leaf's mean gradient with.

        Args:
            name: of one that has had a gradient.

        Returns:
            of the leaf's shape, above 0.
        """

    @abstractmethod
    def _move(
        self,
        names: list[str],
        leaves: list[torch.Tensor],
        gradients: list[torch.Tensor],
        rate: float,
    ) -> None:
        """Move leaves of which either all or none are known."""


class _Adam(Optimizer):
    kept = ("step", "mean", "square")

    @override
    def step_size(self, name: str) -> torch.Tensor:
        """Return rate / (sqrt(v) + eps), where v is unbiased."""
        known = self._known[name]
        root = (known["square"] / (1 - BETAS[1] ** float(known["step"]))).sqrt_()
        rate = self.rate * self._factors[name]
        return torch.full_like(root, rate).div_(root.add_(EPSILON))

    @override
    def _move(
        self,
        names: list[str],
        leaves: list[torch.Tensor],
        gradients: list[torch.Tensor],
        rate: float,
    ) -> None:
        for name, leaf in zip(names, leaves, strict=True):
            if name not in self._known:
                device = leaf.device if self._fused else "cpu"  # as torch wants it
                self._known[name] = {
                    "step": torch.zeros((), device=device),
                    "mean": torch.zeros_like(leaf),
                    "square": torch.zeros_like(leaf),
                }
        steps, means, squares = (
            [self._known[name][what] for name in names] for what in self.kept
        )
        adam(
            leaves,
            gradients,
            means,
            squares,
            [],
            steps,
            fused=self._fused,
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=rate,
            weight_decay=self._choice.weight_decay,
            eps=EPSILON,
            maximize=False,
        )


class _Sgd(Optimizer):
    kept = ("velocity",)

    @override
    def step_size(self, name: str) -> torch.Tensor:
        """Return rate / (1 - momentum).

        The velocity is that many times the mean of the gradients.
        """
        rate = self.rate * self._factors[name]
        size = rate / (1 - self._choice.momentum)
        return torch.full_like(self._parameters[name], size)

    @override
    def _move(
        self,
        names: list[str],
        leaves: list[torch.Tensor],
        gradients: list[torch.Tensor],
        rate: float,
    ) -> None:
        known = (self._known.get(name, {}) for name in names)
        velocities = [one.get("velocity") for one in known]
        sgd(
            leaves,
            gradients,
            velocities,
            fused=self._fused,
            weight_decay=self._choice.weight_decay,
            momentum=self._choice.momentum,
            lr=rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        for name, velocity in zip(names, velocities, strict=True):
            if velocity is not None:  # the first step makes them
                self._known[name] = {"velocity": velocity}


def create_optimizer(
    choice: OptimizerChoice,
    parameters: Mapping[str, torch.nn.Parameter],
    rate: float,
    rates: Mapping[str, float] | None = None,
    *,
    fused: bool = False,
) -> Optimizer:
    """Return an optimizer that knows nothing yet.

    Args:
        choice: which one.
        parameters: the leaves to train, by name.
        rate: learning rate, above 0.
        rates: factors on the rate by parameter name; 1 where absent.
        fused: a step is one operation.
    """
    kind = _Sgd if choice.name == "sgd" else _Adam
    return kind(choice, parameters, rate, rates or {}, fused=fused)
