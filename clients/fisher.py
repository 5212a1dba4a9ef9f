"""How much a task needs of each shared parameter, for the penalties of EWC and FedCurv.

Kirkpatrick et al., PNAS 2017, https://arxiv.org/abs/1612.00796, section 2.1.
"""

import torch
from torch.nn.functional import cross_entropy

from fcl_flower.core.types import Array
from fcl_flower.data.examples import Examples
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.tensors import to_numpy


def diagonal_fisher(
    model: MultiHeadModel, examples: Examples, task: int, at_most: int
) -> dict[str, Array]:
    """Return the diagonal of the empirical Fisher information, by shared parameter.

    The mean over examples of the squared gradient of the log-likelihood of the
    true label; one example at a time, since a batch's gradient hides them. Zeros
    without examples.

    Args:
        model: evaluating from now on.
        examples: of which the first are taken.
        task: theirs.
        at_most: how many are, at least 1.
    """
    model.eval()
    shared = set(model.shared_names())
    weights = {n: w for n, w in model.named_parameters() if n in shared}
    total = {name: torch.zeros_like(w) for name, w in weights.items()}
    count = min(len(examples.y), at_most)
    for i in range(count):
        logits = model(examples.x[i : i + 1], task)
        loss = cross_entropy(logits, examples.y[i : i + 1])
        gradients = torch.autograd.grad(
            loss, list(weights.values()), materialize_grads=True
        )
        for name, gradient in zip(total, gradients, strict=True):
            total[name] += gradient.square()
    return {name: to_numpy(t / max(count, 1)) for name, t in total.items()}
