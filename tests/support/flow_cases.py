"""What tests of AF-FCL share: a small flow, and all of it again in NumPy."""

import numpy as np

from clients.af_fcl.flow import Flow
from fcl_flower.core.seeds import derive
from fcl_flower.training.tensors import load, snapshot
from strategies.af_fcl import AfFclParams
from strategies.af_fcl.server import initial_flow

FEATURES, CLASSES, LAYERS, HIDDEN = 6, 6, 4, 5


def flow_params(**more):
    return AfFclParams(**{"flow_layers": LAYERS, "flow_hidden": HIDDEN, **more})


def flow_tensors(seed=0, features=FEATURES, classes=CLASSES, size=0.3):
    """Return parameters that do something: none of them small."""
    start = initial_flow(features, classes, flow_params(), 0)
    draw = np.random.default_rng(seed)
    return {
        name: draw.normal(size=values.shape, scale=size).astype(np.float32)
        for name, values in start.items()
    }


def made(tensors, features=FEATURES, classes=CLASSES, seed=0):
    flow = Flow(features, classes, LAYERS, HIDDEN, seed)
    load(flow, tensors)
    return flow


def kept_by(flow):
    return snapshot(flow, flow.state_dict())


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def leaky(x):
    return np.where(x > 0, x, 0.01 * x)


class NumpyFlow:
    """The equations of the flow in double precision."""

    def __init__(self, tensors, features=FEATURES, classes=CLASSES, seed=0):
        self.tensors = {n: np.asarray(v, np.float64) for n, v in tensors.items()}
        self.kept, self.features, self.classes = features // 2, features, classes
        backwards = list(range(features))[::-1]
        self.orders = [backwards, backwards] + [
            np.random.default_rng(derive(seed, "flow-order", layer)).permutation(
                features
            )
            for layer in (2, 3)
        ]

    def linear(self, name, x):
        return x @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"]

    def coefficients(self, layer, kept, context):
        place = f"couplings.{layer}"
        x = self.linear(f"{place}.entry", np.concatenate([kept, context], 1))
        for number in range(2):
            block = f"{place}.blocks.{number}"
            added = self.linear(f"{block}.first", leaky(x))
            added = self.linear(f"{block}.second", leaky(added))
            x = x + added * sigmoid(self.linear(f"{block}.gate", context))
        x = self.linear(f"{place}.exit", x)
        changed = self.features - self.kept
        return sigmoid(x[:, changed:] + 2) + 0.001, x[:, :changed]

    def forward(self, x, labels):
        """Return latents and log densities."""
        context, u = np.eye(self.classes)[labels], np.asarray(x, np.float64)
        density = np.zeros(len(u))
        for layer, order in enumerate(self.orders):
            u = u[:, order]
            scale, shift = self.coefficients(layer, u[:, : self.kept], context)
            changed = u[:, self.kept :] * scale + shift
            u = np.concatenate([u[:, : self.kept], changed], 1)
            density += np.log(scale).sum(1)
        normal = -0.5 * (u**2).sum(1) - 0.5 * self.features * np.log(2 * np.pi)
        return u, density + normal

    def inverse(self, u, labels):
        """Return features."""
        context, x = np.eye(self.classes)[labels], np.asarray(u, np.float64)
        for layer in (3, 2, 1, 0):
            scale, shift = self.coefficients(layer, x[:, : self.kept], context)
            mapped = np.concatenate(
                [x[:, : self.kept], (x[:, self.kept :] - shift) / scale], 1
            )
            x = np.empty_like(mapped)
            x[:, self.orders[layer]] = mapped
        return x


def credibility_by_hand(latents, labels, drawn, classes, typical):
    """Return the weight of each drawn sample, one after the other."""
    found = []
    for one, label in zip(drawn, classes, strict=True):
        own = latents[labels == label]
        if len(own) < 2:
            found.append(typical)
            continue
        variance = np.maximum(own.var(0), 1e-6)
        density = np.exp(-((one - own.mean(0)) ** 2) / (2 * variance))
        found.append(float((density / np.sqrt(2 * np.pi * variance)).mean()))
    return np.array(found)
