"""Stable SGD: a large learning rate that falls from task to task widens minima.

Mirzadeh et al., NeurIPS 2020, https://arxiv.org/abs/2006.06958, section 4. A large
learning rate that decays, small batches and dropout widen the minima of tasks. So later
tasks raise the losses of earlier ones less.
"""

from dataclasses import replace
from typing import TypeVar

from typing_extensions import override

from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.core.types import TaskStage
from fcl_flower.training.loop import Training
from strategies.stable_sgd import StableSgdParams

S = TypeVar("S", bound=StableSgdParams)


class StableSgd(LocalTraining[S]):
    """A learner with the rate ``max(rate * gamma^t, minimum_rate)`` for task t, from 0.

    The authors' code counts tasks from 1, so that its first task has ``rate * gamma``.
    It creates a new optimizer in each epoch; here the momentum is kept between the
    rounds of a task.
    """

    @override
    def training(self, stage: TaskStage) -> Training:
        training, params = super().training(stage), self.params
        fallen = training.learning_rate * params.gamma**stage.task
        return replace(training, learning_rate=max(fallen, params.minimum_rate))
