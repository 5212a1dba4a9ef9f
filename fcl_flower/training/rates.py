"""Schedules by which the learning rate falls from the start of a task to its end.

A factor depends on the round and the epoch only. So it is the same on every backend,
after a resume, and for a client that has missed a round.
"""

import math
from dataclasses import dataclass
from typing import Literal

from fcl_flower.core.schedule import Schedule


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """A schedule of cosine annealing to 0, or of steps, over each task.

    Let e be the fraction of the task's epochs, in all of its rounds, that are over.

    - ``cosine`` has the factor ``(1 + cos(pi e)) / 2`` (Loshchilov and Hutter, ICLR
      2017, https://arxiv.org/abs/1608.03983, equation 5). Its minimum is 0, and it
      restarts only with the next task.
    - ``step`` has the factor ``factor ** n``, where n counts the ``steps`` that are at
      most e (iCaRL, Rebuffi et al., CVPR 2017, section 4: divided by 5 after 49 and 63
      of 70 epochs).

    Attributes:
        name: kind of the schedule.
        plan: schedule of the run, which says where tasks begin and end; hidden concepts
            are one task.
        steps: fractions of a task's epochs, in (0, 1), ascending.
        factor: factor of each step, in (0, 1).
    """

    name: Literal["cosine", "step"]
    plan: Schedule
    steps: tuple[float, ...] = ()
    factor: float = 0.1

    def at(self, server_round: int, done: float) -> float:
        """Compute the factor of the rate, in [0, 1].

        Args:
            server_round: round of the training, counted from 1 over the whole run; 0
                for a training outside of rounds, which has the factor 1.
            done: fraction of the round's epochs that are over, in [0, 1).
        """
        if not server_round:
            return 1.0
        task = self.plan.task(server_round)
        start = self.plan.end(task - 1)
        over = (server_round - 1 - start + done) / (self.plan.end(task) - start)
        if self.name == "cosine":
            return (1 + math.cos(math.pi * over)) / 2
        # The tolerance counts steps that only rounding puts above the fraction.
        passed = sum(step <= over + 1e-9 for step in self.steps)
        return self.factor**passed
