"""FedAvg: the example-weighted mean of the clients' models.

McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629, Algorithm 1.
"""

from typing_extensions import override

from fcl_flower.algorithms.base import Params, ServerStrategy, SumsUpdates, Updates
from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.core.types import Arrays, Payload, TaskStage, Update
from fcl_flower.core.update_checks import same_tensors

ALGORITHM = Algorithm(
    name="fedavg",
    client="fcl_flower.algorithms.local_training:LocalTraining",
    summary="the example-weighted mean of the clients' models",
    paper="McMahan et al., AISTATS 2017",
    counterpart="local",
    privacy_units=("client", "example"),
    token_labels=True,
)


class FedAvg(ServerStrategy[Params], SumsUpdates):
    """A strategy with one global model, which every client receives whole.

    The groups of `summands` are sent and averaged: all groups of the state.
    """

    robust_aggregation = True

    @override
    def init(self, model: Arrays) -> Payload:
        return {"base": model}

    @override
    def summands(self, state: Payload) -> Payload:
        return state

    @override
    def send(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        return self.summands(state)

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        same_tensors(update.payload, self.summands(state))

    @override
    def combine(self, state: Payload, stage: TaskStage, updates: Updates) -> Payload:
        mean = self.aggregation.combine_groups(updates, self.summands(state))
        return {**state, **mean}

    @override
    def aggregate_sum(self, state: Payload, stage: TaskStage, total: Update) -> Payload:
        return self.combine(state, stage, {0: total})  # a mean is its own mean
