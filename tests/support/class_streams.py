"""A little network that meets two new classes a task, and the same by NumPy."""

import numpy as np
import pytest
import torch
from fakes import run_in_process, summary_of, tiny
from torch import nn

from fcl_flower.algorithms.base import ClientContext
from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import snapshot

FIRST = TaskStage(round=1, task=0, starts_task=True, ends_task=True)
SECOND = TaskStage(round=2, task=1, starts_task=True, ends_task=False)
THIRD = TaskStage(round=3, task=1, starts_task=False, ends_task=True)
AGAIN = TaskStage(round=2, task=0, starts_task=False, ends_task=True)
FOURTH = TaskStage(round=4, task=2, starts_task=True, ends_task=True)

NONE = Examples(torch.empty(0, 3), torch.empty(0, dtype=torch.int64))
NOTHING = TaskData(NONE, NONE, NONE, classes=6)


def model(dropout=0.0):
    """Return a network of 3 inputs, 4 features and 6 classes."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(dropout))
    return MultiHeadModel(
        body, features=4, input_shape=(3,), tasks=1, classes=6, single_head=True
    )


def place(client=0, **training):
    chosen = {"epochs": 1, "batch_size": 100, "learning_rate": 0.01} | training
    return ClientContext(client=client, seed=0, training=Training(**chosen))


def data(task, count=20):
    """Return samples of the classes 2 task and 2 task + 1."""
    draw = torch.Generator().manual_seed(task)
    splits = [torch.randn(count, 3, generator=draw) for _ in range(3)]
    parts = (Examples(x, (x[:, 0] > 0).long() + 2 * task) for x in splits)
    return TaskData(*parts, classes=6)


def start():
    network = model()
    return {"base": snapshot(network, network.shared_names())}


def moved(received, by=0.1):
    """Return another model, whose answers differ."""
    return {
        "base": {
            name: values + np.float32(by) * np.arange(values.size).reshape(values.shape)
            for name, values in received["base"].items()
        }
    }


def same(one, other):
    return all(
        np.array_equal(one["base"][name], other["base"][name]) for name in one["base"]
    )


def features_of(base, x):
    """Return the features of the network, in double precision."""
    weight, bias = (np.float64(base[f"body.0.{name}"]) for name in ("weight", "bias"))
    return np.tanh(np.float64(x) @ weight.T + bias)


def logits_of(base, x):
    """Return the logits of the network, in double precision."""
    weight, bias = (np.float64(base[f"heads.0.{name}"]) for name in ("weight", "bias"))
    return features_of(base, x) @ weight.T + bias


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def softmax(z):
    powers = np.exp(z - z.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def slopes(function, weight):
    """Return the gradient of a function of an array, by central differences."""
    found = np.zeros_like(weight)
    for entry in np.ndindex(weight.shape):
        step = np.zeros_like(weight)
        step[entry] = 1e-5
        found[entry] = (function(weight + step) - function(weight - step)) / 2e-5
    return found


def check_loss(watched, x, y, rows, by_hand):
    """Compare a `Watched` learner's loss of a batch, and its slope, with NumPy's.

    ``by_hand`` is a function of the head's weights.
    """
    head, labels = watched.learner.model.heads[0], torch.as_tensor(y).long()
    loss = watched.loss_of(torch.as_tensor(x), labels, torch.as_tensor(rows))
    (gradient,) = torch.autograd.grad(loss, [head.weight])
    weight = head.weight.detach().double().numpy()
    assert float(loss.detach()) == pytest.approx(by_hand(weight), rel=1e-5)
    np.testing.assert_allclose(gradient, slopes(by_hand, weight), atol=2e-5)


def five_and_five(folder, strategy, **more):
    """Learn five digits and then the others; return the accuracy on both parts.

    After the second task, mean over two clients, who share all classes.
    """
    settings = {
        "dataset": "digits",
        "model": "small",
        "scenario": "class-incremental",
        "classes_per_task": 5,
        "max_train_per_class": 80,
        "max_test_per_class": 40,
        "rounds": 3,
        "epochs": 5,
        "learning_rate": 3e-3,
        "seed": 1,
        "model.growing_head": True,
        "scenario.split": "iid",
    }
    run_in_process(tiny(folder, strategy=strategy, **settings | more))
    found = summary_of(folder)["client_accuracy"]
    return np.mean([matrix[1] for matrix in found], 0)
