"""IDBR, client side: what a task adds to plain local training.

Huang et al., NAACL 2021, https://arxiv.org/abs/2104.05489, sections 3.2 to 3.4, as
FedET (Liu et al., IJCAI 2023) federates it: by averaging. The paper replays in every
tenth batch; here the memory is trained on together with the task, as in `replay`.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from clients.idbr.exemplars import nearest_to_centres
from clients.idbr.halves import drawn_cuts, swapped_halves
from clients.lwf.teacher import MODEL, Teacher
from clients.replay.buffer import contains, joined, replay_samples, rows_of
from clients.replay.memory import remember
from fcl_flower.algorithms.base import ClientContext
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.core.errors import refuse
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Arrays, Payload, TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData, batches, concat
from fcl_flower.models.encoder import DisentangledTransformer
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.tensors import dense, load, to_numpy
from strategies.idbr import IdbrParams

_CHUNK = 64


class Idbr(LocalTraining[IdbrParams]):
    """Minimise four losses over the task's samples and those of the memory.

    The cross-entropies of the label and of the order of a text's halves, over texts in
    both orders; and from a client's second task on that of the task, over both orders
    as well, and the squared distance of both spaces from those of the model with which
    the task began, over texts as they are.

    State besides: that of `Teacher`, which is that model, and ``memory``
    (see `clients.replay.buffer`).
    """

    temporary = (*LocalTraining.temporary, MODEL)

    def __init__(
        self, params: IdbrParams, model: MultiHeadModel, context: ClientContext
    ) -> None:
        """Find the two spaces.

        Raises:
            ConfigError: the model has none.
        """
        super().__init__(params, model, context)
        expected = "disentangled-transformer, whose two spaces IDBR trains"
        self._body = model.body_of(DisentangledTransformer, expected)

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        if stage.task >= self._body.task.out_features:
            raise refuse(
                "model.max_tasks",
                self._body.task.out_features,
                f"at least {stage.task + 1}, the tasks so far",
            )
        device = self.context.device
        memory = state.get("memory", {})
        remembered = replay_samples(memory, device, without=stage.task)
        train = concat([data.train, remembered])
        labels = data.train.y
        teacher = Teacher.of_task(state, received, stage, self.model, labels)
        self._texts, self._task = train.x, stage.task
        self._teacher = teacher
        self._tasks = self._tasks_of(memory, len(data.train.y), device)
        self._weights = torch.full((len(train.y),), self.params.new_weight)
        self._weights[len(data.train.y) :] = self.params.replayed_weight
        self._weights = self._weights.to(device)
        if teacher.teaches and len(train.y):
            load(self.model, teacher.base)
            self._anchors = self._spaces(train, self._body)
        seen = TaskData(train, data.valid, data.test, data.classes)
        after, update = super().train(state, received, stage, seen)
        memory = self._remembered(memory, data.train, stage.task)
        return {**after, **teacher.kept(stage), "memory": memory}, update

    @override
    def loss(
        self, logits: Tensor, labels: Tensor, rows: Tensor, hidden: Tensor
    ) -> Tensor:
        params, width = self.params, self._body.width
        texts = self._texts[rows]
        other = self._body(swapped_halves(texts, drawn_cuts(texts)))
        both = torch.cat([hidden, other])
        said = torch.cat([logits, self.model.heads[0](other)])
        swapped = torch.zeros(len(both), dtype=torch.int64, device=both.device)
        swapped[len(rows) :] = 1
        loss = cross_entropy(said, labels.repeat(2)) + params.order * cross_entropy(
            self._body.order(both[:, :width]), swapped
        )
        if not self._teacher.teaches:
            return loss
        # Of its own order of concepts a client may have met later ones before.
        so_far = int(self._tasks.max()) + 1
        tasks = self._body.task(both[:, width:])[:, :so_far]
        loss = loss + params.task * cross_entropy(tasks, self._tasks[rows].repeat(2))
        return loss + self._distance(rows, hidden)

    def _distance(self, rows: Tensor, hidden: Tensor) -> Tensor:
        """Return how far both spaces are from those of the old model, by weight."""
        params, width = self.params, self._body.width
        squares = (hidden - self._anchors[rows]).square() * self._weights[rows, None]
        generic, specific = squares[:, :width].mean(), squares[:, width:].mean()
        return params.generic * generic + params.specific * specific

    def _tasks_of(self, memory: Arrays, new: int, device: str) -> Tensor:
        """Return the task of each training sample, those of the memory last."""
        of_memory = dense(memory["task"]).astype(np.int64) if memory else np.zeros(0)
        old = of_memory[of_memory != self._task]
        tasks = np.concatenate([np.full(new, self._task), old])
        return torch.tensor(tasks, dtype=torch.int64, device=device)

    def _remembered(self, memory: Arrays, examples: Examples, task: int) -> Arrays:
        """Return the memory with samples of a task, which counts once."""
        params, count = self.params, len(examples.y)
        if not count or contains(memory, task):
            return memory
        fixed = params.budget == "fixed"
        room = params.memory_samples if fixed else round(params.buffer_fraction * count)
        if fixed and not room:
            return memory
        seed = derive(self.context.seed, "sample-memory", self.context.client, task)
        features = to_numpy(self._spaces(examples, self._body.pooled))
        chosen = nearest_to_centres(features, max(1, room), seed)
        if not fixed:
            return joined(memory, rows_of(examples, chosen, task))
        places = torch.from_numpy(chosen).to(examples.y.device)
        best = Examples(examples.x[places], examples.y[places])
        seen = features[chosen]
        return remember(memory, best, params, seed, task=task, features=seen)

    def _spaces(
        self, examples: Examples, seen_by: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return what a part of the body makes of all examples, (N, D), evaluating."""
        self.model.eval()
        with torch.no_grad():
            return torch.cat([seen_by(x) for x, _ in batches(examples, _CHUNK)])
