"""Stable SGD: declaration and hyper-parameters; its server side is that of FedAvg.

Mirzadeh et al., NeurIPS 2020, https://arxiv.org/abs/2006.06958. Local-only, it is the
row "Stable SGD" of FedWeIT's table 2: individual continual learning.
"""

from pydantic import Field

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.registry import Algorithm


class StableSgdParams(Params):
    """Hyper-parameters of Stable SGD that are not those of all training."""

    gamma: float = Field(0.8, gt=0, le=1)
    """The factor by which the learning rate falls from task to task, in (0, 1]; 1 for a
    constant rate. The default is that of the authors' scripts for Split CIFAR-100."""
    minimum_rate: float = Field(5e-5, ge=0)
    """The least learning rate of any task, at least 0; that of the authors' code."""


ALGORITHM = Algorithm(
    name="stable-sgd",
    client="clients.stable_sgd:StableSgd",
    params_type=StableSgdParams,
    summary="FedAvg with SGD whose learning rate falls from task to task",
    paper="Mirzadeh et al., NeurIPS 2020",
    defaults={
        "training.optimizer": "sgd",
        "training.momentum": 0.8,
        "training.batch_size": 10,
        "training.learning_rate": 0.01,  # ours: with theirs, 0.1, LeNet learns nothing
        "training.lr_patience": 0,
        "model.dropout": 0.5,
    },
    privacy_units=("client", "example"),
)
