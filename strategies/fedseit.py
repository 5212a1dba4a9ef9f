"""FedSeIT, server side: FedWeIT's, and dense projections where clients share them.

Chaudhary et al., Findings of EMNLP 2022, algorithm 1. The foreign adapters that a
client receives become branches of its network instead of summands of its weights. That
happens on the client alone.
"""

import re
from typing import Literal, TypeAlias

import numpy as np
from pydantic import Field
from typing_extensions import override

from fcl_flower.algorithms.base import Updates
from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.core.errors import WireError
from fcl_flower.core.types import Arrays, Payload, TaskStage, Update
from fcl_flower.core.update_checks import same_tensors
from strategies.fedweit import FedWeit, FedWeitParams
from strategies.fedweit.maths import SelectionRule

CacheType: TypeAlias = Literal["float32", "float16"]


class FedSeitParams(FedWeitParams):
    """Hyper-parameters beside those of FedWeIT."""

    knowledge: SelectionRule = "previous"
    """The choice of foreign adapters; by default the latest one of each client."""
    lambda2: float = Field(0.0, ge=0)
    """The weight of the penalty that keeps old tasks as they were, at least 0. It is 0
    here: where tasks of texts have much in common it only slows learning."""
    dls: bool = False
    """Whether dense layers are shared: the clients' projections W_c and W_f are
    averaged and sent to clients (FedSeIT+DLS, the paper's ablation)."""
    initial_attention: float = 1.0
    """The alpha of every branch at the start of a task."""
    cache: CacheType = "float32"
    """The type in which the extremes of documents are kept during a task. float16
    halves the memory and rounds them to 11 bits."""
    cache_megabytes: int = Field(256, ge=0)
    """The most memory for these extremes; a task that needs more computes them anew in
    each step."""


ALGORITHM = Algorithm(
    name="fedseit",
    server="strategies.fedseit:FedSeit",
    client="clients.fedseit:FedSeit",
    params_type=FedSeitParams,
    summary="FedWeIT for text whose foreign adapters are branches of their own",
    paper="Chaudhary et al., EMNLP Findings 2022",
    counterpart="fedweit",
    defaults={"data.datasets": "stdlib-docs"},
    privacy_units=("client",),
)


BRANCHES = "meta/branches"
COUNT = re.compile("[1-9][0-9]{0,5}")


class FedSeit(FedWeit[FedSeitParams]):
    """The server side of FedWeIT, which also averages projections of clients.

    State beside that of `FedWeit`: ``dense/K`` is the mean of the projections over the
    clients whose tasks have K branches. It has W_c (``local``, shape (features, 2
    features)) and for each layer of F filters W_f (``foreign/NAME``, (F, K F)).
    ``meta/branches`` has K by task ``C/T``.
    """

    groups = {**FedWeit.groups, "dense": "model"}

    @override
    def send(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        payload = super().send(state, stage, client)
        if self.begins(state, stage, client):
            count = len(self.chosen(state, stage, client))
        else:  # more adapters may have come since the task began
            place = f"{client}/{stage.task}"
            count = int(np.asarray(state.get(BRANCHES, {}).get(place, 0)))
        group = f"dense/{count}"
        return {**payload, group: state[group]} if group in state else payload

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        dense = [group for group in update.payload if group.startswith("dense/")]
        rest = {g: a for g, a in update.payload.items() if g not in dense}
        super().check_update(state, Update(rest, update.num_examples, update.metrics))
        if dense and not (self.params.dls and len(dense) == 1):
            raise WireError(f"groups {dense}: expected one with dls, none without")
        for group in dense:
            count = group.removeprefix("dense/")
            # The count becomes the name of a kept group. So only canonical digits pass,
            # and no more branches than there are adapters.
            most = len(self.broadcast(state).adapters)
            if not COUNT.fullmatch(count) or int(count) > most:
                raise WireError(
                    f"{group}: expected the number of branches, 1 to {most}"
                )
            expected = {group: _projections(state["base"], int(count))}
            same_tensors({group: update.payload[group]}, expected)

    @override
    def combine(self, state: Payload, stage: TaskStage, updates: Updates) -> Payload:
        sent: dict[str, list[Arrays]] = {}
        branches = dict(state.get(BRANCHES, {}))
        for client, update in updates.items():
            for group, arrays in update.payload.items():
                if group.startswith("dense/"):
                    sent.setdefault(group, []).append(arrays)
                    count = int(group.removeprefix("dense/"))
                    task = (update.stage or stage).task
                    branches[f"{client}/{task}"] = np.asarray(count)
        return {
            **super().combine(state, stage, updates),
            **{
                group: self.aggregation.combine(all_sent, start=state.get(group))
                for group, all_sent in sent.items()
            },
            **({BRANCHES: branches} if self.params.dls else {}),
        }


def _projections(base: Arrays, count: int) -> Arrays:
    """Lay out the projections of K branches, without memory of their own."""
    features = sum(weight.shape[0] for weight in base.values())
    shapes = {"local": (features, 2 * features)}
    for name, weight in base.items():
        shapes[f"foreign/{name}"] = (weight.shape[0], count * weight.shape[0])
    return {n: np.broadcast_to(np.float32(0), shape) for n, shape in shapes.items()}
