"""FedAvg with a client that lies, in another way every round, and a pause in training.

The pause (``$SOAK_PAUSE`` seconds) keeps the machine free for other work.
"""

import os
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from typing_extensions import override

from fcl_flower.algorithms.base import Params, Turn
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.core.types import Arrays, Payload, Update

LIAR = 3


class LyingLearner(LocalTraining[Params]):
    """The client side."""

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        time.sleep(float(os.environ.get("SOAK_PAUSE", "0")))
        state, update = super().train(turn)
        if self.context.client == LIAR:
            update = LIES[turn.stage.round % len(LIES)](update)
        return state, update


def _crash(update: Update) -> Update:
    raise MemoryError("so it says")


def _every_tensor(
    change: Callable[[np.ndarray], np.ndarray],
) -> Callable[[Update], Update]:
    def lie(update: Update) -> Update:
        base: Arrays = {
            n: change(np.array(t)) for n, t in update.payload["base"].items()
        }
        return replace(update, payload={"base": base})

    return lie


def _more_metrics(*names: str) -> Callable[[Update], Update]:
    def lie(update: Update) -> Update:
        return replace(update, metrics={**update.metrics, **dict.fromkeys(names, 0.5)})

    return lie


LIES = (
    _every_tensor(lambda tensor: tensor * np.float32("nan")),
    _every_tensor(lambda tensor: tensor[..., None]),
    _every_tensor(lambda tensor: tensor * np.float32(1e8)),
    _every_tensor(lambda tensor: tensor.astype(np.int64)),
    _more_metrics(*(f"flood/{number}" for number in range(20_000))),
    _more_metrics("<script>alert(1)</script>"),
    lambda update: replace(update, num_examples=2**40),
    lambda update: replace(
        update, payload={**update.payload, "own": update.payload["base"]}
    ),
    _crash,
)
"""None of them may be averaged."""


LYING = Algorithm(
    name="lying",
    server="strategies.fedavg:FedAvg",
    client="lying:LyingLearner",
    summary="FedAvg with a client that lies",
    paper="McMahan et al., 2017",
)
