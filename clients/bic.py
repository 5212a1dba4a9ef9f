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

from fcl_flower.algorithms.exemplars import remember_task, replay_samples
from fcl_flower.algorithms.local_training import Batch, LocalTraining, Turn
from fcl_flower.algorithms.teacher import Teacher
from fcl_flower.core.types import Array, Arrays, Payload, Update
from fcl_flower.data.examples import Examples, concat
from fcl_flower.models.heads import mask_logits
from fcl_flower.training.balance import mean_cross_entropy
from fcl_flower.training.distillation import distillation_loss, outputs
from fcl_flower.training.loop import Fit, fit
from fcl_flower.training.tensors import dense, to_numpy, to_torch
from strategies.bic import BicParams

WEIGHT, OFFSET = "heads.0.weight", "heads.0.bias"


class Bic(LocalTraining[BicParams]):
    """A learner that trains the network, and then the correction of its head.

    State beside that of `LocalTraining`: the groups of a `Teacher`, and ``memory``, the
    samples of old tasks.
    """

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        state, received, stage, data = turn
        memory = state.get("memory", {})
        params, model, context = self.params, self.model, self.context
        replayed = replay_samples(memory, context.device, without=stage.task)
        examples, held = self._held_out(data.train, replayed, stage.task)
        corrected = fold_bias(received["base"], received["bias"])
        teacher = Teacher.of_turn(turn, model, corrected)
        old, new, known = teacher.places(context.device)
        taught = teacher.outputs(model, examples)

        def loss(batch: Batch) -> Tensor:
            """Compute ``lambda L_d + (1 - lambda) L_c``, with lambda = n / (n + m).

            m and n are the numbers of the task's classes and of all others so far, so
            that L_c counts where a task has no new class. L_d is over old classes alone
            and without the factor T^2. L_c is over all classes so far.
            """
            masked = mask_logits(batch.logits, known)
            entropy = mean_cross_entropy(masked, batch.labels, batch.weights)
            if taught is None:
                return entropy
            share, temperature = 1 - len(new) / len(known), params.temperature
            answers = taught.logits[batch.rows][:, old]
            distilled = distillation_loss(batch.logits[:, old], answers, temperature)
            return share * distilled / temperature**2 + (1 - share) * entropy

        state, update = self.fit_locally(turn, examples, loss=loss)
        bias = self._correction(held, teacher, stage.round)
        memory = remember_task(self, turn, memory)
        state = {**state, **teacher.record(stage), "memory": memory}
        return state, update.with_groups({"bias": bias})

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        base = fold_bias(received["base"], received["bias"])
        return super().predict(state, {"base": base}, task, x)

    def _held_out(
        self, new: Examples, replayed: Examples, task: int
    ) -> tuple[Examples, Examples]:
        """Split the samples into those of the first stage and those of the second."""
        context = self.context
        seed = context.derive("bic-held-out", task)
        rng, count = np.random.default_rng(seed), 0
        if len(labels := replayed.y):
            a_class = len(labels) / len(torch.unique(labels))
            count = max(1, round(self.params.held_out * a_class))
        first_old, second_old = hold_out(replayed, count, rng)
        first_new, second_new = hold_out(new, count, rng)
        return concat([first_new, first_old]), concat([second_new, second_old])

    def _correction(
        self, held: Examples, teacher: Teacher, number: int
    ) -> dict[str, Array]:
        """Learn the second stage's scale and shift of each class, shape (classes,).

        They minimise the cross-entropy of ``alpha z + beta`` for new classes and z for
        old ones, in the epochs of `BicParams`. Old classes have scale 1 and shift 0.
        """
        params, context = self.params, self.context
        scale = np.ones(self.model.classes, np.float32)
        shift = np.zeros_like(scale)
        if not (teacher.teaches and len(held.y) and params.bias_epochs):
            return {"scale": scale, "shift": shift}
        known = to_torch(teacher.known, context.device)
        logits = mask_logits(outputs(self.model, held).logits, known)
        alpha = nn.Parameter(torch.ones(1, device=context.device))
        beta = nn.Parameter(torch.zeros(1, device=context.device))
        new = np.setdiff1d(teacher.new, teacher.old)
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
            seed=context.derive("bic-bias", number),
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
