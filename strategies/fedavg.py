"""FedAvg: the example-weighted mean of the clients' models.

McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629, Algorithm 1.
"""

from collections.abc import Mapping

import numpy as np
from typing_extensions import override

from fcl_flower.algorithms.base import Params, ServerStrategy
from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.core.types import Arrays, Payload, TaskStage, Update
from fcl_flower.core.update_checks import same_tensors

ALGORITHM = Algorithm(
    name="fedavg",
    server="strategies.fedavg:FedAvg",
    client="clients.fedavg:Sgd",
    summary="the example-weighted mean of the clients' models",
    paper="McMahan et al., AISTATS 2017",
    counterpart="local",
    privacy_units=("client", "example"),
)


class FedAvg(ServerStrategy[Params]):
    """Keep one global model; every client receives it whole."""

    @override
    def init(self, model: Arrays) -> Payload:
        return {"base": model}

    @override
    def configure_train(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        return state

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        same_tensors(update.payload, state)

    @override
    def aggregate_train(
        self, state: Payload, stage: TaskStage, updates: Mapping[int, Update]
    ) -> Payload:
        examples = sum(update.num_examples for update in updates.values())
        if not examples:
            return state
        mean = {}
        for name, old in state["base"].items():
            total = np.zeros(old.shape, np.float64)
            for update in updates.values():
                values = np.asarray(update.payload["base"][name])
                total += values * (update.num_examples / examples)
            whole = old.dtype.kind in "iu"  # BatchNorm counts its batches
            mean[name] = (np.rint(total) if whole else total).astype(old.dtype)
        return {"base": mean}
