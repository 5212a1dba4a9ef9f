"""APD, client side: shared weights, a mask and a sparse adapter for each task.

Yoon et al., ICLR 2020, https://arxiv.org/abs/1902.09432. Symbols: sigma is the group
``base``, v_t ``masks/T``, tau_t ``adapters/T``. A task is learned by minimising

    L(sigma * M_t + tau_t) + lambda1 sum_i |tau_i|_1
        + lambda2 sum_{i<t} |theta_i - (sigma * M_i + tau_i)|^2,

theta_i as it was before the task. After every s tasks the tau_i are consolidated
(`clients.apd.consolidation`).

The equations are those of the authors' code (github.com/jaehong31/APD). What differs:
|tau|_1 by proximal steps, so that there are exact zeros; the tau_i of old tasks in
closed form for the sigma that is, with masks that stay, where the authors train both
along. There the second sum has a factor 1/2, v_t starts as random numbers near 0 (here
0), and Adam's rate falls by 5 % in each epoch (here as for all).
"""

from typing import TypeVar

from torch import Tensor
from typing_extensions import override

from clients.apd.tasks import ApdTasks
from fcl_flower.algorithms.base import ClientContext, ClientLearner
from fcl_flower.core.types import Payload, TaskStage, Update
from fcl_flower.data.examples import TaskData
from fcl_flower.models.heads import MultiHeadModel
from strategies.apd import ApdParams

A = TypeVar("A", bound=ApdParams)


class Apd(ClientLearner[A]):
    """Learn all tasks alone; the state is that of `ApdTasks`."""

    def __init__(
        self, params: A, model: MultiHeadModel, context: ClientContext
    ) -> None:
        """Refuse a model in which there is nothing to decompose."""
        super().__init__(params, model, context)
        self.tasks = ApdTasks(params, model, context)

    @override
    def init(self) -> Payload:
        return self.tasks.init()

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        state, update = self.tasks.train(state, {"base": {}}, stage, data)
        return state, Update({}, update.num_examples, update.metrics)

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        return self.tasks.predict(state, received, task, x)
