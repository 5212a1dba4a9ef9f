"""Distillation of other models' logits into a model, on a client or on the server.

The loss is the squared error between logits, without a softmax (Ba and Caruana, NeurIPS
2014), or the divergence of softened probabilities (Hinton et al., 2015,
https://arxiv.org/abs/1503.02531).
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from fcl_flower.data.examples import Examples, batches
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.loop import Fit, Training, fit

_CHUNK = 512


class DistillationSet(NamedTuple):
    """A set of samples with the target logits that a model learns.

    Attributes:
        x: N inputs, or their `MultiHeadModel.frozen_features`.
        targets: target logits, shape (N, classes).
        classes: indices of the logits that count, int64.
        labels: indices in the head, int64, shape (N,); only used with a weight.
        weight: weight of the labels' cross-entropy beside the squared error. The
            cross-entropy covers only classes that occur, so that no sample lowers the
            logit of an absent class.
    """

    x: Tensor
    targets: Tensor
    classes: Tensor
    labels: Tensor
    weight: float = 0.0


def softened_kl(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Compute ``KL(softmax(targets / T) || softmax(logits / T))`` of each sample.

    Both logits have the shape (N, classes), the result (N,).
    """
    learned = torch.log_softmax(logits / temperature, 1)
    taught = torch.log_softmax(targets / temperature, 1)
    return kl_div(learned, taught, reduction="none", log_target=True).sum(1)


def distillation_loss(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Compute a batch's mean ``T^2 KL(softmax(targets / T) || softmax(logits / T))``.

    The factor T^2 keeps the size of the gradient for every T (Hinton et al., section
    2). The cross-entropy in other papers differs from this loss by the entropy of the
    targets, which has no gradient.
    """
    return temperature**2 * softened_kl(logits, targets, temperature).mean()


def distill(
    model: MultiHeadModel,
    data: DistillationSet,
    training: Training,
    epochs: int,
    seed: int,
) -> float:
    """Train all trainable parameters of a model by squared error to target logits.

    The squared error is averaged over samples and classes, as in FedET's (4) and (7).
    The learning rate is constant.

    Args:
        model: model with a single head, trained from its present weights.
        data: samples and target logits.
        training: batch size, rate and optimizer.
        epochs: passes over the samples.
        seed: seed of the order of the samples.

    Returns:
        the mean loss of the last epoch.
    """
    targets = data.targets[:, data.classes]
    present, labels = torch.unique(data.labels, return_inverse=True)

    def objective(x: Tensor, which: Tensor) -> Tensor:
        model.train()
        logits = model(x, 0)
        error: Tensor = logits[:, data.classes] - targets[which]
        loss = error.square().mean()
        if data.weight:
            entropy = cross_entropy(logits[:, present], labels[which])
            loss = loss + data.weight * entropy
        return loss

    job = Fit(
        parameters={n: p for n, p in model.named_parameters() if p.requires_grad},
        objective=objective,
        examples=Examples(data.x, torch.arange(len(data.x), device=data.x.device)),
        training=replace(training, epochs=epochs),
        seed=seed,
    )
    return fit(job).loss


@torch.no_grad()
def predict_logits(model: MultiHeadModel, x: Tensor, batch_size: int = 64) -> Tensor:
    """Compute the logits of a model in evaluation mode, shape (N, classes)."""
    model.eval()
    numbers = torch.arange(len(x))
    logits = [model(batch.x, 0) for batch in batches(Examples(x, numbers), batch_size)]
    empty = torch.zeros(0, model.classes, device=x.device)
    return torch.cat(logits) if logits else empty


class Outputs(NamedTuple):
    """A model's outputs for N samples, in evaluation mode and without gradients.

    Attributes:
        logits: logits, (N, classes), which are `CLOSED` for closed classes.
        hidden: the body's features, (N, features).
    """

    logits: Tensor
    hidden: Tensor


@torch.no_grad()
def outputs(model: MultiHeadModel, examples: Examples) -> Outputs:
    """Compute the outputs of the single head and of the body, chunk by chunk."""
    hidden = hidden_features(model, examples)
    return Outputs(model.heads[0](hidden), hidden)


@torch.no_grad()
def hidden_features(model: MultiHeadModel, examples: Examples) -> Tensor:
    """Compute the body's output for samples, (N, features), in evaluation mode."""
    model.eval()
    hidden = [model.body(x) for x, _ in batches(examples, _CHUNK)]
    empty = torch.zeros(0, model.features, device=examples.x.device)
    return torch.cat(hidden) if hidden else empty
