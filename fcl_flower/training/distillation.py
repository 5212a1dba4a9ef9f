"""Teaching a model the logits of others, on a client or on the server.

Ba and Caruana, NeurIPS 2014: squared error between logits, without a softmax; or
Hinton et al., 2015, https://arxiv.org/abs/1503.02531: divergence of softened answers.
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
    """Samples with the logits that a model is trained to give.

    Attributes:
        x: inputs, or what `MultiHeadModel.frozen_features` makes of them, N of them.
        targets: logits, shape (N, classes).
        classes: int64, indices of the logits that count.
        labels: int64, shape (N,), indices in the head; only used with a weight.
        weight: of the cross-entropy of the labels beside the squared error. It is over
            the classes that occur, so that no sample speaks against a class of which
            there is none.
    """

    x: Tensor
    targets: Tensor
    classes: Tensor
    labels: Tensor
    weight: float = 0.0


def softened_kl(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Compute KL(softmax(targets / T) || softmax(logits / T)) of each sample."""
    learned = torch.log_softmax(logits / temperature, 1)
    taught = torch.log_softmax(targets / temperature, 1)
    return kl_div(learned, taught, reduction="none", log_target=True).sum(1)


def distillation_loss(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Compute ``T^2 KL(softmax(targets / T) || softmax(logits / T))``, a batch's mean.

    Hinton et al., section 2: with T^2 the gradient keeps its size whatever T is. The
    cross-entropy of both, which others print, differs from it by the entropy of the
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
    """Train all of a model that is not frozen; return the last epoch's mean loss.

    The squared error is averaged over samples and classes, as in FedET's (4) and (7).
    The model has a single head, and holds where training starts. The rate is constant.
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
    found = [model(part.x, 0) for part in batches(Examples(x, numbers), batch_size)]
    nothing = torch.zeros(0, model.classes, device=x.device)
    return torch.cat(found) if found else nothing


class Outputs(NamedTuple):
    """What a model makes of N samples, in evaluation mode and without a graph.

    Logits (N, classes), which are `CLOSED` where a growing head is, and the body's
    hidden features (N, features).
    """

    logits: Tensor
    hidden: Tensor


@torch.no_grad()
def outputs(model: MultiHeadModel, examples: Examples) -> Outputs:
    """Compute what the single head and the body make of samples, chunk by chunk."""
    hidden = hidden_features(model, examples)
    return Outputs(model.heads[0](hidden), hidden)


@torch.no_grad()
def hidden_features(model: MultiHeadModel, examples: Examples) -> Tensor:
    """Compute the body's output for samples, (N, features), in evaluation mode."""
    model.eval()
    found = [model.body(x) for x, _ in batches(examples, _CHUNK)]
    nothing = torch.zeros(0, model.features, device=examples.x.device)
    return torch.cat(found) if found else nothing
