"""Single-task learning: a fresh model for each task, the bound without transfer.

Named STL in the FedWeIT paper, tables 1 and 2.
"""

from torch import Tensor
from typing_extensions import override

from clients.fedavg import Sgd
from fcl_flower.algorithms.base import Params
from fcl_flower.core.types import Payload, TaskStage, Update
from fcl_flower.data.examples import TaskData
from fcl_flower.training.tensors import snapshot


class SingleTask(Sgd[Params]):
    """Nothing is forgotten and nothing is reused.

    State beside that of `Sgd`: ``base`` (the untrained model) and ``base/T``, the
    model of task T.
    """

    @override
    def init(self) -> Payload:
        return {"base": snapshot(self.model, self.model.shared_names())}

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        start = self._body(state, stage.task)
        state, update = super().train(state, start, stage, data)
        kept = {**state, f"base/{stage.task}": update.payload["base"]}
        return kept, Update({}, update.num_examples, update.metrics)

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        return super().predict(state, self._body(state, task), task, x)

    def _body(self, state: Payload, task: int) -> Payload:
        return {"base": state.get(f"base/{task}", state["base"])}
