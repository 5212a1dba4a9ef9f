"""APD's loss and its steps by plain autograd, for tests of it and of FedProx-APD."""

import numpy as np
import torch
from fedweit_cases import W, linear_model

from fcl_flower.algorithms.base import ClientContext
from fcl_flower.training.loop import Training
from fcl_flower.training.optimizers import OptimizerChoice
from fcl_flower.training.tensors import dense

SGD = OptimizerChoice(name="sgd")


def place(client=0, epochs=5, rate=0.02, **given):
    training = Training(epochs, 50, rate, lr_patience=0, **given)
    return ClientContext(client=client, seed=0, training=training)


def huber(u, lambda1, lambda2):
    """Return min over a of lambda2 (a - u)^2 + lambda1 |a|, summed."""
    inside = u.abs() <= lambda1 / (2 * lambda2)
    outside = lambda1 * u.abs() - lambda1**2 / (4 * lambda2)
    return torch.where(inside, lambda2 * u**2, outside).sum()


def loss_by_hand(leaf, example, params, old, first, mu=0.0, centre=None):
    """Return APD's loss of a batch; ``old``: tau_i, M_i and sigma of before."""
    theta = leaf["sigma"] * torch.sigmoid(leaf["v"])[:, None] + leaf["tau"]
    hidden = torch.tanh(example.x @ (theta + leaf.get("local", 0)).T + leaf["bias"])
    logits = hidden @ leaf["head"].T + leaf["offset"]
    log_p = logits - logits.exp().sum(1, keepdim=True).log()
    loss = -log_p[range(len(example.y)), example.y].mean()
    decayed = leaf["tau"].square().sum() + leaf["v"].square().sum()
    if first:
        decayed = decayed + leaf["sigma"].square().sum()
    loss = loss + params.weight_decay / 2 * decayed
    for tau, gates, sigma in old:
        u = tau - (leaf["sigma"] - sigma) * gates[:, None]
        loss = loss + huber(u, params.lambda1, params.lambda2)
    if mu:
        loss = loss + mu / 2 * (leaf["sigma"] - centre).square().sum()
    return loss


def descend(leaf, example, params, steps, rate, **given):
    """Take steps of gradient descent, and of the soft threshold on tau."""
    trained = {n: v for n, v in leaf.items() if n != "local"}
    for value in trained.values():
        value.requires_grad_()
    for _ in range(steps):
        loss = loss_by_hand(leaf, example, params, **given)
        found = torch.autograd.grad(loss, list(trained.values()))
        with torch.no_grad():
            for (name, value), gradient in zip(trained.items(), found, strict=True):
                value -= rate * (params.mask_rate if name == "v" else 1) * gradient
            tau = leaf["tau"]
            shrunk = (tau.abs() - rate * params.lambda1).clamp(min=0)
            tau.copy_(tau.sign() * shrunk)
    return {n: v.detach().clone() for n, v in leaf.items()}


def begun(task, sigma, params):
    fresh = linear_model().state_dict()
    return {
        "sigma": sigma.clone(),
        "v": torch.zeros(6),
        "tau": params.initial_adapter * sigma,
        "bias": fresh["body.0.bias"].clone(),
        "head": fresh[f"heads.{task}.weight"].clone(),
        "offset": fresh[f"heads.{task}.bias"].clone(),
    }


def check(state, task, leaf):
    found = {
        "sigma": state["base"][W],
        "v": state[f"masks/{task}"][W],
        "tau": state[f"adapters/{task}"][W],
        "bias": state[f"heads/{task}"]["body.0.bias"],
        "head": state[f"heads/{task}"][f"heads.{task}.weight"],
        "offset": state[f"heads/{task}"][f"heads.{task}.bias"],
    }
    for name, values in found.items():
        np.testing.assert_allclose(
            dense(values), leaf[name].detach(), atol=2e-6, err_msg=name
        )
