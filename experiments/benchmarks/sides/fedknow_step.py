"""A training step of FedWeIT as LINC-BIT/FedKNOW computes it, on our LeNet.

Written anew after reading ``models/layer.py`` and ``single/ContinualLearningMethod/
WEIT.py`` of https://github.com/LINC-BIT/FedKNOW (commits 514da70 and 5c8cf66), the best
public PyTorch port that we know. What decides its cost is kept:

- theta = sw * sigmoid(mask) + aw + sum_k atten_k kb_k, with the others' adapters as
  one dense tensor, a slice for each client, multiplied and summed in each step; zeros
  at the first task, and multiplied all the same;
- the loss adds, for each layer, wd/2 |aw|^2, wd/2 |mask|^2, l1 |aw|_1 and l |mask|_1;
  at the first task wd/2 |sw|^2, later l2/2 |sw * sigmoid(m_i) + a_i - theta_i|^2 for
  each finished task i, all dense;
- plain Adam over sw, mask, aw, atten and the rest, with weight decay, and gradients
  set to zero twice.

Its dense output over all classes is left out: the head is the one of the task.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

WEIGHT_DECAY, LAMBDA_L1, LAMBDA_MASK, LAMBDA_L2 = 1e-4, 1e-3, 0.0, 100.0
"""Of the official FedWeIT; all are multiplied out whatever their values."""


class FedKnowStep:
    """A client of the port in the midst of a task."""

    def __init__(
        self, model: nn.Module, task: int, clients: int, density: float, rate: float
    ) -> None:
        """Draw what earlier tasks and other clients have left.

        Args:
            model: from images to logits; its weights with two axes or more, but those
                of the head, are decomposed.
            task: number of the task, from 0: how many are finished.
            clients: whose adapters arrive, the client's own among them.
            density: share of the entries of an adapter that are not zero.
            rate: of Adam.
        """
        self.model, self.task = model, task
        draw = torch.Generator().manual_seed(0)

        def sparse(shape: torch.Size) -> Tensor:
            kept = torch.rand(shape, generator=draw) < density
            return torch.randn(shape, generator=draw) * 0.02 * kept

        named = dict(model.named_parameters())
        layers = [
            n for n, p in named.items() if p.ndim > 1 and not n.startswith("head")
        ]
        self.sw = {n: nn.Parameter(named[n].detach().clone()) for n in layers}
        self.aw = {n: nn.Parameter(sw.detach() / 3) for n, sw in self.sw.items()}
        self.mask = {n: nn.Parameter(torch.rand(len(sw))) for n, sw in self.sw.items()}
        self.atten = {
            n: nn.Parameter(torch.rand(clients), requires_grad=task > 0) for n in layers
        }
        self.rest = {n: p for n, p in named.items() if n not in layers}
        self.kb = {
            n: torch.stack([sparse(sw.shape) * (task > 0) for _ in range(clients)], -1)
            for n, sw in self.sw.items()
        }
        self.old = [
            {n: (torch.rand(len(sw)), sparse(sw.shape)) for n, sw in self.sw.items()}
            for _ in range(task)
        ]
        self.then = [
            {n: gated(self.sw[n].detach(), m) + a for n, (m, a) in old.items()}
            for old in self.old
        ]
        groups = (self.sw, self.mask, self.aw, self.atten, self.rest)
        leaves = [leaf for group in groups for leaf in group.values()]
        self.optimizer = torch.optim.Adam(leaves, rate, weight_decay=WEIGHT_DECAY)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """Train on a batch; return its loss."""
        self.optimizer.zero_grad()
        self.model.zero_grad()
        loss = cross_entropy(self.logits(x), y) + self.penalty()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()

    def logits(self, x: Tensor) -> Tensor:
        """Return what the composed weights make of images."""
        composed = {
            n: gated(sw, self.mask[n])
            + self.aw[n]
            + torch.sum(self.atten[n] * self.kb[n], -1)
            for n, sw in self.sw.items()
        }
        found: Tensor = torch.func.functional_call(self.model, composed, (x,))
        return found

    def penalty(self) -> Tensor:
        """Return all terms of the loss but the cross-entropy."""
        total = torch.zeros(())
        for n, sw in self.sw.items():
            total = total + WEIGHT_DECAY * (half(self.aw[n]) + half(self.mask[n]))
            total = total + LAMBDA_L1 * self.aw[n].abs().sum()
            total = total + LAMBDA_MASK * self.mask[n].abs().sum()
            if self.task == 0:
                total = total + WEIGHT_DECAY * half(sw)
            for old, then in zip(self.old, self.then, strict=True):
                mask, adapter = old[n]
                total = total + LAMBDA_L2 * half(gated(sw, mask) + adapter - then[n])
        return total


def gated(weight: Tensor, mask: Tensor) -> Tensor:
    """Return a weight, (channels, ...), times the sigmoid of its mask, (channels,)."""
    return (weight.transpose(0, -1) * mask.sigmoid()).transpose(0, -1)


def half(tensor: Tensor) -> Tensor:
    """Return half the sum of squares."""
    return tensor.pow(2).sum() / 2
