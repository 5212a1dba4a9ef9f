"""The server half of methods that learn alone: nothing is sent, nothing kept."""

from collections.abc import Mapping

from typing_extensions import override

from fcl_flower.algorithms.base import Params, Strategy
from fcl_flower.core.types import Arrays, Payload, Stage, Update
from fcl_flower.core.update_checks import same_tensors


class Silent(Strategy[Params]):
    """Tell clients when to train, and nothing else."""

    personal = True

    @override
    def init(self, model: Arrays) -> Payload:
        return {}

    @override
    def broadcast(self, state: Payload, stage: Stage, client: int) -> Payload:
        return {}

    @override
    def check(self, state: Payload, update: Update) -> None:
        same_tensors(update.payload, {})

    @override
    def aggregate(
        self, state: Payload, stage: Stage, updates: Mapping[int, Update]
    ) -> Payload:
        return state
