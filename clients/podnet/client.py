"""PODNet: what a network sees of a sample may not move far, at any of its stages.

Douillard et al., ECCV 2020, https://arxiv.org/abs/2004.13513, federated by averaging as
FedET's tables have it (Liu et al., IJCAI 2023, section 4.1): the old model is the
global one that came with the task. What follows the authors' code, where the paper
leaves it open: proxies of old classes rest while a task is trained, and the balanced
fine-tuning after it trains the proxies alone. They draw the proxies of a new class from
the k-means of its features; here they are random and the same for all clients, since
the centres of two clients have no common order in which they could be averaged.
"""

import copy
import math
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from clients.lwf.teacher import MODEL, Teacher, outputs
from clients.podnet.local_similarity import LocalSimilarity, margin_loss
from clients.podnet.pooled_outputs import (
    flat_distance,
    spatial_distance,
    stage_outputs,
)
from clients.replay.buffer import replay_samples
from clients.replay.memory import remember_task
from fcl_flower.algorithms.hooks import ReplacesHeads
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.config.parsing import Params
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Arrays, Payload, TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData, concat
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.feature_cache import frozen_features
from fcl_flower.training.loop import Fit, fit
from fcl_flower.training.tensors import load, snapshot, to_torch
from strategies.podnet import PodNetParams

BODY = "body."
FINETUNE_RATE = 0.5
"""Learning rate of the tuning as a multiple of the usual one."""


class PodNet(LocalTraining[PodNetParams], ReplacesHeads):
    """Minimise ``margin_loss + sqrt(seen / new) * (lambda_c spatial + lambda_f flat)``.

    Seen and new are numbers of classes; there is no distillation in a client's first
    task. Trained on are the task's samples and those of the memory together.

    State beside that of `LocalTraining`: that of `Teacher`, and ``memory``, see
    `clients.replay.memory`, to which a task's samples are added at its end.
    """

    temporary = (*LocalTraining.temporary, MODEL)

    @override
    @classmethod
    def replace_heads(cls, model: MultiHeadModel, params: Params) -> None:
        given = cast(PodNetParams, params)
        model.heads = nn.ModuleList(
            LocalSimilarity(model.features, model.classes, given.proxies, given.scale)
            for _ in model.heads
        )

    @property
    def head(self) -> LocalSimilarity:
        """Return the classifier."""
        return cast(LocalSimilarity, self.model.heads[0])

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        memory = state.get("memory", {})
        old = replay_samples(memory, self.context.device, without=stage.task)
        train = concat([data.train, old])
        teacher = Teacher.of_task(state, received, stage, self.model, data.train.y)
        self._prepare(teacher)
        self._x = frozen_features(self.model, train.x)
        seen = TaskData(train, data.valid, data.test, data.classes)
        with stage_outputs(self.model.body) as self._maps:
            state, update = super().train(state, received, stage, seen)
        params, model, context = self.params, self.model, self.context
        memory = remember_task(memory, data.train, params, model, context, stage)
        if stage.ends_task and teacher.teaches:
            update = self._finetune(memory, update, stage.task)
        return {**state, **teacher.kept(stage), "memory": memory}, update

    @override
    def loss(
        self, logits: Tensor, labels: Tensor, rows: Tensor, hidden: Tensor
    ) -> Tensor:
        margin = self.params.margin * self.head.scale
        return margin_loss(logits, labels, margin) + self.penalty(rows, hidden)

    @override
    def penalty(self, rows: Tensor, hidden: Tensor) -> Tensor | float:
        if self._old_body is None:
            return 0.0
        with torch.no_grad(), stage_outputs(self._old_body) as old_maps:
            old_hidden = self._old_body(self._x[rows])
        spatial = spatial_distance(self._maps, old_maps)
        flat = flat_distance(hidden, old_hidden)
        params = self.params
        total = params.spatial_strength * spatial + params.flat_strength * flat
        return self._weight * total

    def _prepare(self, teacher: Teacher) -> None:
        """Take from a teacher what a round needs: body, weight and what rests."""
        self._old_body: nn.Module | None = None
        self.head.resting = None
        if not teacher.teaches:
            return
        # A class that comes again is learned again.
        resting = np.setdiff1d(teacher.old, teacher.new)
        self.head.resting = to_torch(
            np.isin(np.arange(self.model.classes), resting), self.context.device
        )
        self._weight = math.sqrt(len(teacher.known) / max(1, len(teacher.new)))
        self._old_body = copy.deepcopy(self.model.body).eval()
        load(self._old_body, _of_body(teacher.base))

    def _finetune(self, memory: Arrays, update: Update, task: int) -> Update:
        """Return the update after training the proxies on the kept samples."""
        context, params, head = self.context, self.params, self.head
        kept = replay_samples(memory, context.device)
        if not len(kept.y) or not params.finetune_epochs:
            return update
        head.resting = None
        margin = params.margin * head.scale.detach()
        training = replace(
            context.training,
            epochs=params.finetune_epochs,
            learning_rate=FINETUNE_RATE * context.training.learning_rate,
        )
        job = Fit(
            parameters={"proxies": head.proxies},
            objective=lambda hidden, y: margin_loss(head(hidden), y, margin),
            examples=Examples(outputs(self.model, kept).hidden, kept.y),
            training=training,
            seed=derive(context.seed, "finetune", context.client, task),
        )
        fit(job)
        learned = snapshot(self.model, self.model.shared_names())
        return replace(update, payload={"base": learned})


def _of_body(base: Arrays) -> Arrays:
    """Return the tensors of the body alone, by their names in it."""
    return {
        name.removeprefix(BODY): tensor
        for name, tensor in base.items()
        if name.startswith(BODY)
    }
