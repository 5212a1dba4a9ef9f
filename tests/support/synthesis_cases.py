"""A small network of images, and its answers in double precision by NumPy."""

import numpy as np
import torch
from torch import nn

from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.loop import Training

TRAINING = Training(epochs=1, batch_size=8, learning_rate=0.05)
SHAPE = (1, 4, 4)
SMALL = {"synthetic_samples": 12, "synthetic_batch": 6, "generator_width": 4}
SMALL |= {"generator_noise": 5, "generator_steps": 3, "warmup": 1, "student_epochs": 2}
LABELS = np.array([1, 3])
CHOSEN = torch.tensor(LABELS)


def network(seed=0, norm=False):
    torch.manual_seed(seed)
    parts = [nn.BatchNorm2d(1)] if norm else []
    body = nn.Sequential(*parts, nn.Flatten(), nn.Linear(16, 6), nn.Tanh())
    return MultiHeadModel(
        body, features=6, input_shape=SHAPE, tasks=1, classes=4, single_head=True
    )


def softmax(logits):
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


def kl(taught, learned):
    p, q = softmax(taught), softmax(learned)
    return (p * np.log(p / q)).sum(1)


def by_hand(model, x):
    """Return logits of the labels, in double precision."""
    found = {name: w.double().numpy() for name, w in model.state_dict().items()}
    hidden = (
        x.reshape(len(x), -1).astype(float) @ found["body.1.weight"].T
        + found["body.1.bias"]
    )
    logits = np.tanh(hidden) @ found["heads.0.weight"].T + found["heads.0.bias"]
    return logits[:, LABELS]
