"""The one local training loop, used by every algorithm's client side."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
import torch

from fcl_flower.core.seeds import derive
from fcl_flower.core.types import Arrays, TaskStage
from fcl_flower.data.examples import Examples, batches
from fcl_flower.models.seeded import seeded
from fcl_flower.training.optimizers import (
    Optimizer,
    OptimizerChoice,
    create_optimizer,
)

MINIMUM_RATE = 1e-7
Objective: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From inputs and labels to a scalar loss."""
StepSize: TypeAlias = Callable[[str], torch.Tensor]
"""From the name of a parameter that has had a gradient to what the optimizer has just
multiplied its mean gradient with, entry by entry (`Optimizer.step_size`)."""


@dataclass(frozen=True, slots=True)
class Training:
    """How a client trains, the same for every algorithm of a comparison.

    The rate is divided by ``decay`` after ``lr_patience`` epochs without a new lowest
    validation loss, and a task's training stops for good below 1e-7 (FedWeIT, appendix
    A: 3, 5 and 1e-7; the released code has a patience of 3 and never stops). In the
    paper the client then begins its next task; here it takes part untrained until the
    others do. A round may end early: after ``early_stopping_patience`` epochs without a
    validation loss below the lowest of the round (FedSeIT, table 4).

    Attributes:
        epochs: passes over the task's training data in a round, at least 1.
        batch_size: examples a step, at least 1.
        learning_rate: at the start of each task, above 0.
        lr_patience: stagnating epochs before the rate falls; 0 for a constant rate.
        decay: divisor of the rate, above 1.
        early_stopping_patience: stagnating epochs that end a round's training; 0 for
            never.
        optimizer: by which a step is taken.
        precision: ``bfloat16`` for mixed precision: what PyTorch's autocast takes for
            safe of the objective is computed in it; parameters, gradients, moments and
            scores are float32 in any case.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    lr_patience: int = 5
    decay: float = 3.0
    early_stopping_patience: int = 0
    optimizer: OptimizerChoice = field(default_factory=OptimizerChoice)
    precision: Literal["float32", "bfloat16"] = "float32"


@dataclass(frozen=True, slots=True)
class Score:
    """Mean cross-entropy and accuracy (a fraction) over a set of examples."""

    loss: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class FitResult:
    """Result of one round of local training.

    Attributes:
        optimizer_state: optimizer moments and the state of the rate; hand it to the
            next round of the same task.
        loss: mean training loss over the last epoch, NaN if nothing was trained.
        valid: the score on the validation examples after the last epoch.
        steps: of the optimizer, in this round.
    """

    optimizer_state: Arrays
    loss: float
    valid: Score
    steps: int

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
    objective: Objective,
    validate: Callable[[], Score],
    examples: Examples,
    training: Training,
    *,
    optimizer_state: Arrays,
    seed: int,
    client: int,
    stage: TaskStage,
    rates: Mapping[str, float] | None = None,
    after_step: Callable[[StepSize], None] | None = None,
) -> FitResult:
    """Minimise ``objective`` over the training examples for one round.

    Args:
        parameters: the leaves to train, by name.
        objective: inputs and labels to a scalar loss.
        validate: the score on the validation examples, for the learning rate.
        examples: the task's training examples.
        training: epochs, batch size and rate.
        optimizer_state: `FitResult.optimizer_state` of the last round of the same task;
            empty at its start.
        seed: of the run; the order of the examples depends on it, client and round.
        client: the client's partition number.
        stage: where the client stands.
        rates: factors on the learning rate by parameter name; 1 where absent.
        after_step: called after each step with its `StepSize` (proximal steps).
    """
    rate = _scalar(optimizer_state, "rate", training.learning_rate)
    of_task = _Patience(
        training.lr_patience,
        _scalar(optimizer_state, "best", np.inf),
        _scalar(optimizer_state, "stale", 0.0),
    )
    # The base has changed since the last round: a round is compared with itself.
    of_round = _Patience(training.early_stopping_patience)
    optimizer = create_optimizer(
        training.optimizer, parameters, rate, rates, fused=True
    )
    optimizer.restore(optimizer_state)
    if training.precision == "bfloat16":
        objective = _in_bfloat16(objective)
    loss, valid, steps = np.nan, None, 0
    for epoch in range(training.epochs):
        if rate < MINIMUM_RATE:
            break
        optimizer.rate = rate
        loss = _epoch(
            optimizer,
            objective,
            examples,
            training.batch_size,
            (seed, client, stage.round, epoch),
            partial(after_step, optimizer.step_size) if after_step else lambda: None,
        )
        steps += math.ceil(len(examples.y) / training.batch_size)
        valid = validate()
        if of_task.runs_out(valid.loss):
            rate /= training.decay
        if of_round.runs_out(valid.loss):
            break
    kept = optimizer.moments()
    for name, value in (
        ("rate", rate),
        ("best", of_task.best),
        ("stale", of_task.stale),
    ):
        kept[name] = np.asarray(value)
    return FitResult(kept, loss, valid or validate(), steps)


def fit_once(
    parameters: Mapping[str, torch.nn.Parameter],
    objective: Objective,
    examples: Examples,
    training: Training,
    seed: int,
) -> float:
    """Minimise ``objective`` outside of any task; return the last epoch's mean loss.

    Nothing is validated, so that the rate stays constant, and the optimizer starts
    anew.

    Args:
        parameters: the leaves to train, by name.
        objective: inputs and labels to a scalar loss.
        examples: to train on.
        training: epochs, batch size and rate.
        seed: of the order of the examples.
    """
    done = fit(
        parameters,
        objective,
        lambda: Score(np.nan, np.nan),
        examples,
        training,
        optimizer_state={},
        seed=seed,
        client=0,
        stage=TaskStage(0, 0, starts_task=True, ends_task=True),
    )
    return done.loss


@dataclass(slots=True)
class _Patience:
    """Counts epochs without a new lowest validation loss.

    Attributes:
        limit: stagnating epochs that are too many; 0 for never.
        best: lowest loss so far.
        stale: stagnating epochs so far.
    """

    limit: int
    best: float = np.inf
    stale: float = 0.0

    def runs_out(self, loss: float) -> bool:
        """Count an epoch; return whether it is one too many, and begin anew then.

        Without validation examples the loss is NaN, which says nothing.
        """
        if loss < self.best:
            self.best, self.stale = loss, 0.0
        elif not np.isnan(loss):
            self.stale += 1
            if self.stale == self.limit:
                self.stale = 0.0
                return True
        return False


def _epoch(
    optimizer: Optimizer,
    objective: Objective,
    examples: Examples,
    batch_size: int,
    place: tuple[int, int, int, int],
    after_step: Callable[[], None],
) -> float:
    seed, *where = place
    losses, sizes = list[torch.Tensor](), list[int]()
    with seeded(derive(seed, "dropout", *where)):
        for x, y in batches(examples, batch_size, derive(seed, "shuffle", *where)):
            loss = objective(x, y)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            after_step()
            losses.append(loss.detach())
            sizes.append(len(y))
    if not sizes:
        return float("nan")
    # Read once an epoch: an accelerator is waited for at each reading.
    found: list[float] = torch.stack(losses).tolist()
    total = sum(mean * size for mean, size in zip(found, sizes, strict=True))
    return total / sum(sizes)


def _in_bfloat16(objective: Objective) -> Objective:
    def lowered(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            return objective(x, y)

    return lowered


def _scalar(optimizer_state: Arrays, name: str, default: float) -> float:
    return (
        float(np.asarray(optimizer_state[name])) if name in optimizer_state else default
    )
