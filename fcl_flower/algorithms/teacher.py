"""The teacher of a class-incremental method: the model before a task, and its classes.

The teacher is the global model that a client received in its first round of a task,
together with the classes learned until then. If a client trains on a task later than
others, this model has already learned from these others.
"""

from typing import Final, NamedTuple, Self, cast

import numpy as np
from torch import Tensor

from fcl_flower.algorithms.local_training import Turn
from fcl_flower.core.types import Array, Arrays, Payload, TaskStage
from fcl_flower.data.examples import Examples
from fcl_flower.models.heads import Head, MultiHeadModel
from fcl_flower.training.distillation import Outputs, outputs
from fcl_flower.training.tensors import dense, load, to_numpy, to_torch

MODEL: Final = "memory/teacher"
"""The group of a client's state with the teacher's tensors; empty after a task."""
CLASSES: Final = "memory/classes"
"""The group of a client's state with the classes and the task of a teacher."""
_GOES_ON = -1
"""The number that stands for a task's last round while the client still trains on
it."""


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
    def of_turn(cls, turn: Turn, model: MultiHeadModel, base: Arrays) -> Self:
        """Find the teacher of a round: the model ``base`` if a task begins.

        Otherwise it is the model in the client's state, which also decides whether a
        task begins. If the client's first reply was lost, the server repeats the first
        round. What this client has learned of the task since then is not old.
        """
        state, stage = turn.state, turn.stage
        record = {name: dense(a) for name, a in state.get(CLASSES, {}).items()}
        known = record.get("known", np.empty(0, np.int64))
        starts = begins_task(state, stage)
        old = known if starts else record["old"]
        # If a task's last round is repeated, its model has already been dropped.
        model_before = {} if starts else state.get(MODEL, {})
        # A growing head also has classes that only other clients have met.
        closed = cast(Head, model.heads[0]).closed
        opened = known if closed is None else np.flatnonzero(~to_numpy(closed))
        since = np.setdiff1d(np.union1d(known, opened), old)
        new = np.union1d(since, to_numpy(turn.data.train.y)).astype(np.int64)
        return cls((model_before or base) if len(old) else {}, old, new)

    @property
    def known(self) -> Array:
        """All classes so far, int64, ascending."""
        return np.union1d(self.old, self.new)

    @property
    def teaches(self) -> bool:
        """Whether the teacher knows any class."""
        return len(self.old) > 0

    def places(self, device: str) -> tuple[Tensor, Tensor, Tensor]:
        """Convert the old classes, the new classes and all so far to tensors."""
        old, new, known = (
            to_torch(classes, device) for classes in (self.old, self.new, self.known)
        )
        return old, new, known

    def outputs(self, model: MultiHeadModel, examples: Examples) -> Outputs | None:
        """Compute the teacher's outputs; None if it has no class, or for no samples.

        ``model`` has the teacher's tensors afterwards.
        """
        if not (self.teaches and len(examples.y)):
            return None
        load(model, self.base)
        return outputs(model, examples)

    def record(self, stage: TaskStage) -> Payload:
        """Write the teacher into groups of a state, after a task without the model."""
        ended = stage.round if stage.ends_task else _GOES_ON
        task, end = (np.asarray(number, np.int32) for number in (stage.task, ended))
        classes = {"known": self.known, "old": self.old, "task": task, "ended": end}
        return {MODEL: {} if stage.ends_task else self.base, CLASSES: classes}


def begins_task(state: Payload, stage: TaskStage) -> bool:
    """Tell whether a client that keeps a teacher begins a task or comes back to one.

    A repeated round has the same number again, and begins nothing.
    """
    record = state.get(CLASSES, {})
    if "task" not in record or int(dense(record["task"])) != stage.task:
        return True
    return int(dense(record["ended"])) not in (_GOES_ON, stage.round)
