"""Plain local training from the received model: the client side of FedAvg.

McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629, Algorithm 1,
ClientUpdate; by default with Adam in place of plain SGD, as in the FedWeIT paper.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fcl_flower.algorithms.base import ClientLearner, P
from fcl_flower.core.types import Arrays, Payload, TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.privacy.randomness import secret_generator
from fcl_flower.training.feature_cache import frozen_features
from fcl_flower.training.loop import Fit, Score, StepSize, Training, fit, score
from fcl_flower.training.private import fit_dp_sgd
from fcl_flower.training.tensors import load, snapshot


class Sgd(ClientLearner[P]):
    """Minimise the task's loss; the heads of a multi-head model stay private.

    State: ``heads`` (every head so far, by name) and ``optimizer`` (of the task, empty
    at its end).
    """

    update_is_model = True

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        load(self.model, received["base"])
        heads, optimizer = self.fit(state, stage, data)
        update = Update(
            {"base": snapshot(self.model, self.model.shared_names())},
            len(data.train.y),
            self.metrics,
        )
        kept = {} if stage.ends_task else optimizer
        return {**state, "heads": heads, "optimizer": kept}, update

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        load(self.model, received["base"])
        load(self.model, state.get("heads", {}))
        self.model.eval()
        # A frozen body meets the same test samples in every evaluation.
        logits: Tensor = self.model(frozen_features(self.model, x), task)
        return logits

    def loss(
        self, logits: Tensor, labels: Tensor, rows: Tensor, hidden: Tensor
    ) -> Tensor:
        """Return the loss of a batch: the cross-entropy and `penalty`.

        Args:
            logits: shape (batch, classes).
            labels: shape (batch,).
            rows: which of the training examples are in it, shape (batch,).
            hidden: what the body makes of them now, shape (batch, features).
        """
        return cross_entropy(logits, labels) + self.penalty(rows, hidden)

    def penalty(self, rows: Tensor, hidden: Tensor) -> Tensor | float:
        """Return what is added to the cross-entropy of a batch: nothing.

        Args:
            rows: which of the training examples are in it, shape (batch,).
            hidden: what the body makes of them now, shape (batch, features).
        """
        return 0.0

    def after_step(self, step_size: StepSize) -> None:
        """Look at what a step has left, such as gradients: at nothing.

        Args:
            step_size: of the step; see there.
        """

    @property
    def seed(self) -> int:
        """Return what the order of a task's samples follows from: the run's seed."""
        return self.context.seed

    def training(self, stage: TaskStage) -> Training:
        """Return how a task is trained: as the run says.

        Args:
            stage: where the client stands.
        """
        return self.context.training

    def fit(
        self, state: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Arrays, Arrays]:
        """Train the model that is loaded; return all heads and the optimizer's state.

        Leaves the scalars for the progress display in ``metrics``.
        """
        model, task = self.model, stage.task
        load(model, state.get("heads", {}))
        own_head = set(model.head_names(task))
        shared = set(model.shared_names())
        trained = {
            name: parameter
            for name, parameter in model.named_parameters()
            if name in shared or name in own_head
        }

        head = model.heads[model.head_index(task)]
        x, labels = frozen_features(model, data.train.x), data.train.y
        if self.context.privacy.unit == "example":
            self.fit_privately(trained, Examples(x, labels), stage)
            heads = {**state.get("heads", {}), **snapshot(model, sorted(own_head))}
            return heads, {}
        numbered = Examples(torch.arange(len(labels), device=x.device), labels)
        held = Examples(frozen_features(model, data.valid.x), data.valid.y)

        def objective(rows: Tensor, y: Tensor) -> Tensor:
            model.train()
            hidden = model.body(x[rows])
            return self.loss(head(hidden), y, rows, hidden)

        def validate() -> Score:
            model.eval()
            return score(lambda x: model(x, task), held)

        job = Fit(
            parameters=trained,
            objective=objective,
            examples=numbered,
            training=self.training(stage),
            seed=self.seed,
            client=self.context.client,
            round=stage.round,
            validate=validate,
            optimizer_state={} if stage.starts_task else state.get("optimizer", {}),
            after_step=self.after_step,
        )
        done = fit(job)
        self.metrics = done.metrics()
        heads = {**state.get("heads", {}), **snapshot(model, sorted(own_head))}
        return heads, done.optimizer_state

    def fit_privately(
        self, trained: dict[str, nn.Parameter], examples: Examples, stage: TaskStage
    ) -> None:
        """Train by steps that hide each example, whatever else is trained.

        Nothing is told in ``metrics``, and nothing looks at validation examples.
        """
        model, task = self.model, stage.task
        model.train()
        nothing = torch.empty(0, dtype=torch.int64, device=self.context.device)

        def loss(leaves: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            logits = torch.func.functional_call(model, dict(leaves), (x[None], task))
            return cross_entropy(logits, y[None])

        context = self.context
        fit_dp_sgd(
            trained,
            loss,
            lambda: self.penalty(nothing, nothing),
            examples,
            self.training(stage),
            context.privacy,
            secret_generator(context.seed, "examples", context.client, stage.round),
        )
        self.metrics = {}
