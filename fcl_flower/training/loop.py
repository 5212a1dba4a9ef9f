"""The one local training loop, and what is measured of a network.

Nothing here knows an algorithm: a `Fit` says what is minimised, over which leaves.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import unwrap
from typing import Literal, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop, sdpa_flop

from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Arrays
from fcl_flower.data.examples import Examples, batches, in_batches
from fcl_flower.models.build import seeded
from fcl_flower.training.balance import balanced_order, class_weights
from fcl_flower.training.optimizers import Optimizer, OptimizerChoice
from fcl_flower.training.rates import RateSchedule

MINIMUM_RATE = 1e-7
T = TypeVar("T")
Objective: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""From inputs and labels to a scalar loss."""
StepSize: TypeAlias = Callable[[str], Tensor]
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
        learning_rate: at the start of each task, above 0.
        lr_patience: stagnating epochs before the rate falls; 0 for a constant rate.
        decay: divisor of the rate, above 1.
        schedule: by which the rate falls over each task, beside what patience does;
            None for no other way.
        early_stopping_patience: stagnating epochs that end a round; 0 for never.
        balance: of classes, by their ``weights`` in the loss or within ``batches``; the
            validation loss then counts them alike too.
        precision: ``bfloat16`` for mixed precision: what PyTorch's autocast takes for
            safe of the objective is computed in it; parameters, gradients, moments and
            scores are float32 in any case.
        smallest_batch: fewest examples that a step can take; a last batch of fewer
            joins the one before. More than 1 for batch normalisation alone.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    lr_patience: int = 5
    decay: float = 3.0
    early_stopping_patience: int = 0
    optimizer: OptimizerChoice = field(default_factory=OptimizerChoice)
    balance: Literal["none", "weights", "batches"] = "none"
    precision: Literal["float32", "bfloat16"] = "float32"
    smallest_batch: int = 1
    schedule: RateSchedule | None = None

    def scheduled(self, rate: float, server_round: int, done: float) -> float:
        """Compute the rate in a round of which a fraction ``done`` is over."""
        if self.schedule is None:
            return rate
        return rate * self.schedule.at(server_round, done)

    @property
    def balanced(self) -> bool:
        """Whether classes count alike, however many samples they have."""
        return self.balance != "none"

    def class_weights(self, labels: Tensor, classes: int) -> Tensor | None:
        """Compute the weights of the loss where it is to have some; None elsewhere."""
        return class_weights(labels, classes) if self.balance == "weights" else None


@dataclass(frozen=True, slots=True)
class Score:
    """Mean cross-entropy and accuracy (a fraction) over a set of examples."""

    loss: float
    accuracy: float


UNKNOWN = Score(math.nan, math.nan)
"""That of no examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A training: what is minimised, over which leaves, on which examples.

    Without a task (server sides, second stages) the four last are left out: the rate
    stays constant, and the optimizer starts anew.

    Attributes:
        parameters: the leaves to train, by name.
        seed: of the order of the examples, with client and round.
        rates: factors on the learning rate by parameter name; 1 where absent.
        after_step: called after each step with its `StepSize` (proximal steps).
        labelled: the labels are classes, which ``training.balance`` may balance.
        round: of the federation, counted from 1; 0 without a schedule of the rate.
        validate: the score on the validation examples, by which the rate falls.
        optimizer_state: `FitResult.optimizer_state` of the last round of the same task;
            empty at its start.
    """

    parameters: Mapping[str, torch.nn.Parameter]
    objective: Objective
    examples: Examples
    training: Training
    seed: int
    rates: Mapping[str, float] = field(default_factory=dict)
    after_step: Callable[[StepSize], None] | None = None
    labelled: bool = False
    client: int = 0
    round: int = 0
    validate: Callable[[], Score] = lambda: UNKNOWN
    optimizer_state: Arrays = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FitResult:
    """Result of one round of local training.

    Attributes:
        optimizer_state: moments, and the state of the rate, for the next round.
        loss: mean training loss over the last epoch, NaN if nothing was trained.
    """

    optimizer_state: Arrays
    loss: float
    valid: Score
    steps: int

    def metrics(self) -> dict[str, float]:
        """Collect the scalars for the progress display; a NaN is left out."""
        found = {
            "loss": self.loss,
            "valid_loss": self.valid.loss,
            "valid_accuracy": self.valid.accuracy,
        }
        return {name: value for name, value in found.items() if not np.isnan(value)}


@dataclass(slots=True)
class _Patience:
    limit: int
    best: float = np.inf
    stale: float = 0.0

    def runs_out(self, loss: float) -> bool:
        """Count an epoch without a new lowest validation loss; is it one too many?

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


def fit(job: Fit) -> FitResult:
    """Minimise an objective over the training examples for one round."""
    training, state = job.training, job.optimizer_state
    known = {"rate": training.learning_rate, "best": np.inf, "stale": 0.0}
    rate, best, stale = (
        float(np.asarray(state.get(name, start))) for name, start in known.items()
    )
    of_task = _Patience(training.lr_patience, best, stale)
    # The base has changed since the last round: a round is compared with itself.
    of_round = _Patience(training.early_stopping_patience)
    optimizer = Optimizer(
        training.optimizer, job.parameters, rate, job.rates, fused=True
    )
    optimizer.restore(state)
    loss, valid, steps = np.nan, None, 0
    for epoch in range(training.epochs):
        if rate < MINIMUM_RATE:
            break
        done = epoch / training.epochs
        optimizer.rate = training.scheduled(rate, job.round, done)
        loss, taken = _epoch(job, optimizer, epoch)
        steps += taken
        valid = job.validate()
        if of_task.runs_out(valid.loss):
            rate /= training.decay
        if of_round.runs_out(valid.loss):
            break
    after = optimizer.moments()
    optimizer.zero_grad()  # as many bytes as the model
    after["rate"] = np.asarray(rate)
    after["best"], after["stale"] = np.asarray(of_task.best), np.asarray(of_task.stale)
    return FitResult(after, loss, valid or job.validate(), steps)


def _epoch(job: Fit, optimizer: Optimizer, epoch: int) -> tuple[float, int]:
    where, training = (job.client, job.round, epoch), job.training
    mixed = training.precision == "bfloat16"
    losses, sizes = list[Tensor](), list[int]()
    with seeded(derive(job.seed, "dropout", *where)):
        for x, y in _batches(job, derive(job.seed, "shuffle", *where)):
            with torch.autocast(x.device.type, torch.bfloat16, enabled=mixed):
                loss = job.objective(x, y)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if job.after_step:
                job.after_step(optimizer.step_size)
            losses.append(loss.detach())
            sizes.append(len(y))
    if not sizes:
        return float("nan"), 0
    # Read once an epoch: an accelerator is waited for at each reading.
    found: list[float] = torch.stack(losses).tolist()
    total = sum(mean * size for mean, size in zip(found, sizes, strict=True))
    return total / sum(sizes), len(sizes)


def _batches(job: Fit, seed: int) -> Iterator[Examples]:
    size, smallest = job.training.batch_size, job.training.smallest_batch
    if not (job.labelled and job.training.balance == "batches"):
        yield from batches(job.examples, size, seed, smallest)
        return
    x, y = job.examples
    order = balanced_order(y, torch.Generator().manual_seed(seed))
    for chosen in in_batches(order, size, smallest):
        yield Examples(x[chosen], y[chosen])


# ---- measuring


def score(
    predict: Callable[[Tensor], Tensor], examples: Examples, *, balanced: bool = False
) -> Score:
    """Measure loss and accuracy of a prediction (inputs to logits).

    With ``balanced`` the loss is the mean over the classes that occur of each one's.
    """
    loss, hits, seen = 0.0, 0, len(examples.y)
    weights: Tensor | None = None
    with torch.no_grad():
        for x, y in batches(examples, 512, seed=None):
            logits = predict(x)
            if balanced and weights is None:
                weights = class_weights(examples.y, logits.shape[1])
            loss += float(cross_entropy(logits, y, weights, reduction="sum"))
            hits += int((logits.argmax(1) == y).sum())
    return Score(loss / seen, hits / seen) if seen else UNKNOWN


def most_confident(by_task: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Choose for each sample the head that gives a class the largest probability.

    Args:
        by_task: the classes' probabilities by each task's head, each of shape
            (N, classes of the task).

    Returns:
        Tasks and places of their classes, each of shape (N,); the first of equals.
    """
    found = [probabilities.max(1) for probabilities in by_task]
    best, places = found[0]
    tasks = torch.zeros_like(places)
    for task, (values, of_task) in enumerate(found):
        better = values > best
        best = torch.where(better, values, best)
        places = torch.where(better, of_task, places)
        tasks = torch.where(better, task, tasks)
    return tasks, places


class ClassCounts:
    """A prediction (inputs to logits) that counts its answers by class."""

    def __init__(self, predict: Callable[[Tensor], Tensor]) -> None:
        self._predict = predict
        self._given: list[Tensor] = []

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the logits of a batch, and keep the labels that they stand for."""
        logits = self._predict(x)
        self._given.append(logits.argmax(1))
        return logits

    def by_class(self, labels: Tensor, classes: int) -> list[list[int]]:
        """Count how many samples of each class were right, there, and answered.

        ``labels`` are those of all samples in the order in which they were shown, of a
        network with so many ``classes``. The shape is (3, classes).
        """
        answers = torch.cat([labels[:0], *self._given])
        right = labels[answers == labels]
        return [
            torch.bincount(found, minlength=classes).tolist()
            for found in (right, labels, answers)
        ]


_ATEN = torch.ops.aten
_ON_A_CPU = {
    _ATEN._scaled_dot_product_flash_attention_for_cpu: unwrap(sdpa_flop),
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: unwrap(
        sdpa_backward_flop
    ),
}
"""Fused attention on a CPU, which PyTorch's counter does not know."""


def multiply_adds(call: Callable[[], T]) -> tuple[T, int]:
    """Make a call, and count the multiply-adds of PyTorch within it.

    Those of matrix products, convolutions and attention, forward and backward, one for
    a product and its sum; all else that networks do is small beside them. Each
    operation is looked at, which takes some milliseconds a training step, and changes
    no result.
    """
    with FlopCounterMode(display=False, custom_mapping=_ON_A_CPU) as counter:
        found = call()
    return found, counter.get_total_flops() // 2
