"""AF-FCL, client side: network and flow learn together; the flow draws what is old.

Wuerkaixi et al., ICLR 2024, https://arxiv.org/abs/2502.14205, in the order and with
the terms of the authors' code.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from clients.af_fcl.credibility import credibility
from clients.af_fcl.flow import Flow
from clients.fedavg import Sgd
from clients.lwf.teacher import MODEL, Outputs, Teacher, outputs
from fcl_flower.core.seeds import derive
from fcl_flower.core.types import Arrays, Payload, TaskStage, Update
from fcl_flower.data.examples import TaskData
from fcl_flower.models.seeded import seeded
from fcl_flower.training.distillation import divergence
from fcl_flower.training.tensors import load, snapshot, to_torch
from strategies.af_fcl import AfFclParams

FLOW = "flow."


class Old(NamedTuple):
    """What was global before the task.

    Attributes:
        found: what the old model makes of the training examples.
        head: its head.
        flow: its flow.
        classes: int64, places in the head of the classes that it has learned.
    """

    found: Outputs
    head: nn.Module
    flow: Flow
    classes: Tensor


class AfFcl(Sgd[AfFclParams]):
    """Train the network by its own samples and by features of the flow, and the flow.

    With h the features and z the logits of a batch, and * what the old model makes, the
    loss is

        CE(z, y) - log p(h | y) - flow_memory * log p(h' | c')
        + feature_distillation * (h - h*)^2 + output_distillation * KL(z* || z)
        + replay * (s w(h~) CE(z(h~), c~) + output_distillation * KL(z*(h~) || z(h~))),
        s = (1 - exploration) * q + exploration.

    p is the flow's density, h' are drawn from the old flow for old classes, h~ from the
    flow for all classes so far, and w is their `credibility`. q is the mean over the
    batch of p(h | y)^(1/D), D the number of features. No term trains the body for the
    flow, or the flow for the head. Without old classes there are no old model and flow.

    The code takes one step for each of flow, replay and network, and its replay trains
    a hidden layer behind the features, while here it trains the head, which is linear.
    Its KL is over all classes, here over the old ones. Classes so far are those that a
    client has met, or with a growing head those of all clients.

    State beside that of `Sgd`: that of `Teacher`, with the old flow in its model.
    """

    needs_single_head = True
    temporary = (*Sgd.temporary, MODEL)
    for_training = ("flow",)

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        context, labels = self.context, data.train.y
        joined = {FLOW + name: values for name, values in received["flow"].items()}
        whole = {"base": {**received["base"], **joined}}
        teacher = Teacher.of_task(state, whole, stage, self.model, labels)
        self._flow = self._loaded(received["flow"])
        self._old: Old | None = None
        if teacher.teaches and len(labels):
            self._old = self._before(teacher, data)
        self._known = to_torch(teacher.known, context.device)
        seed = derive(context.seed, "flow-samples", context.client, stage.round)
        self._generator = torch.Generator().manual_seed(seed)
        after, update = super().train(state, received, stage, data)
        sent = {**update.payload, "flow": snapshot(self._flow, received["flow"])}
        return {**after, **teacher.kept(stage)}, Update(
            sent, update.num_examples, update.metrics
        )

    @override
    def beside(self) -> Mapping[str, nn.Parameter]:
        return {FLOW + name: p for name, p in self._flow.named_parameters()}

    @override
    def rates(self) -> Mapping[str, float]:
        return dict.fromkeys(self.beside(), self.params.flow_rate)

    @override
    def loss(
        self, logits: Tensor, labels: Tensor, rows: Tensor, hidden: Tensor
    ) -> Tensor:
        params, old = self.params, self._old
        latents, density = self._flow(hidden.detach().float(), labels)
        found: Tensor = cross_entropy(logits, labels) - density.mean()
        if old is not None:
            apart = (hidden - old.found.hidden[rows]).square().mean()
            answers = self._diverged(logits, old.found.logits[rows], old)
            found = found + params.feature_distillation * apart
            found = found + params.output_distillation * answers
            if params.flow_memory:
                features, _, classes = self._drawn(old.flow, old.classes, len(labels))
                again = self._flow(features, classes)[1].mean()
                found = found - params.flow_memory * again
        if params.replay:
            found = found + params.replay * self.replayed(labels, latents, density)
        return found

    def replayed(self, labels: Tensor, latents: Tensor, density: Tensor) -> Tensor:
        """Return the loss of as many drawn features as a batch has examples, shape ().

        Args:
            labels: of the batch, shape (batch,).
            latents: of its features, shape (batch, features).
            density: log density of its features, shape (batch,).
        """
        params, old, head = self.params, self._old, self.model.heads[0]
        features, noise, classes = self._drawn(self._flow, self._known, len(labels))
        typical = (density.detach() / latents.shape[1]).exp().mean()
        drawn = noise if params.compared == "latents" else features
        weights = credibility(latents.detach(), labels, drawn, classes, typical)
        share = (1 - params.exploration) * typical + params.exploration
        logits = head(features)
        entropy = cross_entropy(logits, classes, reduction="none")
        found = share * (weights * entropy).mean()
        if old is None:
            return found
        answers = self._diverged(logits, old.head(features), old)
        return found + params.output_distillation * answers

    def _diverged(self, logits: Tensor, targets: Tensor, old: Old) -> Tensor:
        """Return the mean divergence over the old classes from the old answers."""
        at = old.classes
        return divergence(logits[:, at], targets[:, at], self.params.temperature).mean()

    def _drawn(
        self, flow: Flow, classes: Tensor, count: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return features, their latents and their classes, which are drawn alike.

        Args:
            flow: from which they come.
            classes: from which theirs are drawn, int64.
            count: of features.
        """
        draw, device = self._generator, self.context.device
        at = torch.randint(len(classes), (count,), generator=draw).to(device)
        noise = torch.randn(count, self.model.features, generator=draw).to(device)
        chosen = classes[at]
        return flow.inverse(noise, chosen), noise, chosen

    def _before(self, teacher: Teacher, data: TaskData) -> Old:
        """Return what the teacher knows; the model holds the old one afterwards."""
        network = {n: a for n, a in teacher.base.items() if not n.startswith(FLOW)}
        flow = {
            name.removeprefix(FLOW): values
            for name, values in teacher.base.items()
            if name.startswith(FLOW)
        }
        load(self.model, network)
        found = outputs(self.model, data.train)
        head = deepcopy(self.model.heads[0]).requires_grad_(requires_grad=False)
        old = self._loaded(flow).requires_grad_(requires_grad=False)
        return Old(found, head, old, to_torch(teacher.old, self.context.device))

    def _loaded(self, tensors: Arrays) -> Flow:
        """Return a flow with parameters that were received."""
        params, model, seed = self.params, self.model, self.context.seed
        with seeded(0):  # what is drawn is replaced
            flow = Flow(
                model.features,
                model.classes,
                params.flow_layers,
                params.flow_hidden,
                seed,
            )
        load(flow, tensors)
        return flow.to(self.context.device)
