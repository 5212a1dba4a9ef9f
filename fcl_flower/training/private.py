"""DP-SGD, which is local training that hides each example.

It is algorithm 1 of Abadi et al., CCS 2016, https://arxiv.org/abs/1607.00133. The
optimizer, Adam or SGD, gets the noised mean of clipped gradients, which is
post-processing. An independent draw decides whether an example is in a step, as the
accountant of Poisson sampling requires.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fcl_flower.config.run_config import PrivacySection
from fcl_flower.core.errors import BudgetError
from fcl_flower.core.types import AnyArray, Arrays
from fcl_flower.data.examples import Examples
from fcl_flower.privacy.accounting import Steps, sampled_epsilon
from fcl_flower.training.loop import Training
from fcl_flower.training.optimizers import Optimizer


def planned_steps(examples: int, training: Training, noise: float) -> Steps:
    """Count a round's steps by sampling probability and noise multiplier.

    The number of ``examples`` counts as public.
    """
    if not examples:
        return {}
    probability = min(1.0, training.batch_size / examples)
    return {(probability, noise): training.epochs * math.ceil(1 / probability)}


def charge(spent: Arrays, steps: Steps, privacy: PrivacySection) -> dict[str, AnyArray]:
    """Add the steps of the next round to those that a client has spent.

    ``spent`` and the result hold numbers of steps by a text of probability and noise
    multiplier.

    Raises:
        BudgetError: the steps would exceed the budget.
    """
    total = dict(spent)
    for (probability, noise), count in steps.items():
        name = f"{probability!r} {noise!r}"
        total[name] = np.asarray(int(np.asarray(total.get(name, 0))) + count)
    epsilon = spent_epsilon(total, privacy.delta)
    if privacy.epsilon and epsilon > privacy.epsilon:
        raise BudgetError(
            f"its examples would have an epsilon of {epsilon:.3g}, above "
            f"privacy.epsilon {privacy.epsilon:g}"
        )
    return total


def spent_epsilon(spent: Arrays, delta: float) -> float:
    """Compute the epsilon of all steps in a client's state."""
    steps = {
        (float(probability), float(noise)): int(np.asarray(count))
        for name, count in spent.items()
        for probability, noise in [name.split()]
    }
    return sampled_epsilon(steps, delta)


def fit_dp_sgd(
    parameters: Mapping[str, nn.Parameter],
    loss: Callable[[Mapping[str, Tensor], Tensor, Tensor], Tensor],
    penalty: Callable[[], Tensor | float],
    examples: Examples,
    training: Training,
    privacy: PrivacySection,
    rng: np.random.Generator,
    server_round: int = 0,
    see: Callable[[Tensor], Tensor] = lambda x: x,
) -> None:
    """Minimise the mean loss of examples plus a penalty, for one round, by DP-SGD.

    The learning rate follows the schedule only, since a validation loss would reveal
    its examples.

    Args:
        parameters: parameters to train, by name.
        loss: function of parameters by name, one input and its label, that returns a
            scalar.
        penalty: function that returns a penalty of the parameters alone, which reveals
            no example.
        examples: training examples; each step draws some.
        training: settings; the batch size is the expected number of drawn examples.
        privacy: clip and noise multiplier.
        rng: secret generator for sampling and noise.
        server_round: round for the schedule of the rate; 0 for no schedule.
        see: function from drawn inputs to the inputs of ``loss``, each independently.
    """
    optimizer = Optimizer(training.optimizer, parameters, training.learning_rate)
    by_example = torch.func.vmap(
        torch.func.grad(loss), in_dims=(None, 0, 0), randomness="different"
    )
    planned = planned_steps(len(examples.y), training, privacy.noise_multiplier)
    for (probability, _), count in planned.items():
        for step in range(count):
            optimizer.rate = training.scheduled(
                training.learning_rate, server_round, step / count
            )
            drawn = np.flatnonzero(rng.random(len(examples.y)) < probability)
            rows = torch.from_numpy(drawn).to(examples.y.device)
            leaves = {name: p.detach() for name, p in parameters.items()}
            # An empty batch has no gradients, but gets noise.
            with sdpa_kernel(SDPBackend.MATH):  # `vmap` has no rules for fused kernels
                gradients = (
                    by_example(leaves, see(examples.x[rows]), examples.y[rows])
                    if len(drawn)
                    else {name: p.new_zeros(0, *p.shape) for name, p in leaves.items()}
                )
            summed = clipped_sum(gradients, privacy.clip)
            optimizer.zero_grad()
            extra = penalty()
            if isinstance(extra, Tensor):
                extra.backward()  # type: ignore[no-untyped-call]
            deviation = privacy.noise_multiplier * privacy.clip
            for name, parameter in parameters.items():
                noise = rng.normal(0.0, deviation, tuple(parameter.shape))
                noised = summed[name] + torch.as_tensor(noise).to(summed[name])
                mean = noised / (probability * len(examples.y))
                parameter.grad = (
                    mean if parameter.grad is None else parameter.grad + mean
                )
            optimizer.step()


def clipped_sum(gradients: Mapping[str, Tensor], clip: float) -> dict[str, Tensor]:
    """Clip each example's gradient to the norm ``clip``, and sum over the examples.

    The gradients of a parameter have the shape (batch, *shape). A gradient that is not
    finite counts as zero.
    """
    squares = [g.flatten(1).square().sum(1) for g in gradients.values()]
    norms = torch.stack(squares).sum(0).sqrt()
    scale = torch.where(norms > clip, clip / norms, torch.ones_like(norms))
    finite = torch.isfinite(norms)
    return {
        name: torch.einsum(
            "b,b...->...",
            torch.where(finite, scale, 0.0),
            torch.where(finite.reshape(-1, *[1] * (g.dim() - 1)), g, 0.0),
        )
        for name, g in gradients.items()
    }
