"""Rehearsal: local training on new and old samples, with an old model as teacher.

This is the common part of class-incremental methods. A client trains on the task's
samples together with a memory of old ones (`fcl_flower.algorithms.exemplars`). The
teacher says what the model knew before the task. It is the global model that a client
received in its first round of a task, together with the classes learned until then. If
a client trains on a task later than others, this model has already learned from these
others.
"""

from typing import ClassVar, NamedTuple, Self, cast

import numpy as np
from torch import Tensor
from typing_extensions import override

from fcl_flower.algorithms.base import P
from fcl_flower.algorithms.exemplars import remember_task, replay_samples
from fcl_flower.algorithms.local_training import LocalTraining, Turn
from fcl_flower.algorithms.params import MemoryParams
from fcl_flower.core.types import Array, Arrays, Payload, TaskStage, Update
from fcl_flower.data.examples import Examples, concat
from fcl_flower.models.heads import Head, MultiHeadModel
from fcl_flower.training.distillation import Outputs, outputs
from fcl_flower.training.tensors import dense, load, to_numpy, to_torch

MODEL, CLASSES = "memory/teacher", "memory/classes"
_GOES_ON = -1
"""The number that stands for a task's last round while the client still trains on
it."""


class Rehearsal(LocalTraining[P]):
    """A learner that trains on a task and a memory of old samples, beside a teacher.

    `begin` prepares what a loss needs. A method extends it by its questions to the
    teacher.

    The state has, beside that of `LocalTraining`, the memory and the groups of
    `Teacher`.

    Class attributes:
        memory_group: the group of the state with the memory; None for no memory.
        has_teacher: whether the client keeps a teacher.

    Attributes:
        replayed: samples of the memory that are not of the task.
        teacher: the teacher of the round.
        old: int64, the teacher's classes; likewise new and known, see `Teacher`.
    """

    temporary_state = (*LocalTraining.temporary_state, MODEL)
    memory_group: ClassVar[str | None] = "memory"
    has_teacher: ClassVar[bool] = True

    replayed: Examples
    teacher: "Teacher"
    old: Tensor
    new: Tensor
    known: Tensor

    @override
    def begin(self, turn: Turn) -> Examples:
        device, stage, train = self.context.device, turn.stage, turn.data.train
        self.replayed = replay_samples(self.memory(turn), device, without=stage.task)
        if self.has_teacher:
            received = self.teaching(turn)
            teacher = Teacher.of_task(turn.state, received, stage, self.model, train.y)
            self.teacher = teacher
            self.old = to_torch(teacher.old, device)
            self.new = to_torch(teacher.new, device)
            self.known = to_torch(teacher.known, device)
        return self.mixed(turn)

    @override
    def finish(
        self, turn: Turn, state: Payload, update: Update
    ) -> tuple[Payload, Update]:
        if self.has_teacher:
            state = {**state, **self.teacher.kept(turn.stage)}
        if self.memory_group is not None:
            state = {**state, self.memory_group: self.remember(turn)}
        return state, update

    # ---- what a method may change

    def mixed(self, turn: Turn) -> Examples:
        """Join a task's samples with the replayed ones, which come last."""
        return concat([turn.data.train, self.replayed])

    def teaching(self, turn: Turn) -> Arrays:
        """Choose the teacher's model where a task begins: the received model."""
        return turn.received["base"]

    def remember(self, turn: Turn) -> Arrays:
        """Choose the memory after a round, by the policy of `MemoryParams`."""
        params, examples = cast(MemoryParams, self.params), turn.data.train
        memory, model, context = self.memory(turn), self.model, self.context
        return remember_task(memory, examples, params, model, context, turn.stage)

    # ---- what a method may ask

    def memory(self, turn: Turn) -> Arrays:
        """Take the memory out of the state before the round."""
        return turn.state.get(self.memory_group or "", {})

    def ask_teacher(self, examples: Examples) -> Outputs | None:
        """Compute the teacher's outputs; None if it has no class, or for no samples."""
        if not (self.teacher.teaches and len(examples.y)):
            return None
        load(self.model, self.teacher.base)
        return outputs(self.model, examples)


class Teacher(NamedTuple):
    """The model before a task, and its classes as ascending places in the single head.

    Attributes:
        base: its tensors; empty where there is no old class.
        old: int64, the classes of earlier tasks. With a growing head these are the
            classes that the head had; otherwise those that the client itself has met.
        new: int64, the classes of the task's labels, and with a growing head those that
            it has opened since. A class that comes again is an old one too. Classes of
            a task that the client missed are new to it.
    """

    base: Arrays
    old: Array
    new: Array

    @classmethod
    def of_task(
        cls,
        state: Payload,
        received: Arrays,
        stage: TaskStage,
        model: MultiHeadModel,
        labels: Tensor,
    ) -> Self:
        """Find the teacher of a round: the received model if a task begins.

        Otherwise it is the kept model. The client's own state decides whether a task
        begins. If the client's first reply was lost, the server repeats the first
        round. What this client has learned of the task since then is not old.
        """
        kept = {name: dense(a) for name, a in state.get(CLASSES, {}).items()}
        known = kept.get("known", np.empty(0, np.int64))
        starts = begins_task(state, stage)
        old = known if starts else kept["old"]
        # If a task's last round is repeated, its model has already been dropped.
        model_before = {} if starts else state.get(MODEL, {})
        # A growing head also has classes that only other clients have met.
        closed = cast(Head, model.heads[0]).closed
        opened = known if closed is None else np.flatnonzero(~to_numpy(closed))
        since = np.setdiff1d(np.union1d(known, opened), old)
        new = np.union1d(since, to_numpy(labels)).astype(np.int64)
        return cls((model_before or received) if len(old) else {}, old, new)

    @property
    def known(self) -> Array:
        """All classes so far, int64, ascending."""
        return np.union1d(self.old, self.new)

    @property
    def teaches(self) -> bool:
        """Whether the teacher knows any class."""
        return len(self.old) > 0

    def kept(self, stage: TaskStage) -> Payload:
        """Select the client's record of the teacher, after a task without the model."""
        ended = stage.round if stage.ends_task else _GOES_ON
        task, end = (np.asarray(number, np.int32) for number in (stage.task, ended))
        classes = {"known": self.known, "old": self.old, "task": task, "ended": end}
        return {MODEL: {} if stage.ends_task else self.base, CLASSES: classes}


def begins_task(state: Payload, stage: TaskStage) -> bool:
    """Tell whether a client that keeps a teacher begins a task or comes back to one.

    A repeated round has the same number again, and begins nothing.
    """
    kept = state.get(CLASSES, {})
    if "task" not in kept or int(dense(kept["task"])) != stage.task:
        return True
    return int(dense(kept["ended"])) not in (_GOES_ON, stage.round)
