"""FedCBDR, client side: samples are drawn by their leverage, and a loss balances them.

Qi et al., 2025, https://arxiv.org/abs/2507.07712.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fcl_flower.algorithms import exemplars
from fcl_flower.algorithms.base import ClientQueries
from fcl_flower.algorithms.local_training import Batch, LocalTraining, Turn
from fcl_flower.algorithms.teacher import CLASSES, Teacher
from fcl_flower.core.types import Array, Arrays, Payload, Update
from fcl_flower.data.examples import Examples, concat
from fcl_flower.training.distillation import hidden_features
from fcl_flower.training.tensors import dense, load, to_numpy, to_torch
from strategies.analytic.sums import symmetric, upper_half
from strategies.fedcbdr import BASE, GRAMS, SELECTION, FedCbdrParams

OLD_TEMPERATURE, NEW_TEMPERATURE = 0.9, 1.1
"""The numbers that divide the logits of old and of new classes."""


class FedCbdr(LocalTraining[FedCbdrParams], ClientQueries):
    """A learner of new and stored samples, with temperatures by class.

    State beside that of `LocalTraining`: ``memory``, which has for each sample its
    ``rank``, the place in the order in which its class was drawn. Of the groups of
    `Teacher` the state has the classes alone.
    """

    balances = ("batches",)  # the loss has weights of its own

    @override
    def answer_query(self, turn: Turn) -> Payload:
        _, question, _, data = turn
        features = self._features(question, data.train)
        counts = np.bincount(to_numpy(data.train.y), minlength=self.model.classes)
        half = upper_half(features.T @ features)
        return {GRAMS: {"half": half, "counts": counts.astype(np.int64)}}

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        state, _, stage, data = turn
        memory = state.get("memory", {})
        params, device, count = self.params, self.context.device, len(data.train.y)
        replayed = exemplars.replay_samples(memory, device, without=stage.task)
        examples = concat([data.train, replayed])
        classes = Teacher.of_turn(turn, self.model, {})
        # The received model decides the draw, so the draw comes before training.
        memory = self._select(memory, turn)
        temperatures = torch.full((self.model.classes,), NEW_TEMPERATURE, device=device)
        temperatures[to_torch(classes.old, device)] = OLD_TEMPERATURE

        def loss(batch: Batch) -> Tensor:
            """Compute ``w_new mean_new CE(z / tau) + w_old mean_old CE(z / tau)``.

            Each class has the tau of old or of new classes. Old samples are the stored
            ones. If a batch has no sample of a kind, that term is 0.
            """
            logits = batch.logits / temperatures
            each = cross_entropy(logits, batch.labels, reduction="none")
            old = (batch.rows >= count).to(each.dtype)
            # Without samples a term is 0 / 1.
            new_term = ((1 - old) * each).sum() / (1 - old).sum().clamp(min=1)
            old_term = (old * each).sum() / old.sum().clamp(min=1)
            return params.new_weight * new_term + params.old_weight * old_term

        state, update = self.fit_locally(turn, examples, loss=loss)
        record = classes.record(stage)[CLASSES]
        return {**state, CLASSES: record, "memory": memory}, update

    def _features(self, received: Payload, examples: Examples) -> Array:
        load(self.model, received[BASE])
        return to_numpy(hidden_features(self.model, examples)).astype(np.float64)

    def _select(self, memory: Arrays, turn: Turn) -> Arrays:
        """Choose the memory after a task's last round, as the server says.

        The samples of a class that were drawn first stay, as many as the quota says.
        When old classes make room, their samples that were drawn last go.
        """
        examples, task = turn.data.train, turn.stage.task
        if SELECTION not in turn.received:
            return memory
        selection = {n: dense(tensor) for n, tensor in turn.received[SELECTION].items()}
        both = memory
        if len(examples.y):
            features = self._features(turn.received, examples)
            scores = exemplars.leverage_scores(features, symmetric(selection["gram"]))
            rng = np.random.default_rng(exemplars.memory_seed(self.context, task))
            ranks = exemplars.ranks_by_class(
                to_numpy(examples.y),
                lambda rows: exemplars.drawn_order(scores[rows], rng),
            )
            everything = np.arange(len(ranks))
            new = {**exemplars.rows_of(examples, everything, task), "rank": ranks}
            both = exemplars.joined(exemplars.without_task(memory, task), new)
        if not both:
            return memory
        quotas = selection["quotas"][dense(both["y"])]
        return exemplars.rows_at(both, exemplars.turns_by_class(both) < quotas)
