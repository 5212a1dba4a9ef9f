"""AF-FCL, server side: the means of the clients' models and of their flows.

Wuerkaixi et al., ICLR 2024, https://arxiv.org/abs/2502.14205.
"""

import math

import numpy as np
from typing_extensions import override

from fcl_flower.algorithms.hooks import KnowsModel
from fcl_flower.core.seeds import derive
from fcl_flower.core.types import Array, Arrays, Payload
from strategies.af_fcl import AfFclParams
from strategies.fedavg import FedAvg

BLOCKS = 2
"""Residual blocks in the network of a coupling layer, as in the authors' code."""
SMALL = 1e-3
"""Largest weight with which a block's last layer begins, so that it adds little."""


class AfFcl(FedAvg, KnowsModel):
    """Keep one global model and one global flow; every client receives both.

    State: ``base``; ``flow``, the parameters of `clients.af_fcl.flow.Flow`.
    """

    averaged_groups = ("base", "flow")
    differences = ("base", "flow")
    predicts_with = ("base",)
    params: AfFclParams

    @override
    def init(self, model: Arrays) -> Payload:
        start = initial_flow(self.features, self.classes, self.params, self.seed)
        return {"base": model, "flow": start}


def initial_flow(
    features: int, classes: int, params: AfFclParams, seed: int
) -> dict[str, Array]:
    """Return the first parameters of a flow by name, float32, of the seed alone.

    They are uniform, as torch and nflows begin.

    Args:
        features: width of what the flow maps, at least 2.
        classes: that it is conditioned on.
        params: its layers and their width.
        seed: of the run.
    """
    rng = np.random.default_rng(derive(seed, "flow"))
    found: dict[str, Array] = {}

    def linear(name: str, outputs: int, inputs: int, bound: float = 0.0) -> None:
        bound = bound or 1 / math.sqrt(inputs)
        for part, shape in (("weight", (outputs, inputs)), ("bias", (outputs,))):
            values = rng.uniform(-bound, bound, shape)
            found[f"{name}.{part}"] = values.astype(np.float32)

    hidden, kept = params.flow_hidden, features // 2
    for layer in range(params.flow_layers):
        place = f"couplings.{layer}"
        linear(f"{place}.entry", hidden, kept + classes)
        for number in range(BLOCKS):
            block = f"{place}.blocks.{number}"
            linear(f"{block}.first", hidden, hidden)
            linear(f"{block}.second", hidden, hidden, SMALL)
            linear(f"{block}.gate", hidden, classes)
        linear(f"{place}.exit", 2 * (features - kept), hidden)
    return found
