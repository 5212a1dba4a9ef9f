"""FedAvg whose clients fine-tune the model on their own samples before they predict.

Yu, Bagdasaryan and Shmatikov, 2020, "Salvaging Federated Learning by Local Adaptation",
https://arxiv.org/abs/2002.04758 (fine-tuning, "FT").
"""

from dataclasses import replace

from torch import Tensor
from typing_extensions import override

from fcl_flower.algorithms.local_training import LocalTraining, Turn
from fcl_flower.core.types import Payload, Update
from fcl_flower.data.examples import Examples, batches
from fcl_flower.training.balance import mean_cross_entropy
from fcl_flower.training.feature_cache import frozen_features
from fcl_flower.training.loop import Fit, fit
from fcl_flower.training.tensors import load, snapshot
from strategies.fedavg_ft import FedAvgFtParams


class FedAvgFineTuned(LocalTraining[FedAvgFtParams]):
    """A learner that trains as FedAvg does, and predicts with its own tuned model.

    Where tasks are known, the model is the result of the client's last training of the
    task. It is in the state, beside that of `LocalTraining`, as ``tuned/t``: a whole
    network for each task t. Where tasks are hidden, the received model is tuned on a
    few recent samples for one evaluation. The client then keeps nothing of it.
    """

    needs_task = True

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        state, update = super().train(turn)
        if not self.context.hidden_tasks:
            state = {**state, f"tuned/{turn.stage.task}": update.payload["base"]}
        return state, update

    @override
    def select_model(
        self, state: Payload, received: Payload, samples: Examples
    ) -> Payload:
        model = self.model
        load(model, received["base"])
        seed = self.context.derive("fine-tuning")
        x, y = next(batches(samples, self.params.subset, seed), samples)
        shared = set(model.shared_names())
        weights = self.context.training.class_weights(y, model.classes)

        def objective(x: Tensor, y: Tensor) -> Tensor:
            model.train()
            return mean_cross_entropy(model(x, 0), y, weights)

        job = Fit(
            parameters={n: p for n, p in model.named_parameters() if n in shared},
            objective=objective,
            examples=Examples(frozen_features(model, x), y),
            training=replace(self.context.training, epochs=self.params.tuning_epochs),
            labelled=True,
            seed=seed,
        )
        fit(job)
        return {"base": snapshot(model, sorted(shared))}

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        tuned = state.get(f"tuned/{task}")
        model = received if tuned is None else {"base": tuned}
        return super().predict(state, model, task, x)
