"""The server half of methods that learn alone: nothing is sent, nothing kept."""

from collections.abc import Mapping

from typing_extensions import override

from fcl_flower.algorithms.base import Params, ServerStrategy
from fcl_flower.core.types import Arrays, Payload, TaskStage, Update
from fcl_flower.core.update_checks import same_tensors


class NoOpStrategy(ServerStrategy[Params]):
    """Tell clients when to train, and nothing else."""

    evaluates_locally = True

    @override
    def init(self, model: Arrays) -> Payload:
        return {}

    @override
    def configure_train(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        return {}

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        same_tensors(update.payload, {})

    @override
    def aggregate_train(
        self, state: Payload, stage: TaskStage, updates: Mapping[int, Update]
    ) -> Payload:
        return state
