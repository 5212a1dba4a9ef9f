"""The old model as a teacher, for all who distil on a client.

A teacher is the global model as a client received it in its first round of a task, and
the classes that it has learned by then. The client keeps it over the rounds of the
task, as groups of kind ``memory``: what training needs, and predictions do not. A
client that trains on a task later than others meets in it what these have learned.
"""

from typing import NamedTuple, Self, cast

import numpy as np
import torch
from torch import Tensor

from fcl_flower.core.types import Array, Arrays, Payload, TaskStage
from fcl_flower.data.examples import Examples, batches
from fcl_flower.models.heads import Head, MultiHeadModel
from fcl_flower.training.distillation import softened_kl
from fcl_flower.training.tensors import dense, load, to_numpy

CHUNK = 512
MODEL, CLASSES = "memory/teacher", "memory/classes"
_GOES_ON = -1
"""In place of the round in which a client's task has ended."""


class Outputs(NamedTuple):
    """What a model makes of N samples, in evaluation mode and without a graph.

    Attributes:
        logits: shape (N, classes); `CLOSED` where a growing head is.
        hidden: of the body, shape (N, features).
    """

    logits: Tensor
    hidden: Tensor


class Teacher(NamedTuple):
    """The model before a task; all labels are places in the single head, ascending.

    Attributes:
        base: its tensors; none where there is no old class.
        old: int64, the classes of earlier tasks. Of a growing head those that it had;
            of another one those that the client itself has met.
        new: int64, the classes that labels teach: those of the task. A class that comes
            again is an old one too; those of a task that the client was left out of
            are new ones to it.
    """

    base: Arrays
    old: Array
    new: Array

    @classmethod
    def of_task(
        cls,
        state: Payload,
        received: Payload,
        stage: TaskStage,
        model: MultiHeadModel,
        labels: Tensor,
    ) -> Self:
        """Return the teacher of a round: a new one where a task begins.

        That is for the client to say: if its first reply was lost, the server takes the
        next round for the first, but what this client has learned of the task since is
        nothing old.

        Args:
            state: of the client, with what `kept` returned in earlier rounds.
            received: the global model of the round.
            stage: of the round.
            model: whose single head may grow.
            labels: of the task's training samples, shape (N,).
        """
        kept = {name: dense(a) for name, a in state.get(CLASSES, {}).items()}
        known = kept.get("known", np.empty(0, np.int64))
        starts = begins(state, stage)
        old = known if starts else kept["old"]
        # A last round that is repeated has the model no more.
        model_before = {} if starts else state.get(MODEL, {})
        base = model_before or received["base"]
        since = np.setdiff1d(np.union1d(known, open_classes(model)), old)
        new = np.union1d(since, to_numpy(labels)).astype(np.int64)
        return cls(base if len(old) else {}, old, new)

    @property
    def known(self) -> Array:
        """Return all classes so far, int64, ascending."""
        return np.union1d(self.old, self.new)

    @property
    def teaches(self) -> bool:
        """Return whether there is anything that it knows."""
        return len(self.old) > 0

    def kept(self, stage: TaskStage) -> Payload:
        """Return what the client keeps of it: after a task, all but the model."""
        ended = stage.round if stage.ends_task else _GOES_ON
        task, end = (np.asarray(number, np.int32) for number in (stage.task, ended))
        classes = {"known": self.known, "old": self.old, "task": task, "ended": end}
        return {MODEL: {} if stage.ends_task else self.base, CLASSES: classes}

    def outputs(self, model: MultiHeadModel, examples: Examples) -> Outputs:
        """Return what it makes of samples; ``model`` holds it afterwards."""
        load(model, self.base)
        return outputs(model, examples)


def begins(state: Payload, stage: TaskStage) -> bool:
    """Return whether a client that has kept a teacher begins a task, or comes back.

    Args:
        state: of the client, with what `Teacher.kept` returned in earlier rounds.
        stage: of the round; one that is repeated has its number again.
    """
    kept = state.get(CLASSES, {})
    if "task" not in kept or int(dense(kept["task"])) != stage.task:
        return True
    return int(dense(kept["ended"])) not in (_GOES_ON, stage.round)


def open_classes(model: MultiHeadModel) -> Array:
    """Return the classes that a growing head has so far; none of another head."""
    closed = cast(Head, model.heads[0]).closed
    if closed is None:
        return np.empty(0, np.int64)
    return np.flatnonzero(~to_numpy(closed))


@torch.no_grad()
def outputs(model: MultiHeadModel, examples: Examples) -> Outputs:
    """Return what the loaded model makes of samples, chunk by chunk."""
    model.eval()
    hidden = torch.cat([model.body(x) for x, _ in batches(examples, CHUNK)])
    return Outputs(model.heads[0](hidden), hidden)


def distillation(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Return ``T^2 KL(softmax(targets / T) || softmax(logits / T))``, a batch's mean.

    Hinton et al., 2015, https://arxiv.org/abs/1503.02531, section 2: with T^2 the
    gradient keeps its size whatever T is. The cross-entropy of both, which others
    print, differs from it by the entropy of the targets, which has no gradient.

    Args:
        logits: shape (batch, classes).
        targets: the teacher's, the same shape.
        temperature: T, above 0.
    """
    return temperature**2 * softened_kl(logits, targets, temperature).mean()
