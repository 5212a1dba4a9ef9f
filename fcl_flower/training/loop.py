"""The local training loop of all methods, and measurements of a network.

The loop knows no algorithm: a `Fit` says what is minimised, over which parameters.
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
from fcl_flower.data.examples import Examples, batches, in_batches, rows_of
from fcl_flower.data.instructions import NO_LABEL
from fcl_flower.models.build import seeded
from fcl_flower.training.balance import balanced_order, class_weights
from fcl_flower.training.optimizers import Optimizer, OptimizerChoice
from fcl_flower.training.rates import RateSchedule

MINIMUM_RATE = 1e-7
T = TypeVar("T")
Objective: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""A function of inputs and labels that returns a scalar loss."""
StepSize: TypeAlias = Callable[[str], Tensor]
"""A function of a parameter's name that returns the size of its last step.

This is the factor of each entry's mean gradient, see `Optimizer.step_size`. The
parameter must have had a gradient.
"""


@dataclass(frozen=True, slots=True)
class Training:
    """The settings of local training, which all algorithms of a comparison share.

    The rate is divided by ``decay`` after ``lr_patience`` epochs without a new lowest
    validation loss. A task's training stops for good below 1e-7 (FedWeIT, appendix A:
    3, 5 and 1e-7; the released code has a patience of 3 and never stops). In the paper
    the client then begins its next task; here it takes part untrained until the others
    begin theirs. A round ends early after ``early_stopping_patience`` epochs without a
    validation loss below the lowest of the round (FedSeIT, table 4).

    Attributes:
        epochs: passes over the task's training data in a round, at least 1.
        batch_size: examples in a training step.
        learning_rate: rate at the start of each task, above 0.
        lr_patience: stagnating epochs before the rate falls; 0 for a constant rate.
        decay: divisor of the rate, above 1.
        early_stopping_patience: stagnating epochs that end a round; 0 for never.
        optimizer: choice of the optimizer.
        balance: balancing of classes by ``weights`` in the loss or within ``batches``;
            the validation loss then counts classes alike, too.
        precision: ``bfloat16`` for mixed precision: PyTorch's autocast computes the
            safe operations of the objective in it. Parameters, gradients, moments and
            scores are always float32.
        smallest_batch: fewest examples that a step can take; a smaller last batch joins
            the batch before. Only batch normalisation needs more than 1.
        schedule: schedule by which the rate falls over each task, beside the decay;
            None for no schedule.
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
        """Compute the rate in a round when a fraction ``done`` of it is over."""
        if self.schedule is None:
            return rate
        return rate * self.schedule.at(server_round, done)

    @property
    def balanced(self) -> bool:
        """Whether classes count alike, whatever their numbers of samples."""
        return self.balance != "none"

    def class_weights(self, labels: Tensor, classes: int) -> Tensor | None:
        """Compute the loss's class weights; None unless ``balance`` asks for them."""
        return class_weights(labels, classes) if self.balance == "weights" else None


@dataclass(frozen=True, slots=True)
class Score:
    """The mean cross-entropy and the accuracy, a fraction, over a set of examples.

    Of labels that are tokens, the cross-entropy is the mean over all tokens, in nats.
    The accuracy is then the fraction of answers of which each token is the likeliest
    one behind the right tokens before it. These are the answers that greedy decoding
    writes token by token: the exact matches.
    """

    loss: float
    accuracy: float


UNKNOWN = Score(math.nan, math.nan)
"""The score of an empty set of examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The inputs of one training: parameters, objective, examples and settings.

    Trainings outside of a task (on the server, or in second stages) leave out the last
    four attributes. Then the rate stays constant, and the optimizer starts anew.

    Attributes:
        parameters: parameters to train, by name.
        objective: function that is minimised.
        examples: training examples.
        training: settings of the training.
        seed: seed of the order of the examples, together with client and round.
        rates: factors on the learning rate by parameter name; 1 where absent.
        after_step: function that is called after each step with its `StepSize`, for
            proximal steps.
        labelled: whether labels are classes, which ``training.balance`` may balance.
        client: number of the client.
        round: round of the run, counted from 1; 0 without a schedule of the rate.
        validate: function that returns the score on the validation examples, by which
            the rate falls.
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
    """The result of one round of local training.

    Attributes:
        optimizer_state: moments, and the state of the rate, for the next round.
        loss: mean training loss over the last epoch, NaN if nothing was trained.
        valid: score on the validation examples after training.
        steps: number of training steps.
    """

    optimizer_state: Arrays
    loss: float
    valid: Score
    steps: int

    def metrics(self) -> dict[str, float]:
        """Collect the scalars for the progress display, without NaN."""
        scores = {
            "loss": self.loss,
            "valid_loss": self.valid.loss,
            "valid_accuracy": self.valid.accuracy,
        }
        return {name: value for name, value in scores.items() if not np.isnan(value)}


@dataclass(slots=True)
class _Patience:
    limit: int
    best: float = np.inf
    stale: float = 0.0

    def runs_out(self, loss: float) -> bool:
        """Take an epoch's validation loss; return whether patience ends with it.

        Patience ends after ``limit`` epochs without a new lowest loss. A NaN, which
        means that there are no validation examples, does not count.
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
    defaults = {"rate": training.learning_rate, "best": np.inf, "stale": 0.0}
    rate, best, stale = (
        float(np.asarray(state.get(name, start))) for name, start in defaults.items()
    )
    of_task = _Patience(training.lr_patience, best, stale)
    # Losses of earlier rounds do not count, since the base has changed since then.
    of_round = _Patience(training.early_stopping_patience)
    optimizer = Optimizer(
        training.optimizer, job.parameters, rate, job.rates, fused=True
    )
    optimizer.restore(state)
    loss, valid, steps = np.nan, None, 0
    for epoch in range(training.epochs):
        if rate < MINIMUM_RATE:
            break
        optimizer.rate = training.scheduled(rate, job.round, epoch / training.epochs)
        loss, epoch_steps = _epoch(job, optimizer, epoch)
        steps += epoch_steps
        valid = job.validate()
        if of_task.runs_out(valid.loss):
            rate /= training.decay
        if of_round.runs_out(valid.loss):
            break
    new_state = optimizer.moments()
    optimizer.zero_grad()  # gradients take as many bytes as the model
    new_state["rate"] = np.asarray(rate)
    new_state["best"] = np.asarray(of_task.best)
    new_state["stale"] = np.asarray(of_task.stale)
    return FitResult(new_state, loss, valid or job.validate(), steps)


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
    # Losses are read once an epoch, since each read waits for the accelerator.
    means: list[float] = torch.stack(losses).tolist()
    total = sum(mean * size for mean, size in zip(means, sizes, strict=True))
    return total / sum(sizes), len(sizes)


def _batches(job: Fit, seed: int) -> Iterator[Examples]:
    size, smallest = job.training.batch_size, job.training.smallest_batch
    if not (job.labelled and job.training.balance == "batches"):
        yield from batches(job.examples, size, seed, smallest)
        return
    y = job.examples.y
    order = balanced_order(y, torch.Generator().manual_seed(seed))
    for chosen in in_batches(order, size, smallest):
        yield rows_of(job.examples, chosen)


# ---- measuring


def score(
    predict: Callable[[Tensor], Tensor], examples: Examples, *, balanced: bool = False
) -> Score:
    """Measure loss and accuracy of a function from inputs to logits.

    With ``balanced`` the loss is the mean of the losses of the classes that occur.
    """
    loss, hits, count = 0.0, 0, len(examples.y)
    labels = int((examples.y != NO_LABEL).sum())
    weights: Tensor | None = None
    with torch.no_grad():
        # The logits of an answer have the size of a vocabulary for each of its tokens.
        for x, y in batches(examples, 512 if examples.y.ndim == 1 else 16, seed=None):
            logits = predict(x)
            if balanced and weights is None:
                weights = class_weights(examples.y, logits.shape[1])
            loss += float(cross_entropy(logits, y, weights, reduction="sum"))
            right = (logits.argmax(1) == y) | (y == NO_LABEL)
            hits += int(right.reshape(len(y), -1).all(1).sum())
    return Score(loss / labels, hits / count) if count else UNKNOWN


def most_confident(by_task: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Choose for each sample the task whose head is most confident, and its class.

    Args:
        by_task: class probabilities by each task's head, shape (N, classes of the
            task).

    Returns:
        tasks, and indices of the classes in their heads, each of shape (N,). The first
        of equally confident heads wins.
    """
    maxima = [probabilities.max(1) for probabilities in by_task]
    best, places = maxima[0]
    tasks = torch.zeros_like(places)
    for task, (values, indices) in enumerate(maxima):
        better = values > best
        best = torch.where(better, values, best)
        places = torch.where(better, indices, places)
        tasks = torch.where(better, task, tasks)
    return tasks, places


class ClassCounts:
    """A function from inputs to logits that counts its predictions by class."""

    def __init__(self, predict: Callable[[Tensor], Tensor]) -> None:
        self._predict = predict
        self._answers: list[Tensor] = []

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the logits of a batch, and keep the predicted classes."""
        logits = self._predict(x)
        self._answers.append(logits.argmax(1))
        return logits

    def by_class(self, labels: Tensor, classes: int) -> list[list[int]]:
        """Count right predictions, samples and predictions of each class.

        Args:
            labels: labels of all samples, in the order in which they were predicted.
            classes: number of the network's classes.

        Returns:
            counts of shape (3, classes).
        """
        answers = torch.cat([labels[:0], *self._answers])
        right = labels[answers == labels]
        return [
            torch.bincount(numbers, minlength=classes).tolist()
            for numbers in (right, labels, answers)
        ]


_ATEN = torch.ops.aten
_ON_A_CPU = {
    _ATEN._scaled_dot_product_flash_attention_for_cpu: unwrap(sdpa_flop),
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: unwrap(
        sdpa_backward_flop
    ),
}
"""The operations of fused attention on a CPU, which PyTorch's counter lacks."""


def multiply_adds(call: Callable[[], T]) -> tuple[T, int]:
    """Call a function, and count PyTorch's multiply-adds within the call.

    Matrix products, convolutions and attention count, forward and backward; other
    operations of networks are small beside them. A product with its sum counts as one.
    The count takes some milliseconds a training step, and changes no result.

    Returns:
        the call's result, and the count.
    """
    with FlopCounterMode(display=False, custom_mapping=_ON_A_CPU) as counter:
        result = call()
    return result, counter.get_total_flops() // 2
