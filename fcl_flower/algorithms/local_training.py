"""Local training from a received model: the client side of FedAvg, for most methods.

McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629, Algorithm 1,
ClientUpdate; by default with Adam in place of plain SGD, as in the FedWeIT paper.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fcl_flower.algorithms.augmentation import TrainingInputs, training_inputs
from fcl_flower.algorithms.base import ClientLearner, P
from fcl_flower.algorithms.base import Turn as Turn
from fcl_flower.core.types import Arrays, Payload, TaskStage, Update
from fcl_flower.data.examples import Examples
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.privacy.mechanism import secret_generator
from fcl_flower.training.balance import mean_cross_entropy
from fcl_flower.training.feature_cache import frozen_features
from fcl_flower.training.loop import (
    Fit,
    FitResult,
    Score,
    StepSize,
    Training,
    fit,
    score,
)
from fcl_flower.training.private import fit_dp_sgd
from fcl_flower.training.tensors import load, snapshot


class Batch(NamedTuple):
    """A batch of training examples and the model's outputs for it.

    Attributes:
        inputs: the body's inputs, shape (batch, ...).
        features: the body's outputs, shape (batch, features).
        logits: the head's outputs, shape (batch, classes).
        labels: int64, shape (batch,).
        rows: the batch's places among the training examples, shape (batch,).
        weights: the weights of classes, shape (classes,); None weighs all alike.
    """

    inputs: Tensor
    features: Tensor
    logits: Tensor
    labels: Tensor
    rows: Tensor
    weights: Tensor | None

    def cross_entropy(self) -> Tensor:
        """Compute the mean cross-entropy, with the weights of classes."""
        return mean_cross_entropy(self.logits, self.labels, self.weights)


Loss: TypeAlias = Callable[[Batch], Tensor]
Penalty: TypeAlias = Callable[[], Tensor | float]
"""A function of the model's present weights; its value is added to the loss."""


class LocalTraining(ClientLearner[P]):
    """A learner that minimises the task's loss; heads of several tasks stay private.

    A method of its own writes `train` around `fit_locally`: what comes before the
    training, the loss and penalties of the training, and what comes after it.

    State: ``heads`` (every head so far, by name) and ``optimizer`` (of the task, empty
    at its end).
    """

    update_is_model = True
    balances: ClassVar[Collection[str]] = ("weights", "batches")
    augments = True

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        return self.fit_locally(turn)

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        load(self.model, received["base"])
        load(self.model, state.get("heads", {}))
        self.model.eval()
        logits: Tensor = self.model(frozen_features(self.model, x), task)
        return logits

    def fit_locally(
        self,
        turn: Turn,
        examples: Examples | None = None,
        *,
        loss: Loss = Batch.cross_entropy,
        penalties: Sequence[Penalty] = (),
        after_step: Callable[[StepSize], None] | None = None,
        training: Training | None = None,
        trained: Collection[str] | None = None,
    ) -> tuple[Payload, Update]:
        """Train the received ``base`` and the task's head for one round.

        Args:
            turn: the inputs of the round.
            examples: the examples to train on; None for those of the task.
            loss: the loss of a batch. Where each example has to be hidden, it is the
                cross-entropy.
            penalties: what is added to the loss of every batch.
            after_step: uses what a step has left, such as gradients.
            training: epochs, batch size and learning rate; None for those of the run.
            trained: the shared tensors to train and to send; None for all.

        Returns:
            the next private state: ``turn.state`` with new ``heads`` and ``optimizer``.
            And the update, with the group ``base``. The model has the update's tensors.
        """
        model, context, stage = self.model, self.context, turn.stage
        x, y = turn.data.train if examples is None else examples
        training = training or context.training
        shared = model.shared_names() if trained is None else trained
        own_head, heads = model.head_names(stage.task), turn.state.get("heads", {})
        load(model, turn.received["base"])
        load(model, heads)
        names = {*own_head, *shared}
        parameters = {n: p for n, p in model.named_parameters() if n in names}
        inputs = training_inputs(model, x, context, stage.round)
        head = model.heads[model.head_index(stage.task)]

        def penalty() -> Tensor | float:
            return sum(term() for term in penalties)

        def objective(rows: Tensor, labels: Tensor) -> Tensor:
            model.train()
            seen = inputs.at(rows)
            features = model.body(seen)
            batch = Batch(seen, features, head(features), labels, rows, weights)
            return loss(batch) + penalty()

        def validate() -> Score:
            model.eval()
            predict = partial(model, task=stage.task)
            return score(predict, held, balanced=training.balanced)

        optimizer: Arrays = {}
        metrics: Mapping[str, float] = {}
        if context.privacy.unit == "example":
            self._fit_privately(parameters, penalty, inputs, y, stage, training)
        else:
            weights = training.class_weights(y, model.classes)
            held = _frozen(model, turn.data.valid)
            job = Fit(
                parameters=parameters,
                objective=objective,
                examples=Examples(torch.arange(len(y), device=x.device), y),
                training=training,
                labelled=True,
                seed=context.seed,
                after_step=after_step,
                client=context.client,
                round=stage.round,
                validate=validate,
                optimizer_state=(
                    {} if stage.starts_task else turn.state.get("optimizer", {})
                ),
            )
            result = fit(job)
            optimizer, metrics = result.optimizer_state, result.metrics()
        heads = {**heads, **snapshot(model, sorted(own_head))}
        optimizer = {} if stage.ends_task else optimizer
        state = {**turn.state, "heads": heads, "optimizer": optimizer}
        return state, Update({"base": snapshot(model, shared)}, len(y), metrics)

    def _fit_privately(
        self,
        parameters: Mapping[str, nn.Parameter],
        penalty: Penalty,
        inputs: TrainingInputs,
        labels: Tensor,
        stage: TaskStage,
        training: Training,
    ) -> None:
        """Train by steps that hide each example, without validation or metrics."""
        model, context = self.model, self.context
        model.train()

        def loss(weights: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            call = x[None], stage.task
            logits = torch.func.functional_call(model, dict(weights), call)
            return cross_entropy(logits, y[None])

        fit_dp_sgd(
            parameters,
            loss,
            penalty,
            Examples(inputs.x, labels),
            training,
            context.privacy,
            secret_generator(context.seed, "examples", context.client, stage.round),
            stage.round,
            inputs.see,
        )


def fit_classes(
    learner: ClientLearner[P],
    turn: Turn,
    trained: Collection[str],
    classes: Tensor | None,
    penalty: Penalty = lambda: 0.0,
) -> FitResult:
    """Train a learner's model by the cross-entropy among some classes of a single head.

    Labels are among ``classes``, which ascend. Validation samples of other classes are
    left out. Without ``classes`` all count, and labels may be tokens. ``trained`` names
    the parameters. The optimizer starts anew. ``penalty`` is added to the loss of every
    batch.
    """
    model, context, stage = learner.model, learner.context, turn.stage
    training, (x, targets) = context.training, turn.data.train

    def logits(x: Tensor) -> Tensor:
        all_classes: Tensor = model(x, 0)
        return all_classes if classes is None else all_classes[:, classes]

    def objective(x: Tensor, y: Tensor) -> Tensor:
        model.train()
        return mean_cross_entropy(logits(inputs.see(x)), y, weights) + penalty()

    def validate() -> Score:
        model.eval()
        return score(logits, held, balanced=training.balanced)

    inputs = training_inputs(model, x, context, stage.round)
    held, weights = _frozen(model, turn.data.valid), None
    if classes is not None:
        seen = torch.isin(held.y, classes)
        held = Examples(held.x[seen], torch.searchsorted(classes, held.y[seen]))
        targets = torch.searchsorted(classes, targets)
        weights = training.class_weights(targets, len(classes))
    job = Fit(
        parameters={n: p for n, p in model.named_parameters() if n in trained},
        objective=objective,
        examples=Examples(inputs.x, targets),
        training=training,
        labelled=True,
        seed=context.seed,
        client=context.client,
        round=stage.round,
        validate=validate,
    )
    return fit(job)


def _frozen(model: MultiHeadModel, examples: Examples) -> Examples:
    return Examples(frozen_features(model, examples.x), examples.y)
