"""Sequential training without communication: the server only schedules the rounds."""

from typing_extensions import override

from fcl_flower.algorithms.base import Params, ServerStrategy, Updates
from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.core.types import Arrays, Payload, TaskStage, Update
from fcl_flower.core.update_checks import same_tensors

ALGORITHM = Algorithm(
    name="local",
    server="strategies.local:NoOpStrategy",
    client="clients.local:Local",
    summary="sequential training of one model, no federation",
    token_labels=True,
)


class NoOpStrategy(ServerStrategy[Params]):
    """A strategy that sends nothing to the clients and keeps nothing of them."""

    predicts_locally = True
    robust_aggregation = True

    @override
    def init(self, model: Arrays) -> Payload:
        return {}

    @override
    def send(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        return {}

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        same_tensors(update.payload, {})

    @override
    def combine(self, state: Payload, stage: TaskStage, updates: Updates) -> Payload:
        return state
