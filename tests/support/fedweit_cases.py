"""What tests of FedWeIT's client share: tiny models, learners, data and payloads."""

import numpy as np
import torch
from torch import nn

from clients.fedweit.client import FedWeit
from clients.fedweit.maths import Followers, OldTask, TaskModel, TaskTensors, gate
from fcl_flower.algorithms.base import ClientContext
from fcl_flower.core.types import SparseArray, TaskStage
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import snapshot
from strategies.fedweit import FedWeitParams

W = "body.0.weight"


def linear_model(tasks=3):
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
    return MultiHeadModel(
        body, features=6, input_shape=(4,), tasks=tasks, classes=2, single_head=False
    )


def learner(model=None, epochs=5, rate=0.02, **params):
    """Make a learner whose adapters are not rounded, unless ``params`` say so."""
    params = {"adapter_bits": 32} | params
    training = Training(epochs=epochs, batch_size=50, learning_rate=rate)
    place = ClientContext(client=0, seed=0, training=training)
    return FedWeit(FedWeitParams(**params), model or linear_model(), place)


def data(seed, shape=(4,), count=40):
    """Return a task: which side of a random hyperplane samples of N(0, 1) lie on."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, *shape, generator=draw)
    weights = torch.randn(x[0].numel(), generator=draw)
    splits = [x, *(torch.randn(count, *shape, generator=draw) for _ in "vt")]
    parts = (Examples(x, (x.flatten(1) @ weights > 0).long()) for x in splits)
    return TaskData(*parts, classes=2)


def random_workspace(old=False, **given):
    rng = np.random.default_rng(0)
    model = linear_model()
    numbers = {
        key: rng.normal(size=(6, 4)).astype(np.float32)
        for key in ("base", "anchor", "adapter", "old", "old_anchor")
    }
    numbers["mask"] = rng.normal(size=6).astype(np.float32)
    numbers["old_mask"] = rng.normal(size=6).astype(np.float32)
    torch_of = {key: torch.from_numpy(v.copy()) for key, v in numbers.items()}
    private = {
        name: torch.from_numpy(values)
        for name, values in snapshot(
            model, ["body.0.bias", "heads.0.weight", "heads.0.bias"]
        ).items()
    }
    tensors = TaskTensors(
        base={W: torch_of["base"]},
        masks={W: torch_of["mask"]},
        adapters={W: torch_of["adapter"]},
        private=private,
    )
    if old:
        tensors.anchor = {W: torch_of["anchor"]}
        gates, anchor = gate(torch_of["old_mask"], "sigmoid"), torch_of["old_anchor"]
        if given.get("solver") == "gradient":
            of_task = OldTask({W: anchor}, {W: gates}, {W: torch_of["old"]})
            tensors.old = {0: of_task}
        else:
            lambda2 = FedWeitParams(**given).lambda2
            tensors.followers = {W: Followers.of([anchor], [gates], lambda2)}
    return TaskModel(model, FedWeitParams(**given), 0, tensors), numbers


def stage(task, starts_task=True, ends_task=True, number=None):
    return TaskStage(number or task + 1, task, starts_task, ends_task)


NOTHING = {"base": {}}


def sigmoid(values):
    return 1 / (1 + np.exp(-values.astype(np.float64)))


def foreign_payload(count, seed=7):
    rng = np.random.default_rng(seed)
    return {
        "base": {},
        **{
            f"adapters/{j}/0": {
                W: SparseArray.of_nonzero(
                    rng.normal(size=(6, 4)).astype(np.float32), 0.8
                )
            }
            for j in range(1, count + 1)
        },
    }
