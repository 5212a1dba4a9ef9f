"""FedCBDR, client side: samples drawn by their leverage, and a loss that balances them.

Qi et al., 2025, https://arxiv.org/abs/2507.07712.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from clients.lwf.teacher import CLASSES, Teacher, outputs
from clients.replay.buffer import joined, replay_samples, rows_at, rows_of, without_task
from clients.replay.policies import drawn_order, leverage_scores, ranks_by_class
from fcl_flower.algorithms.hooks import AnswersQueries
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Array, Arrays, Payload, TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData, concat
from fcl_flower.training.tensors import dense, load, to_numpy, to_torch
from strategies.fedcbdr import FedCbdrParams
from strategies.fedcbdr.server import BASE, GRAMS, SELECTION
from strategies.lorm.merging import symmetric, upper_half

OLD_TEMPERATURE, NEW_TEMPERATURE = 0.9, 1.1
"""What logits of old and of new classes are divided by."""


class FedCbdr(LocalTraining[FedCbdrParams], AnswersQueries):
    """Minimise the losses of new and of stored samples, with temperatures by class.

    State besides: ``memory``, a buffer of `clients.replay.buffer` with the
    ``rank`` of each sample in the order in which those of its class were drawn, and
    ``memory/classes`` (see `clients.lwf.teacher`).
    """

    @override
    def answer_query(
        self, state: Payload, question: Payload, stage: TaskStage, data: TaskData
    ) -> Payload:
        features = self._features(question, data.train)
        counts = np.bincount(to_numpy(data.train.y), minlength=self.model.classes)
        half = upper_half(features.T @ features)
        return {GRAMS: {"half": half, "counts": counts.astype(np.int64)}}

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        memory = state.get("memory", {})
        device = self.context.device
        labels = data.train.y
        classes = Teacher.of_task(state, received, stage, self.model, labels)
        kept = self._kept(memory, received, stage, data.train)
        self._temperatures = torch.full(
            (self.model.classes,), NEW_TEMPERATURE, device=device
        )
        self._temperatures[to_torch(classes.old, device)] = OLD_TEMPERATURE
        self._new = len(labels)
        old = replay_samples(memory, device, without=stage.task)
        train = concat([data.train, old])
        seen = TaskData(train, data.valid, data.test, data.classes)
        after, update = super().train(state, received, stage, seen)
        return {**after, CLASSES: classes.kept(stage)[CLASSES], "memory": kept}, update

    @override
    def loss(
        self, logits: Tensor, labels: Tensor, rows: Tensor, hidden: Tensor
    ) -> Tensor:
        """Return task-aware temperature scaling's loss of a batch.

        ``w_new mean_new CE(z / tau) + w_old mean_old CE(z / tau)``, where a class's tau
        is that of old or of new ones, and old samples are the stored ones. A batch
        without one of the two has the other's term alone.
        """
        each = cross_entropy(logits / self._temperatures, labels, reduction="none")
        old = (rows >= self._new).to(each.dtype)
        # An empty sum over at least one is 0.
        new_term = ((1 - old) * each).sum() / (1 - old).sum().clamp(min=1)
        old_term = (old * each).sum() / old.sum().clamp(min=1)
        params = self.params
        return params.new_weight * new_term + params.old_weight * old_term

    def _features(self, received: Payload, examples: Examples) -> Array:
        """Return what the received model makes of samples, float64, shape (N, d)."""
        if not len(examples.y):
            return np.zeros((0, self.model.features))
        load(self.model, received[BASE])
        return to_numpy(outputs(self.model, examples).hidden).astype(np.float64)

    def _kept(
        self, memory: Arrays, received: Payload, stage: TaskStage, examples: Examples
    ) -> Arrays:
        """Return the memory after a task's last round, as the server says.

        Of each class the first that were drawn stay, as many as the quota says: when
        old classes make room, those that were drawn last go.
        """
        if SELECTION not in received:
            return memory
        selection = {n: dense(tensor) for n, tensor in received[SELECTION].items()}
        both = memory
        if len(examples.y):
            context = self.context
            scores = leverage_scores(
                self._features(received, examples), symmetric(selection["gram"])
            )
            seed = derive(context.seed, "sample-memory", context.client, stage.task)
            rng = np.random.default_rng(seed)
            ranks = ranks_by_class(
                to_numpy(examples.y), lambda rows: drawn_order(scores[rows], rng)
            )
            everything = np.arange(len(ranks))
            new = {**rows_of(examples, everything, stage.task), "rank": ranks}
            both = joined(without_task(memory, stage.task), new)
        return _within(both, selection["quotas"]) if both else memory


def _within(buffer: Arrays, quotas: Array) -> Arrays:
    """Return of each class as many rows as its quota says, those of least rank."""
    labels, ranks = dense(buffer["y"]), dense(buffer["rank"])
    turns = ranks_by_class(labels, lambda rows: np.argsort(ranks[rows], kind="stable"))
    return rows_at(buffer, turns < quotas[labels])
