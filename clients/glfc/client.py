"""GLFC, client side: what a task adds to plain local training.

Dong et al., CVPR 2022, https://arxiv.org/abs/2203.11473, sections 3.2 and 3.3.
"""

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from clients.glfc.losses import (
    compensated,
    compensation_weights,
    relation_distilled,
)
from clients.glfc.prototypes import feature_spread, perturbed, prototypes
from clients.replay.buffer import replay_samples
from clients.replay.memory import remember
from fcl_flower.algorithms.base import ClientContext
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Array, Arrays, Payload, TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData, batches, concat
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.tensors import arrays_of, dense, load, to_numpy, to_torch
from strategies.glfc import GlfcParams
from strategies.glfc.trainer import EncodingNetwork, sample_gradients

PERTURBATION_RATE = 200.0
"""Length of a perturbation step in gradients; ours. The released code has 0.2, by which
nothing is hidden."""
_CHUNK = 512


class Glfc(LocalTraining[GlfcParams]):
    """Minimise both losses of `clients.glfc.losses` over the task and the memory.

    In the first task, and wherever there is no old model, only the compensated loss.

    State beside that of `LocalTraining`: ``memory`` (see `clients.replay.memory`),
    ``memory/old`` (the old model), ``progress`` (``task``, how many the client has
    begun, by which the memory counts where nobody tells; ``entropy`` of its predictions
    in the last round; ``old``, uint8, (classes,): what the old model knows).
    """

    temporary = (*LocalTraining.temporary, "memory/old")
    for_training = ("old", "meta/old", "prototypes")

    def __init__(
        self, params: GlfcParams, model: MultiHeadModel, context: ClientContext
    ) -> None:
        """Draw the encoding network, which is that of the server.

        Raises:
            ConfigError: samples are no images.
        """
        super().__init__(params, model, context)
        network = EncodingNetwork(model.input_shape, model.classes, context.seed)
        self._encoder = network.to(context.device)

    @override
    def init(self) -> Payload:
        return {
            "progress": {
                "task": np.asarray(0),
                "entropy": np.asarray(0.0),
                "old": np.zeros(self.model.classes, np.uint8),
            }
        }

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        context, params = self.context, self.params
        load(self.model, received["base"])
        progress, begins = self._progress(
            state["progress"], received, stage, data.train
        )
        old_model = state.get("memory/old", {})
        if begins:
            old_model = received.get("old", {})
        known = params.transition == "known"
        task = stage.task if known else int(np.asarray(progress["task"]))
        memory = state.get("memory", {})
        remembered = replay_samples(memory, context.device, without=task)
        train = concat([data.train, remembered])
        self._new = torch.isin(train.y, data.train.y)
        self._compensates = len(remembered.y) > 0
        self._old = to_torch(progress["old"], context.device).bool()
        self._taught = self._probabilities(old_model, train)
        seen = TaskData(train, data.valid, data.test, data.classes)
        after, update = super().train(state, received, stage, seen)
        features = self.features(data.train)
        seed = derive(context.seed, "sample-memory", context.client, task)
        memory = remember(
            memory, data.train, params, seed, task=task, features=to_numpy(features)
        )
        payload = dict(update.payload)
        if begins and len(data.train.y):
            payload["prototypes"] = self._encoded(data.train, features, stage)
        kept = {"progress": progress, "memory": memory, "memory/old": old_model}
        sent = Update(payload, update.num_examples, update.metrics)
        return {**after, **kept}, sent

    @override
    def loss(
        self, logits: Tensor, labels: Tensor, rows: Tensor, hidden: Tensor
    ) -> Tensor:
        logits = logits.float()
        weights = torch.ones_like(logits[:, 0])
        if self._compensates:
            weights = compensation_weights(logits, labels, self._new[rows])
        balanced = compensated(logits, labels, weights)
        if self._taught is None:
            return balanced
        params, taught = self.params, self._taught[rows]
        distilled = relation_distilled(logits, labels, taught, self._old)
        return params.compensation * balanced + params.distillation * distilled

    def features(self, examples: Examples) -> Tensor:
        """Return the body's output for all examples, (N, features), evaluating."""
        self.model.eval()
        with torch.no_grad():
            found = [self.model.body(x) for x, _ in batches(examples, _CHUNK)]
        return torch.cat(found) if found else examples.x.new_zeros(0, 0)

    def entropy(self, examples: Examples) -> float:
        """Return the mean entropy of the predictions in nats; NaN without examples."""
        logits = self.model.heads[0](self.features(examples))
        entropies = torch.special.entr(logits.softmax(1)).sum(1)
        return float(entropies.detach().mean())

    def _progress(
        self, progress: Arrays, received: Payload, stage: TaskStage, examples: Examples
    ) -> tuple[dict[str, Array], bool]:
        """Return where the client stands now, and whether a task begins."""
        found = {name: np.asarray(dense(value)) for name, value in progress.items()}
        begins = stage.starts_task
        if self.params.transition == "entropy" and len(examples.y):
            entropy = self.entropy(examples)
            begins = entropy - float(found["entropy"]) >= self.params.entropy_rise
            found["entropy"] = np.asarray(entropy)
        if begins:
            found["task"] = np.asarray(int(found["task"]) + 1)
            found["old"] = np.zeros(self.model.classes, np.uint8)
            if "old" in received:
                found["old"] = np.array(dense(received["meta/old"]["classes"]))
        return found, begins

    def _probabilities(self, old_model: Arrays, examples: Examples) -> Tensor | None:
        """Return what an old model says of all examples, (N, classes), if any."""
        if not old_model:
            return None
        load(self.model, old_model)
        with torch.no_grad():
            logits: Tensor = self.model.heads[0](self.features(examples))
        return logits.sigmoid()

    def _encoded(
        self, examples: Examples, features: Tensor, stage: TaskStage
    ) -> dict[str, Array]:
        """Return the gradients of a task's prototypes, one of each class."""
        params, context = self.params, self.context
        places = prototypes(features, examples.y)
        chosen = Examples(examples.x[places], examples.y[places])
        shown = perturbed(
            self.model,
            chosen,
            feature_spread(features, examples.y),
            noise=params.noise,
            steps=params.perturbation_steps,
            rate=PERTURBATION_RATE,
            seed=derive(context.seed, "perturbation", context.client, stage.round),
        )
        return arrays_of(sample_gradients(self._encoder, shown, chosen.y))
