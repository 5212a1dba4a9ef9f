"""SS-IL: new classes compete among themselves only, and so do old ones.

Ahn et al., ICCV 2021, https://arxiv.org/abs/2003.13947: a separated softmax,
distillation task by task, and a fixed ratio of new and replayed samples in a batch. The
average is that of FedET's tables (Liu et al., IJCAI 2023).

The authors' code normalises both parts of a batch together where a network has batch
normalisation. It divides the rate by the number of the task, and an epoch ends with the
memory if that is shorter. Here each part is normalised by itself, the rate is that of
the run, and samples of the memory are drawn anew for each step.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fcl_flower.algorithms.augmentation import TrainingInputs, training_inputs
from fcl_flower.algorithms.local_training import Turn
from fcl_flower.algorithms.rehearsal import Rehearsal
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Payload, Update
from fcl_flower.data.examples import Examples
from fcl_flower.models.heads import mask_logits
from fcl_flower.training.distillation import distillation_loss
from fcl_flower.training.tensors import dense, to_torch
from strategies.ss_il import SsIlParams

TASKS, STORED = "memory/tasks", "augment-stored"


class SsIl(Rehearsal[SsIlParams]):
    """A learner that minimises ``CE_new + CE_old + strength * sum_s distillation_s``.

    The first term is over new samples among new classes, the second over samples of the
    memory among old classes. Their mean is over both. The third is over the classes of
    each old task s by themselves, for all samples.

    State beside that of `Rehearsal`: ``memory/tasks`` has the task in which each class
    was first met, int64, shape (classes,), -1 for none.
    """

    @override
    def mixed(self, turn: Turn) -> Examples:
        return turn.data.train

    @override
    def begin(self, turn: Turn) -> Examples:
        examples, context = super().begin(turn), self.context
        old, new = self.teacher.old, self.teacher.new
        none = np.full(self.model.classes, -1, np.int64)
        self._met = np.array(dense(turn.state.get(TASKS, {}).get("first", none)))
        self._met[new[self._met[new] < 0]] = turn.stage.task
        self._tasks = [
            to_torch(old[self._met[old] == before], context.device)
            for before in np.unique(self._met[old])
        ]
        self._taught = self.ask_teacher(examples)
        self._again: tuple[TrainingInputs, Tensor, Tensor] | None = None
        (x, y), answers = self.replayed, self.ask_teacher(self.replayed)
        if answers is not None and len(y) >= context.training.smallest_batch:
            again = training_inputs(self.model, x, context, turn.stage.round, STORED)
            self._again = again, y, answers.logits
        seed = derive(context.seed, "ss-il", context.client, turn.stage.round)
        self._draw = torch.Generator().manual_seed(seed)
        return examples

    @override
    def loss(
        self, logits: Tensor, labels: Tensor, rows: Tensor, hidden: Tensor
    ) -> Tensor:
        new = mask_logits(logits, self.new)
        total = cross_entropy(new, labels, self.weights, reduction="sum")
        count = len(labels)
        if self._taught is None:
            return total / count
        every, taught = logits, self._taught.logits[rows]
        if self._again is not None:
            (x, see), y, answers = self._again
            smallest = self.context.training.smallest_batch
            wanted = max(smallest, round(self.params.replay_ratio * count))
            order = torch.randperm(len(y), generator=self._draw)
            chosen = order[:wanted].to(labels.device)
            again = self.model.heads[0](self.model.body(see(x[chosen])))
            old = mask_logits(again, self.old)
            total = total + cross_entropy(old, y[chosen], reduction="sum")
            every = torch.cat([logits, again])
            taught = torch.cat([taught, answers[chosen]])
        params = self.params
        terms = [
            distillation_loss(every[:, task], taught[:, task], params.temperature)
            for task in self._tasks
        ]
        return total / len(every) + params.strength * torch.stack(terms).sum()

    @override
    def finish(
        self, turn: Turn, state: Payload, update: Update
    ) -> tuple[Payload, Update]:
        return super().finish(turn, {**state, TASKS: {"first": self._met}}, update)
