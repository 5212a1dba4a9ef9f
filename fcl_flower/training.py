"""The one local training loop, used by every algorithm's client half."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from fcl_flower.data.tasks import Examples, batches
from fcl_flower.seeds import derive
from fcl_flower.tensors import to_numpy, to_torch
from fcl_flower.types import Array, Arrays, Stage

MINIMUM_RATE = 1e-7


@dataclass(frozen=True, slots=True)
class Training:
    """How a client trains, the same for every algorithm of a comparison.

    The optimizer is Adam. Its rate is divided by ``decay`` after ``patience``
    epochs without a new lowest validation loss, and a task's training stops for
    good below 1e-7 (FedWeIT, appendix B; the released code never stops).

    Attributes:
        epochs: passes over the task's training data in a round, at least 1.
        batch_size: examples a step, at least 1.
        learning_rate: Adam's rate at the start of each task, above 0.
        patience: stagnating epochs before the rate falls, at least 1.
        decay: divisor of the rate, above 1.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    patience: int = 3
    decay: float = 3.0


@dataclass(frozen=True, slots=True)
class Score:
    """Mean cross-entropy and accuracy (a fraction) over a set of examples."""

    loss: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class Fit:
    """What a round of local training leaves behind.

    Attributes:
        memory: optimizer moments and the state of the rate; hand it to the next
            round of the same task.
        loss: mean training loss over the last epoch, NaN if nothing was trained.
        valid: the score on the validation examples after the last epoch.
    """

    memory: Arrays
    loss: float
    valid: Score

    def metrics(self) -> dict[str, float]:
        """Return the scalars for the progress display; a NaN is left out."""
        found = {
            "loss": self.loss,
            "valid_loss": self.valid.loss,
            "valid_accuracy": self.valid.accuracy,
        }
        return {name: value for name, value in found.items() if not np.isnan(value)}


def score(predict: Callable[[torch.Tensor], torch.Tensor], examples: Examples) -> Score:
    """Return loss and accuracy of ``predict`` (inputs to logits); NaN without data."""
    loss, hits, seen = 0.0, 0, len(examples.y)
    with torch.no_grad():
        for x, y in batches(examples, 512, seed=None):
            logits = predict(x)
            loss += float(torch.nn.functional.cross_entropy(logits, y, reduction="sum"))
            hits += int((logits.argmax(1) == y).sum())
    return Score(loss / seen, hits / seen) if seen else Score(np.nan, np.nan)


def fit(
    parameters: Mapping[str, torch.nn.Parameter],
    objective: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    validate: Callable[[], Score],
    examples: Examples,
    training: Training,
    *,
    memory: Arrays,
    seed: int,
    client: int,
    stage: Stage,
    rates: Mapping[str, float] | None = None,
    after_step: Callable[[float], None] | None = None,
) -> Fit:
    """Minimise ``objective`` over the training examples for one round.

    Args:
        parameters: the leaves to train, by name.
        objective: inputs and labels to a scalar loss.
        validate: the score on the validation examples, for the learning rate.
        examples: the task's training examples.
        training: epochs, batch size and rate.
        memory: `Fit.memory` of the last round of the same task; empty at its start.
        seed: of the run; the order of the examples depends on it, client and round.
        client: the client's partition number.
        stage: where the client stands.
        rates: factors on the learning rate by parameter name; 1 where absent.
        after_step: called after each step with the current rate (proximal steps).
    """
    rate = _scalar(memory, "rate", training.learning_rate)
    best = _scalar(memory, "best", np.inf)
    stale = _scalar(memory, "stale", 0.0)
    factors = rates or {}
    optimizer = torch.optim.Adam(
        [
            {"params": [parameter], "factor": factors.get(name, 1.0)}
            for name, parameter in parameters.items()
        ],
        lr=rate,
        fused=True,
    )
    _restore(optimizer, parameters, memory)
    loss, valid = np.nan, None
    for epoch in range(training.epochs):
        if rate < MINIMUM_RATE:
            break
        for group in optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        loss = _epoch(
            optimizer,
            objective,
            examples,
            training.batch_size,
            derive(seed, "shuffle", client, stage.round, epoch),
            partial(after_step, rate) if after_step else lambda: None,
        )
        valid = validate()
        if valid.loss < best:
            best, stale = valid.loss, 0.0
        elif not np.isnan(valid.loss):
            stale += 1
            if stale >= training.patience:
                rate, stale = rate / training.decay, 0.0
    kept = _moments(optimizer, parameters)
    for name, value in (("rate", rate), ("best", best), ("stale", stale)):
        kept[name] = np.asarray(value)
    return Fit(kept, loss, valid or validate())


def _epoch(
    optimizer: torch.optim.Optimizer,
    objective: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    examples: Examples,
    batch_size: int,
    seed: int,
    after_step: Callable[[], None],
) -> float:
    total = 0.0
    for x, y in batches(examples, batch_size, seed=seed):
        loss = objective(x, y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        after_step()
        total += float(loss.detach()) * len(y)
    return total / len(examples.y) if len(examples.y) else float("nan")


def _scalar(memory: Arrays, name: str, default: float) -> float:
    return float(np.asarray(memory[name])) if name in memory else default


def _restore(
    optimizer: torch.optim.Adam,
    parameters: Mapping[str, torch.nn.Parameter],
    memory: Arrays,
) -> None:
    for name, parameter in parameters.items():
        if f"step/{name}" in memory:
            device = str(parameter.device)  # also of the step: the update is fused
            optimizer.state[parameter] = {
                "step": to_torch(memory[f"step/{name}"], device),
                "exp_avg": to_torch(memory[f"mean/{name}"], device),
                "exp_avg_sq": to_torch(memory[f"square/{name}"], device),
            }


def _moments(
    optimizer: torch.optim.Adam, parameters: Mapping[str, torch.nn.Parameter]
) -> dict[str, Array]:
    kept: dict[str, Array] = {}
    for name, parameter in parameters.items():
        moments = optimizer.state.get(parameter, {})
        if moments:
            kept[f"step/{name}"] = to_numpy(moments["step"])
            kept[f"mean/{name}"] = to_numpy(moments["exp_avg"])
            kept[f"square/{name}"] = to_numpy(moments["exp_avg_sq"])
    return kept
