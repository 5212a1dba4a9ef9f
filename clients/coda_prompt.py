"""CODA-Prompt, client side: only the components of the current task are trained.

Smith et al., CVPR 2023, https://arxiv.org/abs/2211.13218, section 4.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from fcl_flower.algorithms.base import ClientLearner, Turn
from fcl_flower.algorithms.head_rows import BIAS, WEIGHT, rows_classes, rows_of
from fcl_flower.algorithms.local_training import fit_classes
from fcl_flower.core.types import Array, Arrays, Payload, SparseArray, Update
from fcl_flower.models.heads import CLOSED
from fcl_flower.models.prompts import PromptedTransformer
from fcl_flower.training.distillation import predict_logits
from fcl_flower.training.feature_cache import frozen_features
from fcl_flower.training.tensors import load, snapshot, to_torch
from strategies.coda_prompt import (
    HEADS,
    NOW,
    PROMPTED,
    PROMPTS,
    ROWS_NOW,
    ROWS_OLD,
    CodaPromptParams,
    finished_prompts,
    learned_prompts,
)


class CodaPrompt(ClientLearner[CodaPromptParams]):
    """A learner that trains the task's components and head beside old components.

    The loss is over the logits of the task's classes: the client's own, and those that
    others have reported in earlier rounds. The client sends the rows of its own
    classes.

    State: ``prompts/T`` of finished tasks T, as received; ``heads``, the rows of these
    tasks' classes.
    """

    balances = ("weights", "batches")
    augments = True

    @override
    def prepare(self) -> None:
        """Keep the initial head, which stands for rows that no client has learned."""
        self._body = self.model.body_of(PromptedTransformer, PROMPTED)
        self._first_head = snapshot(self.model, (WEIGHT, BIAS))

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        state, received, _, data = turn
        groups = {**state, **received}
        self._load_head(groups)
        load(self.model, received[NOW])
        own = torch.unique(data.train.y)
        reported = to_torch(rows_classes(received[ROWS_NOW]), str(own.device))
        classes = torch.unique(torch.cat([own, reported]))
        trained = {*received[NOW], WEIGHT, BIAS}
        with self._older(groups, finished_prompts(received)):
            # The optimizer starts anew and has the current components alone, so
            # old ones cannot move by its weight decay.
            result = fit_classes(self, turn, trained, classes, self._penalty)
        sent: Payload = {
            PROMPTS: snapshot(self.model, received[NOW]),
            HEADS: rows_of(snapshot(self.model, (WEIGHT, BIAS)), own.cpu().numpy()),
        }
        # The server sends components of finished tasks only once.
        kept = {g: received[g] for g in finished_prompts(received) if g in received}
        kept[HEADS] = rows_of(*self._head(groups, (HEADS, ROWS_OLD)))
        update = Update(sent, len(data.train.y), result.metrics())
        return {**state, **kept}, update

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        """Compute logits of all classes, with the components of all tasks so far.

        The task is not used. A class that no client has learned has the logit `CLOSED`.
        """
        payload = {**state, **received}
        unknown = self._load_head(payload).to(x.device)
        groups = learned_prompts(received)
        if not groups:
            return torch.full((len(x), self.model.classes), CLOSED, device=x.device)
        load(self.model, payload[groups[-1]])
        with self._older(payload, groups[:-1]):
            logits = predict_logits(self.model, frozen_features(self.model, x))
        return logits.masked_fill(unknown, CLOSED)

    @override
    def predictor(self, state: Payload, received: Payload, task: int) -> nn.Module:
        payload = {**state, **received}
        unknown = self._load_head(payload)
        groups = learned_prompts(received)
        load(self.model, payload[groups[-1]] if groups else {})
        with self._older(payload, groups[:-1]):
            network = self.model.network(task)
        for pool in cast(PromptedTransformer, network.body).prompt_pools:
            pool.join()
        head = cast(nn.Linear, network.head)
        head.weight[unknown] = 0.0
        head.bias[unknown] = CLOSED
        return network

    def _penalty(self) -> Tensor | float:
        weight = self.params.ortho_weight
        if not weight:
            return 0.0
        return weight * sum(pool.orthogonality() for pool in self._body.prompt_pools)

    @contextmanager
    def _older(self, payload: Payload, groups: list[str]) -> Iterator[None]:
        """Let the components of these groups take part while the context is open."""
        device = self.context.device
        older = [
            {
                name.removeprefix("body."): to_torch(tensor, device)
                for name, tensor in payload[group].items()
            }
            for group in groups
        ]
        with self._body.after(older):
            yield

    def _load_head(self, payload: Payload) -> Tensor:
        """Load the current head; return which classes no client has learned."""
        head, classes = self._head(payload, (HEADS, ROWS_OLD, ROWS_NOW))
        load(self.model, head)
        unknown = torch.ones(self.model.classes, dtype=torch.bool)
        unknown[to_torch(classes)] = False
        return unknown

    def _head(self, payload: Payload, groups: tuple[str, ...]) -> tuple[Arrays, Array]:
        """Compose the head from rows; return their classes too, int64, ascending."""
        head, classes = dict(self._first_head), np.zeros(0, np.int64)
        for group in groups:
            if group in payload:
                for name, rows in cast(
                    Mapping[str, SparseArray], payload[group]
                ).items():
                    head[name] = rows.overwrite(head[name])
                classes = np.union1d(classes, rows_classes(payload[group]))
        return head, classes
