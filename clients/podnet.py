"""PODNet: outputs of a network's stages for a sample must not move far.

Douillard et al., ECCV 2020, https://arxiv.org/abs/2004.13513, federated by averaging as
in FedET's tables (Liu et al., IJCAI 2023, section 4.1). The old model is the global one
that came with the task. Where the paper leaves details open, they follow the authors'
code. Proxies of old classes rest while a task is trained. The balanced fine-tuning
after it trains the proxies alone. One detail differs. The authors draw the proxies of a
new class from the k-means of its features. Here they are random and the same for all
clients. The centres of two clients have no common order in which they could be
averaged.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize
from typing_extensions import override

from fcl_flower.algorithms.exemplars import remember_task, replay_samples
from fcl_flower.algorithms.local_training import Batch, LocalTraining, Turn
from fcl_flower.algorithms.teacher import Teacher
from fcl_flower.config.parsing import Params
from fcl_flower.core.types import Arrays, Payload, Update
from fcl_flower.data.examples import Examples, concat
from fcl_flower.models.heads import CLOSED, GrowingHead, MultiHeadModel
from fcl_flower.training.distillation import hidden_features
from fcl_flower.training.loop import Fit, fit
from fcl_flower.training.tensors import load, snapshot, to_torch
from strategies.podnet import PodNetParams

BODY = "body."
FINETUNE_RATE = 0.5
"""The learning rate of the fine-tuning as a multiple of the usual one."""


class PodNet(LocalTraining[PodNetParams]):
    """A learner with the margin loss and distillation of maps and features.

    The loss is ``margin_loss + sqrt(seen / new) * (lambda_c spatial + lambda_f flat)``.
    Seen and new are numbers of classes. A client's first task has no distillation. The
    client trains on the task's samples and those of the memory together.

    State beside that of `LocalTraining`: the groups of a `Teacher`, and ``memory``, the
    samples of old tasks.
    """

    @override
    @classmethod
    def replace_heads(cls, model: MultiHeadModel, params: Params) -> None:
        podnet = cast(PodNetParams, params)
        model.heads = nn.ModuleList(
            LocalSimilarity(model.features, model.classes, podnet.proxies, podnet.scale)
            for _ in model.heads
        )

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        state, received, stage, data = turn
        memory = state.get("memory", {})
        params, model, context = self.params, self.model, self.context
        replayed = replay_samples(memory, context.device, without=stage.task)
        examples = concat([data.train, replayed])
        teacher = Teacher.of_turn(turn, model, received["base"])
        head, old_body = self._head, self._old_body(teacher)
        # A class that comes again is learned again.
        resting = np.isin(
            np.arange(model.classes), np.setdiff1d(teacher.old, teacher.new)
        )
        head.resting = to_torch(resting, context.device) if teacher.teaches else None
        strength = math.sqrt(len(teacher.known) / max(1, len(teacher.new)))

        def loss(batch: Batch) -> Tensor:
            margin = params.margin * head.scale
            total = margin_loss(batch.logits, batch.labels, margin, batch.weights)
            if old_body is None:
                return total
            return total + strength * self._distance(batch, maps, old_body)

        with stage_outputs(model.body) as maps:
            state, update = self.fit_locally(turn, examples, loss=loss)
        memory = remember_task(self, turn, memory)
        if stage.ends_task and teacher.teaches:
            update = self._finetune(memory, update, stage.task)
        return {**state, **teacher.record(stage), "memory": memory}, update

    @property
    def _head(self) -> "LocalSimilarity":
        return cast(LocalSimilarity, self.model.heads[0])

    def _old_body(self, teacher: Teacher) -> nn.Module | None:
        if not teacher.teaches:
            return None
        body = copy.deepcopy(self.model.body).eval()
        base = teacher.base.items()
        load(body, {n.removeprefix(BODY): w for n, w in base if n.startswith(BODY)})
        return body

    def _distance(
        self, batch: Batch, maps: Sequence[Tensor], old_body: nn.Module
    ) -> Tensor | float:
        """Compute ``lambda_c spatial + lambda_f flat`` for a batch and its maps."""
        with torch.no_grad(), stage_outputs(old_body) as old_maps:
            old_features = old_body(batch.inputs)
        spatial = spatial_distance(maps, old_maps)
        # This is half of equation 6's squared distance between features of length 1.
        flat = (1 - cosine_similarity(batch.features, old_features, dim=1)).mean()
        return self.params.spatial_strength * spatial + self.params.flat_strength * flat

    def _finetune(self, memory: Arrays, update: Update, task: int) -> Update:
        """Train the proxies on the samples of the memory, and send them."""
        context, params, head = self.context, self.params, self._head
        stored = replay_samples(memory, context.device)
        if not len(stored.y) or not params.finetune_epochs:
            return update
        head.resting = None
        margin = params.margin * head.scale.detach()
        job = Fit(
            parameters={"proxies": head.proxies},
            objective=lambda hidden, y: margin_loss(head(hidden), y, margin),
            examples=Examples(hidden_features(self.model, stored), stored.y),
            training=replace(
                context.training,
                epochs=params.finetune_epochs,
                learning_rate=FINETUNE_RATE * context.training.learning_rate,
            ),
            seed=context.derive("finetune", task),
        )
        fit(job)
        learned = snapshot(self.model, self.model.shared_names())
        return update.with_groups({"base": learned})


# ---- the local similarity classifier (equations 7 to 9)


class LocalSimilarity(GrowingHead):
    """A head with logits ``eta * y_c``, where y_c is the similarity of h and class c.

    A class has a few proxies, and the one nearest to a feature counts most. With the
    cosines ``a_k = <theta_ck, h>`` of h and the K proxies of a class, ``y_c = sum_k
    softmax(a)_k a_k``. In the place of a, the authors' code has ``2 a - 2``, minus the
    squared distance of unit vectors. The difference is a sharper softmax.

    Attributes:
        proxies: theta, shape (classes, K, features).
        scale: eta, shape (1,); learned.
        resting: bool, shape (classes,): the classes whose proxies are not trained; None
            for none.
    """

    resting: Tensor | None = None

    def __init__(self, features: int, classes: int, proxies: int, scale: float) -> None:
        """Draw K proxies a class, of mean square length 1; eta is ``scale``."""
        super().__init__()
        drawn = torch.randn(classes, proxies, features) / features**0.5
        self.proxies = nn.Parameter(drawn)
        self.scale = nn.Parameter(torch.tensor([scale]))

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Compute logits, shape (batch, classes), of features (batch, features)."""
        theta: Tensor = self.proxies
        if self.resting is not None:
            theta = torch.where(self.resting[:, None, None], theta.detach(), theta)
        cosines = torch.einsum(
            "bd,ckd->bck", normalize(x, dim=1), normalize(theta, dim=2)
        )
        similarity = (cosines.softmax(2) * cosines).sum(2)
        return self.hide(self.scale * similarity)


def margin_loss(
    logits: Tensor,
    labels: Tensor,
    margin: Tensor | float,
    weights: Tensor | None = None,
) -> Tensor:
    """Compute the mean of equation 9, the NCA loss with a margin and hinge.

    The loss is ``max(0, log sum_{c != y} exp(z_c) - (z_y - margin))``: the right class
    is compared with all others, not with itself. This is the printed form. The authors'
    code subtracts the margin from every class, and so from none, and it has no hinge.
    Closed classes do not count. ``weights`` of classes, shape (classes,), weigh the
    samples, if present.
    """
    own = labels[:, None]
    others = logits.scatter(1, own, CLOSED).logsumexp(1)
    each = (others - logits.gather(1, own)[:, 0] + margin).relu()
    return each.mean() if weights is None else (weights[labels] * each).mean()


# ---- pooled outputs distillation (equations 3 to 6)


def stages(body: nn.Module) -> list[nn.Module]:
    """List the parts of a body, in order, that have a 2-D convolution.

    A part is a block or a layer. Sequences are searched for their parts.
    """
    parts = []
    for part in body.children():
        if isinstance(part, nn.Sequential):
            parts += stages(part)
        elif any(isinstance(module, nn.Conv2d) for module in part.modules()):
            parts.append(part)
    return parts


@contextmanager
def stage_outputs(body: nn.Module) -> Iterator[list[Tensor]]:
    """Yield a list that has, after each call of ``body``, the maps of that call.

    Maps are the outputs of its `stages` of shape (batch, channels, height, width).
    Outputs of another shape are no maps.
    """
    maps: list[Tensor] = []

    def begin(module: nn.Module, inputs: object) -> None:
        maps.clear()

    def note(module: nn.Module, inputs: object, output: Tensor) -> None:
        if output.ndim == 4:
            maps.append(output)

    handles = [body.register_forward_pre_hook(begin)]
    handles += [stage.register_forward_hook(note) for stage in stages(body)]
    try:
        yield maps
    finally:
        for handle in handles:
            handle.remove()


def spatial_distance(maps: Sequence[Tensor], old: Sequence[Tensor]) -> Tensor | float:
    """Compute POD-spatial: the mean over stages and samples; 0 without any stage.

    A map (batch, channels, height, width) is summed over its width, and over its
    height; both sums together are one vector. Three details follow the authors' code
    and not equations 3 to 5. A map's values are squared first, the vector has length 1,
    and the distance is not squared.
    """
    distances = [
        torch.linalg.vector_norm(_pooled(new) - _pooled(before), dim=1).mean()
        for new, before in zip(maps, old, strict=True)
    ]
    return torch.stack(distances).mean() if distances else 0.0


def _pooled(maps: Tensor) -> Tensor:
    energy = maps.square()
    sums = [energy.sum(3).flatten(1), energy.sum(2).flatten(1)]
    return normalize(torch.cat(sums, 1), dim=1)
