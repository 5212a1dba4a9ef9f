"""FedSSI: each weight is held back by what it did for old tasks of this client.

Li et al., ICML 2025, https://arxiv.org/abs/2412.13779: Synaptic Intelligence (Zenke et
al., ICML 2017, https://arxiv.org/abs/1703.04200, equations 3 to 5), with the way of a
weight measured on a model of the client's own, the surrogate v. It goes in steps

    v <- v - eta (g + q (v - w)),    g = grad L(v),    q = (1 - lambda) / (2 lambda),

w the global model, and a weight's contribution s adds up -g_i times its step. Then
Omega_i += s_i / (d_i^2 + xi), d the whole way, and a later task minimises
L + alpha sum_i Omega_i (w_i - w_i')^2 from the global model w' at its beginning.

The authors have released no code, and we had not the paper's text: these equations are
those that others tell of it. Ours are: that v starts at the global model with which the
task began, goes this way once, when the task ends, while its data are there, and is
thrown away; w as it was received last; and that a negative s is 0, without which the
penalty would have no lower bound.
"""

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from clients.fedavg import Sgd
from fcl_flower.core.errors import refuse
from fcl_flower.core.seeds import derive
from fcl_flower.core.types import Array, Arrays, Payload, TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData, batches
from fcl_flower.models.seeded import seeded
from fcl_flower.training.feature_cache import frozen_features
from fcl_flower.training.tensors import dense, load, to_numpy, to_torch
from strategies.fedssi import FedSsiParams, pull


class FedSsi(Sgd[FedSsiParams]):
    """Add ``strength * sum Omega (w - anchor)^2`` over the shared parameters.

    State beside that of `Sgd`: ``omega``, refreshed when a task ends, and ``anchor``,
    the model that was received at the beginning of the task; empty between tasks.
    """

    temporary = (*Sgd.temporary, "anchor")

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        device, omega = self.context.device, state.get("omega", {})
        begun = {} if stage.starts_task else state.get("anchor", {})
        anchor = begun or received["base"]
        self._terms = [
            (weight, to_torch(omega[name], device), to_torch(anchor[name], device))
            for name, weight in self.model.named_parameters()
            if name in omega
        ]
        state, update = super().train(
            {**state, "anchor": anchor}, received, stage, data
        )
        if stage.ends_task:
            found = self.importance(anchor, received["base"], stage, data.train)
            if omega:
                found = {n: dense(omega[n]) + values for n, values in found.items()}
            state = {**state, "omega": found, "anchor": {}}
        return state, update

    @override
    def penalty(self, rows: Tensor, hidden: Tensor) -> Tensor | float:
        terms = (omega * (w - anchor).square() for w, omega, anchor in self._terms)
        return self.params.strength * sum(term.sum() for term in terms)

    def importance(
        self, start: Arrays, center: Arrays, stage: TaskStage, examples: Examples
    ) -> dict[str, Array]:
        """Return Omega of one task by name, at least 0.

        The head of a task goes along, from where it is now; it is nobody else's, so
        that it is neither pulled nor held later.

        Args:
            start: the shared tensors from which the surrogate sets out.
            center: those that it is pulled to.
            stage: of the round.
            examples: the task's training data.

        Raises:
            ConfigError: the surrogate diverges.
        """
        model, params, context = self.model, self.params, self.context
        load(model, start)
        shared, own = set(model.shared_names()), set(model.head_names(stage.task))
        named = dict(model.named_parameters())
        weights = {n: w for n, w in named.items() if n in shared or n in own}
        on_device = partial(to_torch, device=context.device)
        centers = {n: on_device(center[n]) for n in weights if n in shared}
        gained = {name: torch.zeros_like(value) for name, value in centers.items()}
        seen = Examples(frozen_features(model, examples.x), examples.y)
        model.train()
        place = (context.client, stage.round)
        with seeded(derive(context.seed, "surrogate-dropout", *place)):
            for epoch in range(params.surrogate_epochs):
                order = derive(context.seed, "surrogate-shuffle", *place, epoch)
                for x, y in batches(seen, context.training.batch_size, order):
                    loss = cross_entropy(model(x, stage.task), y)
                    self.step(loss, weights, centers, gained)
        ways = {
            name: weights[name].detach() - on_device(start[name]) for name in gained
        }
        found = {
            name: to_numpy(gain.clamp(min=0) / (ways[name] ** 2 + params.damping))
            for name, gain in gained.items()
        }
        # Kept, it would spoil all later tasks.
        if not all(np.isfinite(values).all() for values in found.values()):
            expected = "one with which the surrogate does not diverge"
            raise refuse("strategy.surrogate_rate", params.surrogate_rate, expected)
        return found

    def step(
        self,
        loss: Tensor,
        weights: Mapping[str, Tensor],
        centers: Mapping[str, Tensor],
        gained: Mapping[str, Tensor],
    ) -> None:
        """Move the surrogate by one step, and add what each weight has gained.

        Args:
            loss: of a batch, a scalar.
            weights: v by name; changed.
            centers: what some of them are pulled to.
            gained: s of the same; changed.
        """
        gradients = torch.autograd.grad(
            loss, list(weights.values()), allow_unused=True, materialize_grads=True
        )
        with torch.no_grad():
            for (name, v), gradient in zip(weights.items(), gradients, strict=True):
                slope = gradient
                if name in centers:
                    held = pull(self.params.locality)
                    slope = gradient + held * (v - centers[name])
                    gained[name].add_(
                        gradient * slope, alpha=self.params.surrogate_rate
                    )
                v -= self.params.surrogate_rate * slope
