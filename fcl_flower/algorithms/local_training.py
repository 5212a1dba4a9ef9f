"""Local training from a received model, with places where methods differ.

McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629, Algorithm 1,
ClientUpdate; by default with Adam in place of plain SGD, as in the FedWeIT paper.
Unchanged, it is the client side of FedAvg.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fcl_flower.algorithms.augmentation import TrainingInputs, training_inputs
from fcl_flower.algorithms.base import ClientContext, ClientLearner, P
from fcl_flower.core.types import Arrays, Payload, TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData
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


class Turn(NamedTuple):
    """The inputs of a client's round of training; nothing in them changes in place.

    Attributes:
        state: the client's private state before the round.
        received: the groups that the server has sent.
        stage: the client's stage.
        data: the client's samples of the task.
    """

    state: Payload
    received: Payload
    stage: TaskStage
    data: TaskData


class Fitted(NamedTuple):
    """The result of a training: all private heads, the optimizer's state, scalars."""

    heads: Arrays
    optimizer: Arrays
    metrics: Mapping[str, float]


class LocalTraining(ClientLearner[P]):
    """A learner that minimises the task's loss; heads of several tasks stay private.

    A round calls `begin`, then `fit` from the received model, then `finish`. A method
    changes these two brackets, and four hooks of the training between them: `loss`,
    `penalty`, `after_step` and `training`. A method that calls ``super()`` in each can
    be joined with another by inheriting from both.

    State: ``heads`` (every head so far, by name) and ``optimizer`` (of the task, empty
    at its end).

    Attributes:
        weights: the weights of classes in the loss, shape (classes,); None weighs all
            alike. A `loss` that ignores them takes ``weights`` out of ``balances``.
        seen: the inputs of the body in the current batch.
    """

    update_is_model = True
    balances: ClassVar[Collection[str]] = ("weights", "batches")
    augments = True
    weights: Tensor | None = None
    seen: Tensor

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        turn = Turn(state, received, stage, data)
        examples = self.begin(turn)
        load(self.model, received["base"])
        heads, optimizer, metrics = self.fit(turn, examples)
        kept = {"heads": heads, "optimizer": {} if stage.ends_task else optimizer}
        base = snapshot(self.model, self.shared(received))
        update = Update({"base": base}, len(examples.y), metrics)
        return self.finish(turn, {**state, **kept}, update)

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        load(self.model, received["base"])
        load(self.model, state.get("heads", {}))
        self.model.eval()
        logits: Tensor = self.model(self.inputs(x), task)
        return logits

    # ---- the two brackets

    def begin(self, turn: Turn) -> Examples:
        """Prepare a round; return the examples to train on: those of the task.

        The method may leave any tensors in the model.
        """
        return turn.data.train

    def finish(
        self, turn: Turn, state: Payload, update: Update
    ) -> tuple[Payload, Update]:
        """Complete the next private state and the update after a round's training.

        A method adds its own groups to both. The model has the tensors of the update.
        """
        return state, update

    # ---- the hooks of training

    def loss(
        self, logits: Tensor, labels: Tensor, rows: Tensor, hidden: Tensor
    ) -> Tensor:
        """Compute the loss of a batch: the cross-entropy and `penalty`.

        Args:
            logits: shape (batch, classes).
            labels: shape (batch,).
            rows: the batch's places among the training examples, shape (batch,).
            hidden: the body's output for the batch, shape (batch, features).
        """
        entropy = mean_cross_entropy(logits, labels, self.weights)
        return entropy + self.penalty(rows, hidden)

    def penalty(self, rows: Tensor, hidden: Tensor) -> Tensor | float:
        """Compute what `loss` adds to the cross-entropy of a batch: here nothing."""
        return 0.0

    def after_step(self, step_size: StepSize) -> None:
        """Use what a step has left, such as gradients; here nothing."""

    def training(self, stage: TaskStage) -> Training:
        """Choose epochs, batch size and learning rate of a round: those of the run."""
        return self.context.training

    def shared(self, received: Payload) -> tuple[str, ...]:
        """List the tensors that a round trains and sends: all that the model shares."""
        return self.model.shared_names()

    # ---- the parts that methods leave as they are
    def inputs(self, x: Tensor) -> Tensor:
        """Compute samples as far as frozen parts of the body do, once in a process."""
        return frozen_features(self.model, x)

    def fit(self, turn: Turn, examples: Examples) -> Fitted:
        """Train the model that is loaded."""
        model, (state, received, stage, data) = self.model, turn
        heads = state.get("heads", {})
        load(model, heads)
        own_head = set(model.head_names(stage.task))
        names = own_head.union(self.shared(received))
        trained = {n: p for n, p in model.named_parameters() if n in names}
        inputs = training_inputs(model, examples.x, self.context, stage.round)
        if self.context.privacy.unit == "example":
            self._fit_privately(trained, inputs, examples.y, stage)
            return Fitted({**heads, **snapshot(model, sorted(own_head))}, {}, {})
        training = self.training(stage)
        self.weights = training.class_weights(examples.y, model.classes)
        held = Examples(self.inputs(data.valid.x), data.valid.y)
        head = model.heads[model.head_index(stage.task)]

        def objective(rows: Tensor, y: Tensor) -> Tensor:
            model.train()
            self.seen = inputs.see(inputs.x[rows])
            hidden = model.body(self.seen)
            return self.loss(head(hidden), y, rows, hidden)

        def validate() -> Score:
            model.eval()
            predict = partial(model, task=stage.task)
            return score(predict, held, balanced=training.balanced)

        rows = torch.arange(len(examples.y), device=examples.x.device)
        job = Fit(
            parameters=trained,
            objective=objective,
            examples=Examples(rows, examples.y),
            training=training,
            labelled=True,
            seed=self.context.seed,
            after_step=self.after_step,
            client=self.context.client,
            round=stage.round,
            validate=validate,
            optimizer_state={} if stage.starts_task else state.get("optimizer", {}),
        )
        done = fit(job)
        heads = {**heads, **snapshot(model, sorted(own_head))}
        return Fitted(heads, done.optimizer_state, done.metrics())

    def _fit_privately(
        self,
        trained: dict[str, nn.Parameter],
        inputs: TrainingInputs,
        labels: Tensor,
        stage: TaskStage,
    ) -> None:
        """Train by steps that hide each example, without validation or metrics."""
        model, context = self.model, self.context
        model.train()
        nothing = torch.empty(0, dtype=torch.int64, device=context.device)

        def loss(leaves: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            inputs = x[None], stage.task
            logits = torch.func.functional_call(model, dict(leaves), inputs)
            return cross_entropy(logits, y[None])

        fit_dp_sgd(
            trained,
            loss,
            lambda: self.penalty(nothing, nothing),
            Examples(inputs.x, labels),
            self.training(stage),
            context.privacy,
            secret_generator(context.seed, "examples", context.client, stage.round),
            stage.round,
            inputs.see,
        )


def fit_classes(
    model: MultiHeadModel,
    trained: Collection[str],
    classes: Tensor,
    examples: Examples,
    valid: Examples,
    context: ClientContext,
    stage: TaskStage,
    penalty: Callable[[], Tensor | float] = lambda: 0.0,
) -> FitResult:
    """Train parameters by the cross-entropy among some classes of a single head.

    Labels are among ``classes``, which ascend. Validation samples of other classes are
    left out. ``trained`` names the parameters. The optimizer starts anew. ``penalty``
    is added to the loss of every batch.
    """

    def objective(x: Tensor, y: Tensor) -> Tensor:
        model.train()
        logits = model(inputs.see(x), 0)[:, classes]
        return mean_cross_entropy(logits, y, weights) + penalty()

    def validate() -> Score:
        model.eval()
        balanced = context.training.balanced
        return score(lambda x: model(x, 0)[:, classes], held, balanced=balanced)

    inputs = training_inputs(model, examples.x, context, stage.round)
    seen = torch.isin(valid.y, classes)
    x, y = frozen_features(model, valid.x)[seen], valid.y[seen]
    held = Examples(x, torch.searchsorted(classes, y))
    targets = torch.searchsorted(classes, examples.y)
    weights = context.training.class_weights(targets, len(classes))
    job = Fit(
        parameters={n: p for n, p in model.named_parameters() if n in trained},
        objective=objective,
        examples=Examples(inputs.x, targets),
        training=context.training,
        labelled=True,
        seed=context.seed,
        client=context.client,
        round=stage.round,
        validate=validate,
    )
    return fit(job)
