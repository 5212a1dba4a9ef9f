"""What tests of FedSpace share: its loss in NumPy, with the order of its draws."""

import numpy as np
import torch

from fcl_flower.core.seeds import derive

FEATURES = 5


def log_softmax(logits):
    logits = logits - logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def contrast_by_hand(hidden, labels, anchored, temperature):
    """Return the contrastive loss, one pair after the other."""
    hidden, count = np.asarray(hidden, np.float64), len(labels)
    directions = hidden / np.linalg.norm(hidden, axis=1, keepdims=True)
    total = 0.0
    for i in range(count):
        same = [j for j in range(count) if labels[j] == labels[i] and j != i]
        if labels[i] not in anchored or not same:
            continue
        cosines = directions @ directions[i] / temperature
        rest = sum(np.exp(cosines[a]) for a in range(count) if a != i)
        total += sum(np.log(1 + rest) - cosines[j] for j in same) / len(same)
    return total / count


class Network:
    """The network of the tests: flat images, a tanh layer, and all turns' logits."""

    def __init__(self, base):
        self.base = {n: np.asarray(v, np.float64) for n, v in base.items()}

    def body(self, images):
        flat = np.reshape(images, (len(images), -1))
        return np.tanh(flat @ self.base["body.1.weight"].T + self.base["body.1.bias"])

    def logits(self, hidden, temperature):
        weight, bias = self.base["heads.0.weight"], self.base["heads.0.bias"]
        return (hidden @ weight.T + bias) / temperature


class Draws:
    """What a client draws in a round, in its order."""

    def __init__(self, prototypes, batch_size, number, client=0):
        seed = derive(0, "prototype-samples", client, number)
        self.generator = torch.Generator().manual_seed(seed)
        self.prototypes, self.batch_size = prototypes, batch_size

    def __call__(self, classes):
        at = torch.randint(len(classes), (self.batch_size,), generator=self.generator)
        noise = torch.randn(self.batch_size, FEATURES, generator=self.generator)
        chosen = np.array(classes)[at.numpy()]
        means, radius = self.prototypes["means"], self.prototypes["radius"]
        return means[chosen] + radius * noise.numpy().astype(float), chosen


def loss_by_hand(sent, examples, draws, met, params, open_classes):
    """Return the loss at what was received, of all examples in one batch.

    Args:
        met: classes that the client has met.
        open_classes: those that the head has.
    """
    network, turns = Network(sent["base"]), 4 if params.rotations else 1
    y, images = examples.y.numpy(), examples.x.numpy().astype(float)
    views = [np.rot90(x, k, (1, 2)) for x in images for k in range(turns)]
    hidden = network.body(np.stack(views))
    places = [c * turns + k for c in met for k in range(turns)]
    logits = network.logits(hidden, params.temperature)[:, places]
    turned = [places.index(label * turns + k) for label in y for k in range(turns)]
    loss = -log_softmax(logits)[range(len(turned)), turned].mean()
    held = np.flatnonzero(sent["prototypes"]["held"])
    held = [c for c in held if c in open_classes]
    other = [c for c in held if c not in y]
    if params.prototype_weight and other:
        features, classes = draws(other)
        places = [c * turns + k for c in open_classes for k in range(turns)]
        logits = network.logits(features, params.temperature)[:, places]
        at = [places.index(c * turns) for c in classes]
        entropy = -log_softmax(logits)[range(len(at)), at].mean()
        loss += params.prototype_weight * entropy
    if params.representation_weight and held:
        features, classes = draws(held)
        loss += params.representation_weight * contrast_by_hand(
            np.concatenate([hidden[::turns], features]),
            [*y, *classes],
            set(y),
            params.representation_temperature,
        )
    return loss
