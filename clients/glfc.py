"""GLFC, client side: old and new classes learn at one pace, with an old teacher.

Dong et al., CVPR 2022, https://arxiv.org/abs/2203.11473, sections 3.2 and 3.3. The
paper writes the losses with softmax probabilities and the divergence of the old model's
from the new one's. This is the form of the released code: a sigmoid for each class, and
binary cross-entropies. Then the target of the second loss need not sum to 1. Its
gradient is that of the divergence of each class.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, normalize, one_hot
from typing_extensions import override

from fcl_flower.algorithms.exemplars import memory_seed, remember, replay_samples
from fcl_flower.algorithms.local_training import Batch, LocalTraining, Turn
from fcl_flower.algorithms.teacher import MODEL
from fcl_flower.core.types import Array, Arrays, Payload, Update
from fcl_flower.data.examples import Examples, concat
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.distillation import hidden_features, outputs
from fcl_flower.training.tensors import arrays_of, dense, load, to_numpy, to_torch
from strategies.glfc import GlfcParams
from strategies.glfc.trainer import EncodingNetwork, sample_gradients

PERTURBATION_RATE = 200.0
"""The length of a perturbation step in gradients; our choice. The released code has
0.2, which hides nothing."""
_LEAST = 1e-12


class Glfc(LocalTraining[GlfcParams]):
    """A learner that minimises the compensated and the distilled loss.

    Both are over the task and the memory. In the first task, and wherever there is no
    old model, there is only the compensated loss.

    State beside that of `LocalTraining`: ``memory``, the samples of old tasks, and
    ``memory/teacher``, the old model, which the server has chosen. ``progress`` has
    three arrays. ``task`` is the number of tasks that the client has begun; the memory
    uses it where tasks are unknown. ``entropy`` is that of the client's predictions in
    the last round. ``old``, uint8, (classes,), marks the classes of the old model.
    """

    balances = ("batches",)  # the loss has weights of its own

    @override
    def prepare(self) -> None:
        """Draw the encoding network, the same as the server's."""
        model, context = self.model, self.context
        network = EncodingNetwork(model.input_shape, model.classes, context.seed)
        self._encoder = network.to(context.device)

    @override
    def init(self) -> Payload:
        old = np.zeros(self.model.classes, np.uint8)
        begun = {"task": np.asarray(0), "entropy": np.asarray(0.0), "old": old}
        return {"progress": begun}

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        state, received, stage, data = turn
        memory = state.get("memory", {})
        params, model, device = self.params, self.model, self.context.device
        load(model, received["base"])
        progress, begins = self._advance(turn)
        old_model = received.get("old", {}) if begins else state.get(MODEL, {})
        is_known = params.transition == "known"
        task = stage.task if is_known else int(np.asarray(progress["task"]))
        replayed = replay_samples(memory, device, without=task)
        examples = concat([data.train, replayed])
        is_new = torch.isin(examples.y, data.train.y)
        old_classes = to_torch(progress["old"], device).bool()
        taught: Tensor | None = None
        if old_model:
            load(model, old_model)
            taught = outputs(model, examples).logits.sigmoid()

        def loss(batch: Batch) -> Tensor:
            logits, labels = batch.logits.float(), batch.labels
            weights = torch.ones_like(logits[:, 0])
            if len(replayed.y):
                weights = compensation_weights(logits, labels, is_new[batch.rows])
            balanced = compensated(logits, labels, weights)
            if taught is None:
                return balanced
            answers = taught[batch.rows]
            distilled = relation_distilled(logits, labels, answers, old_classes)
            return params.compensation * balanced + params.distillation * distilled

        state, update = self.fit_locally(turn, examples, loss=loss)
        features = hidden_features(model, data.train)
        # Samples of the task enter the memory in each of its rounds.
        seed = memory_seed(self.context, task)
        memory = remember(memory, data.train, params, seed, task, to_numpy(features))
        if begins and len(data.train.y):
            shown = self._prototypes(data.train, features, stage.round)
            update = update.with_groups({"prototypes": shown})
        groups = {"memory": memory, "progress": progress, MODEL: old_model}
        return {**state, **groups}, update

    def _advance(self, turn: Turn) -> tuple[dict[str, Array], bool]:
        """Compute the client's progress, and tell whether a task begins."""
        progress, examples = turn.state["progress"], turn.data.train
        now = {name: np.asarray(dense(value)) for name, value in progress.items()}
        begins = turn.stage.starts_task
        if self.params.transition == "entropy" and len(examples.y):
            answers = outputs(self.model, examples).logits.softmax(1)
            entropy = float(torch.special.entr(answers).sum(1).mean())
            begins = entropy - float(now["entropy"]) >= self.params.entropy_rise
            now["entropy"] = np.asarray(entropy)
        if begins:
            now["task"] = np.asarray(int(now["task"]) + 1)
            now["old"] = np.zeros(self.model.classes, np.uint8)
            if "old" in turn.received:
                now["old"] = np.array(dense(turn.received["meta/old"]["classes"]))
        return now, begins

    def _prototypes(self, examples: Examples, features: Tensor, number: int) -> Arrays:
        context = self.context
        places = prototypes(features, examples.y)
        chosen = Examples(examples.x[places], examples.y[places])
        shown = perturbed(
            self.model,
            chosen,
            feature_spread(features, examples.y),
            noise=self.params.noise,
            steps=self.params.perturbation_steps,
            rate=PERTURBATION_RATE,
            seed=context.derive("perturbation", number),
        )
        return arrays_of(sample_gradients(self._encoder, shown, chosen.y))


# ---- the two losses, on logits alone (equations 2 to 5)


def compensation_weights(logits: Tensor, labels: Tensor, new: Tensor) -> Tensor:
    """Weigh each sample of a batch, shape (batch,), without a gradient (2 to 4).

    A weight is |G| / mean |G|. The mean is over the samples of the ``new`` classes or
    of the old ones, like the sample. So both kinds weigh by their numbers. G is the
    gradient by the logit of the label: its probability minus 1.
    """
    own = logits.detach().gather(1, labels[:, None])[:, 0]
    sizes = 1 - own.sigmoid()
    means = torch.zeros_like(sizes)
    for group in (new, ~new):
        if group.any():
            means[group] = sizes[group].mean()
    return sizes / means.clamp(min=_LEAST)


def compensated(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Compute the mean weighted binary cross-entropy over samples and classes."""
    wanted = one_hot(labels, logits.shape[1]).to(logits.dtype)
    entries = binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    return (weights[:, None] * entries).mean()


def relation_distilled(
    logits: Tensor, labels: Tensor, taught: Tensor, old: Tensor
) -> Tensor:
    """Compute the binary cross-entropy with an old model's answers (equation 5).

    ``taught`` are its probabilities, shape (batch, classes). The old model does not
    know classes that are not ``old``; their target is the label.
    """
    wanted = one_hot(labels, logits.shape[1]).to(logits.dtype)
    wanted = torch.where(old, taught, wanted)
    return binary_cross_entropy_with_logits(logits, wanted)


# ---- the prototypes that a client sends of a task's classes (section 3.3)


def prototypes(features: Tensor, labels: Tensor) -> Tensor:
    """Find in each class the place of the sample nearest to the class's mean.

    Features (N, d) are divided by their length, as in the released code. Places are in
    ascending order of class.
    """
    unit = normalize(features)
    places = []
    for label in torch.unique(labels):
        members = (labels == label).nonzero()[:, 0]
        own = unit[members]
        places.append(members[(own - own.mean(0)).norm(dim=1).argmin()])
    return torch.stack(places)


def feature_spread(features: Tensor, labels: Tensor) -> Tensor:
    """Compute the standard deviation of each feature within each class.

    The shape is (classes that occur, d), ascending by class. A class of one sample has
    0.
    """
    classes = torch.unique(labels)
    spreads = [features[labels == label].std(0, correction=0) for label in classes]
    return torch.stack(spreads)


def perturbed(
    model: MultiHeadModel,
    samples: Examples,
    spread: Tensor,
    *,
    noise: float,
    steps: int,
    rate: float,
    seed: int,
) -> Tensor:
    """Move images by steps down the loss of features with added noise.

    A step is x <- x - rate * grad_x L(h(phi(x) + noise * N(0, spread^2)), y). Here phi
    is the body, h the head, L the binary cross-entropy, and ``noise`` the paper's
    gamma. The released code leaves the noise out. With 0 steps x stays.
    """
    model.eval()
    draw = torch.Generator().manual_seed(seed)
    head, x = model.heads[0], samples.x
    wanted = one_hot(samples.y, model.classes).to(x.dtype)
    for _ in range(steps):
        x = x.detach().requires_grad_()
        hidden = model.body(x)
        drawn = torch.randn(hidden.shape, generator=draw).to(hidden.device)
        logits = head(hidden + noise * spread * drawn)
        # The mean becomes a sum, so an image's step ignores the other images.
        loss = binary_cross_entropy_with_logits(logits, wanted) * len(x)
        (slope,) = torch.autograd.grad(loss, x)
        x = x - rate * slope
    return x.detach()
