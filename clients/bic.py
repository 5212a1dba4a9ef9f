"""BiC: samples held out measure by how much the head favours new classes.

Wu et al., CVPR 2019, https://arxiv.org/abs/1905.13260. In the first stage the network
is trained on new samples and those of the memory, with the old model as teacher. The
second stage uses a few samples of each class that the first has not seen. It learns two
numbers that scale and shift the logits of all new classes; the network stays. The old
model of the next task is the corrected one. So its network learns the correction, and
old classes are not corrected again.

The average is that of FedET's tables (Liu et al., IJCAI 2023). The two numbers travel
beside the network and are averaged with it. Before a prediction they are written into
its head.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fcl_flower.algorithms.local_training import Turn
from fcl_flower.algorithms.rehearsal import Rehearsal
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Array, Arrays, Payload, Update
from fcl_flower.data.examples import Examples, concat
from fcl_flower.models.heads import mask_logits
from fcl_flower.training.balance import mean_cross_entropy
from fcl_flower.training.distillation import distillation_loss, outputs
from fcl_flower.training.loop import Fit, fit
from fcl_flower.training.tensors import dense, to_numpy, to_torch
from strategies.bic import BicParams

WEIGHT, OFFSET = "heads.0.weight", "heads.0.bias"


class Bic(Rehearsal[BicParams]):
    """A learner that trains the network, and then the correction of its head."""

    @override
    def begin(self, turn: Turn) -> Examples:
        examples = super().begin(turn)
        self._taught = self.ask_teacher(examples)
        return examples

    @override
    def teaching(self, turn: Turn) -> Arrays:
        return fold_bias(turn.received["base"], turn.received["bias"])

    @override
    def mixed(self, turn: Turn) -> Examples:
        context = self.context
        seed = derive(context.seed, "bic-held-out", context.client, turn.stage.task)
        rng, count = np.random.default_rng(seed), 0
        if len(labels := self.replayed.y):
            a_class = len(labels) / len(torch.unique(labels))
            count = max(1, round(self.params.held_out * a_class))
        kept_old, held_old = hold_out(self.replayed, count, rng)
        kept_new, held_new = hold_out(turn.data.train, count, rng)
        self._held = concat([held_new, held_old])
        return concat([kept_new, kept_old])

    @override
    def loss(
        self, logits: Tensor, labels: Tensor, rows: Tensor, hidden: Tensor
    ) -> Tensor:
        """Compute ``lambda L_d + (1 - lambda) L_c``, with lambda = n / (n + m).

        n and m are the numbers of old and of new classes. L_d is over old classes alone
        and without the factor T^2. L_c is over all classes so far.
        """
        masked = mask_logits(logits, self.known)
        entropy = mean_cross_entropy(masked, labels, self.weights)
        if self._taught is None:
            return entropy
        share, temperature = len(self.old) / len(self.known), self.params.temperature
        targets = self._taught.logits[rows][:, self.old]
        taught = distillation_loss(logits[:, self.old], targets, temperature)
        return share * taught / temperature**2 + (1 - share) * entropy

    @override
    def finish(
        self, turn: Turn, state: Payload, update: Update
    ) -> tuple[Payload, Update]:
        payload = {**update.payload, "bias": self._correction(turn.stage.round)}
        return super().finish(turn, state, replace(update, payload=payload))

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        base = fold_bias(received["base"], received["bias"])
        return super().predict(state, {"base": base}, task, x)

    def _correction(self, number: int) -> dict[str, Array]:
        """Learn the second stage's scale and shift of each class, shape (classes,).

        They minimise the cross-entropy of ``alpha z + beta`` for new classes and z for
        old ones, in the epochs of `BicParams`. Old classes have scale 1 and shift 0.
        """
        params, context, held = self.params, self.context, self._held
        scale = np.ones(self.model.classes, np.float32)
        shift = np.zeros_like(scale)
        if not (self.teacher.teaches and len(held.y) and params.bias_epochs):
            return {"scale": scale, "shift": shift}
        logits = mask_logits(outputs(self.model, held).logits, self.known)
        alpha = nn.Parameter(torch.ones(1, device=context.device))
        beta = nn.Parameter(torch.zeros(1, device=context.device))
        new = np.setdiff1d(self.teacher.new, self.teacher.old)
        columns = to_torch(new, context.device)

        def objective(rows: Tensor, y: Tensor) -> Tensor:
            z = logits[rows]
            corrected = z.index_copy(1, columns, alpha * z[:, columns] + beta)
            return cross_entropy(corrected, y)

        rows = torch.arange(len(held.y), device=held.y.device)
        job = Fit(
            parameters={"alpha": alpha, "beta": beta},
            objective=objective,
            examples=Examples(rows, held.y),
            training=replace(
                context.training,
                epochs=params.bias_epochs,
                learning_rate=params.bias_rate,
            ),
            seed=derive(context.seed, "bic-bias", context.client, number),
        )
        fit(job)
        scale[new], shift[new] = to_numpy(alpha), to_numpy(beta)
        return {"scale": scale, "shift": shift}


def hold_out(
    examples: Examples, count: int, rng: np.random.Generator
) -> tuple[Examples, Examples]:
    """Hold out ``count`` samples of each class; at least one sample of each stays."""
    y = to_numpy(examples.y)
    held = np.zeros(len(y), bool)
    for label in np.unique(y):
        places = rng.permutation(np.flatnonzero(y == label))
        held[places[: min(count, len(places) - 1)]] = True
    out = torch.from_numpy(held).to(examples.y.device)
    if not len(y):  # an empty memory's samples have no shape
        return examples, examples
    kept = Examples(examples.x[~out], examples.y[~out])
    return kept, Examples(examples.x[out], examples.y[out])


def fold_bias(base: Arrays, bias: Arrays) -> Arrays:
    """Write a correction of the logits into the head of a network."""
    scale, shift = dense(bias["scale"]), dense(bias["shift"])
    weight, offset = dense(base[WEIGHT]), dense(base[OFFSET])
    return {**base, WEIGHT: weight * scale[:, None], OFFSET: offset * scale + shift}
