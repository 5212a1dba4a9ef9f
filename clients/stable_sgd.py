"""Stable SGD: a large learning rate that falls from task to task widens minima.

Mirzadeh et al., NeurIPS 2020, https://arxiv.org/abs/2006.06958, section 4. A large
learning rate that decays, small batches and dropout widen the minima of tasks. So later
tasks raise the losses of earlier ones less.
"""

from dataclasses import replace

from typing_extensions import override

from fcl_flower.algorithms.local_training import LocalTraining, Penalty, Turn
from fcl_flower.core.types import Payload, Update
from strategies.stable_sgd import StableSgdParams


class StableSgd(LocalTraining[StableSgdParams]):
    """A learner whose rate is ``max(rate * gamma^t, minimum_rate)`` for task t, from 0.

    The authors' code counts tasks from 1, so that its first task has ``rate * gamma``.
    It creates a new optimizer in each epoch; here the momentum is kept between the
    rounds of a task.
    """

    @override
    def train(self, turn: Turn, *penalties: Penalty) -> tuple[Payload, Update]:
        params, training = self.params, self.context.training
        rate = training.learning_rate * params.gamma**turn.stage.task
        slower = replace(training, learning_rate=max(rate, params.minimum_rate))
        return self.fit_locally(turn, penalties=penalties, training=slower)
