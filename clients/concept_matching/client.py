"""Concept Matching, client side: fine-tune the concept model that fits best.

Jiang, Sen and Borcea, 2025, "Federated Continual Learning Using Concept Matching",
section IV. Symbols: w_k is the group ``base/k`` of what is received, theta_n the
group ``base`` of the update, d_n a random part of what the client trains on.
"""

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from clients.fedavg import Sgd
from fcl_flower.algorithms.hooks import SelectsModel
from fcl_flower.core.seeds import derive
from fcl_flower.core.types import Payload, TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.training.loop import score
from fcl_flower.training.tensors import load
from strategies.concept_matching import ConceptMatchingParams


class ConceptMatching(Sgd[ConceptMatchingParams], SelectsModel):
    """Choose, fine-tune, send one model; nothing says which one it was.

    State beside that of `Sgd`: ``chosen``, for each task that the client knows of the
    number of the model that it chose last.
    """

    update_is_model = False  # one of several, which only the server tells apart

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        chosen = self.match(state, received, data.train, stage.task)
        start = {"base": received[f"base/{chosen}"]}
        state, update = super().train(state, start, stage, data)
        known = {**state.get("chosen", {}), str(stage.task): np.asarray(chosen)}
        return {**state, "chosen": known}, update

    @override
    def select_model(
        self, state: Payload, received: Payload, recent: Examples
    ) -> Payload:
        return {"base": received[f"base/{self.match(state, received, recent, 0)}"]}

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        if "base" not in received:  # the client knows the task, not the examples
            chosen = int(np.asarray(state.get("chosen", {}).get(str(task), 0)))
            received = {"base": received[f"base/{chosen}"]}
        return super().predict(state, received, task, x)

    def match(
        self, state: Payload, received: Payload, examples: Examples, task: int
    ) -> int:
        """Return ``argmin_k L(w_k, d_n)`` (equation 6); the first of equal ones."""
        part = self._representative(examples)
        load(self.model, state.get("heads", {}))
        self.model.eval()
        losses = []
        for k in range(len(received)):
            load(self.model, received[f"base/{k}"])
            losses.append(score(lambda x: self.model(x, task), part).loss)
        return int(np.argmin(losses))

    def _representative(self, examples: Examples) -> Examples:
        """Return d_n: so many examples at random, the same in every process."""
        seed = derive(self.context.seed, "representative", self.context.client)
        order = torch.randperm(
            len(examples.y), generator=torch.Generator().manual_seed(seed)
        )[: self.params.subset]
        return Examples(examples.x[order], examples.y[order])
