"""What travels between the two sides of LoRM: names, and what they mean.

A layer is named as its change is in the model, such as ``body.adapters.3``; its factors
are ``NAME.down`` (A, shape (rank, inputs)) and ``NAME.up`` (B, shape (outputs, rank)).

``adapters/now``, ``grams/now`` are those of the current task, ``adapters/0``,
``grams/0`` and so on those of the finished ones. A group of grams holds for each layer
the mean square of each of its inputs, float32, shape (inputs,), and ``tokens``, int64,
over how many; their product is the diagonal of Gamma.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np

from fcl_flower.core.errors import refuse
from fcl_flower.core.types import Array, Arrays, Payload
from strategies.lorm.merging import LowRank, merged_change

UP: Final = ".up"
DOWN: Final = ".down"
WEIGHT: Final = "heads.0.weight"
BIAS: Final = "heads.0.bias"
ADAPTERS: Final = "adapters/now"
GRAMS: Final = "grams/now"
HEADS: Final = "heads"
KNOWN: Final = "meta/known"
"""``classes``, uint8, (classes,): which ones have been learned by anybody."""
TASK: Final = "meta/task"
"""``rounds``, int64: of the current task, so far; ``classes``, uint8, (classes,): which
ones have been learned in it; ``finished``, int64: tasks before it."""
TOKENS: Final = "tokens"
HEAD: Final = "head"


def adapted_layers(names: Iterable[str]) -> tuple[str, ...]:
    """Return the layers of a model that have a change of low rank.

    Args:
        names: of all tensors that clients share.

    Raises:
        ConfigError: there is none, or something else is shared beside a single head.
    """
    given = tuple(names)
    layers = tuple(name.removesuffix(DOWN) for name in given if name.endswith(DOWN))
    wanted = {layer + factor for layer in layers for factor in (UP, DOWN)}
    odd = sorted({*given} ^ {*wanted, WEIGHT, BIAS})
    if odd or not layers:
        raise refuse(
            "model.name",
            f"one that shares {odd[0]}" if odd else "one without LoRA",
            "lora-transformer or lora-vit, of which LoRM shares LoRA and head",
        )
    return layers


def trained_factor(payload: Payload) -> str:
    """Return the factor of this round: B and A take turns in a task, B first.

    The rounds of the task that the server has aggregated decide, so that a round that
    is repeated, or one without this client, changes nothing.

    Args:
        payload: the server's state, or what a client has received.
    """
    return DOWN if int(np.asarray(payload[TASK]["rounds"])) % 2 else UP


def diagonals(grams: Arrays, layer: str) -> Array:
    """Return the diagonal of Gamma for a layer, float64, shape (inputs,)."""
    tokens = int(np.asarray(grams[TOKENS]))
    return np.asarray(tokens * np.asarray(grams[layer]).astype(np.float64))


def merged_layer(payload: Payload, layer: str) -> LowRank:
    """Return a layer's change as the tasks so far have it together.

    Args:
        payload: with adapters and grams of the finished tasks and of the current one,
            which counts once a round of it is aggregated.
        layer: its name.
    """
    finished = int(np.asarray(payload[TASK]["finished"]))
    tasks = [*map(str, range(finished)), "now"]
    changes = [
        LowRank(
            np.asarray(payload[f"adapters/{task}"][layer + DOWN]),
            np.asarray(payload[f"adapters/{task}"][layer + UP]),
        )
        for task in tasks
    ]
    grams = [diagonals(payload[f"grams/{task}"], layer) for task in tasks]
    return merged_change(changes, grams)
