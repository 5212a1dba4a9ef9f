"""How the learning rate falls over a task, by how far the task is.

A factor depends on the round and the epoch alone, and so is the same on every backend,
after a resume, and for a client that has left out a round.
"""

import math
from dataclasses import dataclass
from typing import Literal

from fcl_flower.core.schedule import Schedule


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """Cosine annealing to 0, or steps, from the start of each task to its end.

    With e the epochs of the task that are over, in fractions of all of its epochs in
    all of its rounds: ``cosine`` has the factor ``(1 + cos(pi e)) / 2`` (Loshchilov and
    Hutter, ICLR 2017, https://arxiv.org/abs/1608.03983, equation 5, with a minimum of 0
    and without a restart but for the next task), ``step`` the factor ``factor`` to the
    power of how many of ``steps`` are at most e (iCaRL, Rebuffi et al., CVPR 2017,
    section 4: divided by 5 after 49 and 63 of 70 epochs).

    Attributes:
        plan: says where tasks begin and end; hidden concepts are one task.
        steps: fractions of a task's epochs, in (0, 1), ascending.
        factor: in (0, 1).
    """

    name: Literal["cosine", "step"]
    plan: Schedule
    steps: tuple[float, ...] = ()
    factor: float = 0.1

    def at(self, server_round: int, done: float) -> float:
        """Compute what multiplies the rate, in [0, 1].

        Args:
            server_round: in which a client trains, counted from 1 over the whole run;
                0 for a training that belongs to no round, whose rate stays.
            done: fraction of the round's epochs that are over, in [0, 1).
        """
        if not server_round:
            return 1.0
        task = self.plan.task(server_round)
        start = self.plan.end(task - 1)
        over = (server_round - 1 - start + done) / (self.plan.end(task) - start)
        if self.name == "cosine":
            return (1 + math.cos(math.pi * over)) / 2
        # What divides evenly shall count, whatever is lost in a division.
        passed = sum(step <= over + 1e-9 for step in self.steps)
        return self.factor**passed
