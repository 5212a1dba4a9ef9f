"""FedAvg whose clients predict with what their own samples make of the model.

Yu, Bagdasaryan and Shmatikov, 2020, "Salvaging Federated Learning by Local Adaptation",
https://arxiv.org/abs/2002.04758 (fine-tuning, "FT").
"""

from dataclasses import replace

from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from clients.fedavg import Sgd
from fcl_flower.algorithms.hooks import SelectsModel
from fcl_flower.core.seeds import derive
from fcl_flower.core.types import Payload, TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData, batches
from fcl_flower.training.feature_cache import frozen_features
from fcl_flower.training.loop import Fit, fit
from fcl_flower.training.tensors import load, snapshot
from strategies.fedavg_ft import FedAvgFtParams


class FineTuned(Sgd[FedAvgFtParams], SelectsModel):
    """Train as FedAvg does; predict with a model of the client's own.

    Where tasks are known, that is the one which its last training of the task ended
    with: state beside that of `Sgd` is ``tuned/t``, a whole network for each task t.
    Where they are hidden, it is made of the received one and a few recent samples for
    one evaluation, and nothing of it is kept.
    """

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        state, update = super().train(state, received, stage, data)
        if not self.context.hidden_tasks:
            state = {**state, f"tuned/{stage.task}": update.payload["base"]}
        return state, update

    @override
    def select_model(
        self, state: Payload, received: Payload, recent: Examples
    ) -> Payload:
        model = self.model
        load(model, received["base"])
        seed = derive(self.context.seed, "fine-tuning", self.context.client)
        x, y = next(batches(recent, self.params.subset, seed), recent)
        # A frozen body meets the same samples in every pass and evaluation.
        few = Examples(frozen_features(model, x), y)
        shared = set(model.shared_names())
        trained = {name: p for name, p in model.named_parameters() if name in shared}

        def objective(x: Tensor, y: Tensor) -> Tensor:
            model.train()
            return cross_entropy(model(x, 0), y)

        training = replace(self.context.training, epochs=self.params.tuning_epochs)
        job = Fit(
            parameters=trained,
            objective=objective,
            examples=few,
            training=training,
            seed=seed,
        )
        fit(job)
        return {"base": snapshot(model, sorted(shared))}

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        tuned = state.get(f"tuned/{task}")
        known = received if tuned is None else {"base": tuned}
        return super().predict(state, known, task, x)
