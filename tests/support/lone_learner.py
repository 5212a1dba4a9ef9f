"""What a learner needs where there is no federation: a network, data, and a place."""

import torch
from torch import nn

from fcl_flower.algorithms.base import ClientContext
from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.loop import Training
from fcl_flower.training.optimizers import OptimizerChoice
from fcl_flower.training.tensors import snapshot


def model(tasks=3):
    """Return a body of three inputs and four neurons with a head for each task."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    return MultiHeadModel(
        body, features=4, input_shape=(3,), tasks=tasks, classes=2, single_head=False
    )


def shared(network):
    """Return what a client receives of a network, as FedAvg sends it."""
    return {"base": snapshot(network, network.shared_names())}


def place(optimizer="sgd", momentum=0.0, weight_decay=0.0, client=0, **training):
    """Return where a learner takes steps on all its examples, by default one."""
    usual = {"epochs": 1, "batch_size": 100, "learning_rate": 0.1, "lr_patience": 0}
    choice = OptimizerChoice(optimizer, momentum, weight_decay)
    return ClientContext(
        client=client, seed=0, training=Training(**usual | training, optimizer=choice)
    )


def data(seed=0, count=12):
    """Return two classes that lie on the two sides of a plane."""
    draw = torch.Generator().manual_seed(seed)
    splits = [torch.randn(count, 3, generator=draw) for _ in range(3)]
    parts = (Examples(x, (x[:, 0] > 0).long()) for x in splits)
    return TaskData(*parts, classes=2)


def stage(round, task=0, *, starts=True, ends=True):
    """Return the stage of a round that is, by default, a whole task."""
    return TaskStage(round=round, task=task, starts_task=starts, ends_task=ends)


def gradients(network, examples, task=0, *, extra=lambda network: 0.0):
    """Return by name the gradient of the cross-entropy and an extra term."""
    names, leaves = zip(
        *(
            (name, leaf)
            for name, leaf in network.named_parameters()
            if not name.startswith("heads") or name.startswith(f"heads.{task}.")
        ),
        strict=True,
    )
    logits = network(examples.x, task)
    loss = nn.functional.cross_entropy(logits, examples.y) + extra(network)
    return dict(zip(names, torch.autograd.grad(loss, leaves), strict=True))
