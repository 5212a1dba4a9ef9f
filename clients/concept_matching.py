"""Concept Matching, client side: fine-tune the concept model that fits best.

Jiang, Sen and Borcea, 2025, "Federated Continual Learning Using Concept Matching",
section IV. Symbols: w_k is the received group ``base/k``. theta_n is the update's group
``base``. d_n is a random part of the client's training data.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fcl_flower.algorithms.local_training import LocalTraining, Turn
from fcl_flower.core.errors import config_error
from fcl_flower.core.types import Array, Arrays, Payload, Update
from fcl_flower.data.examples import Examples, batches
from fcl_flower.training.loop import score
from strategies.concept_matching import ConceptMatchingParams

FLOOR = 0.01
"""The share of the mean variance that is added to each variance, as some entries never
change."""
LEAST = 1e-6
"""The variance that is added as well, in case no entry ever changes."""


def add_inputs(before: Arrays, x: Tensor) -> Arrays:
    """Add inputs (N, ...) to ``count``, and to ``sum`` and ``squares`` by entry."""
    flat = _flat(x)
    moments = {
        "count": np.float64(len(flat)),
        "sum": flat.sum(axis=0),
        "squares": (flat**2).sum(axis=0),
    }
    return {
        name: np.asarray(before.get(name, 0) + new) for name, new in moments.items()
    }


def misfit(moments: Arrays, x: Tensor) -> float:
    """Average the negative log-likelihood of inputs, up to a factor and a constant.

    The likelihood is that of a Gaussian with the moments of `add_inputs`. Without
    moments the result is infinite.
    """
    if not moments:
        return np.inf
    count, total, squares = (
        np.asarray(moments[name]) for name in ("count", "sum", "squares")
    )
    mean = total / count
    variance = np.maximum(squares / count - mean**2, 0)  # rounding goes below 0
    variance += FLOOR * variance.mean() + LEAST
    return float(((_flat(x) - mean) ** 2 / variance + np.log(variance)).mean())


def _flat(x: Tensor) -> Array:
    flat: Array = x.flatten(1).double().cpu().numpy()
    return flat


class ConceptMatching(LocalTraining[ConceptMatchingParams]):
    """A learner that chooses, fine-tunes and sends one of the concept models.

    It does not tell the server which model it was.

    State beside that of `LocalTraining`: ``chosen``, the number of the last chosen
    model of each task that the client knows. With ``choice = "inputs"`` also
    ``inputs/k``, the moments of the inputs on which it trained model k (see
    `add_inputs`).
    """

    needs_task = True
    update_is_model = False  # the update is one of several models

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        state, received, stage, data = turn
        if self.params.choice == "inputs" and not data.train.x.is_floating_point():
            raise config_error(
                "strategy.choice", "inputs", "loss or entropy, for texts"
            )
        losses = self.losses(state, received, data.train, stage.task)
        chosen = int(np.argmin(losses))
        start = {"base": received[f"base/{chosen}"]}
        state, update = super().train(turn._replace(received=start))
        choices = {**state.get("chosen", {}), str(stage.task): np.asarray(chosen)}
        state, group = {**state, "chosen": choices}, f"inputs/{chosen}"
        if self.params.choice == "inputs":
            state[group] = add_inputs(state.get(group, {}), data.train.x)
        return state, update

    @override
    def select_model(
        self, state: Payload, received: Payload, samples: Examples
    ) -> Payload:
        if self.params.choice == "loss":
            misfits = self.losses(state, received, samples, 0)
        elif self.params.choice == "entropy":
            misfits = self.entropies(state, received, samples, 0)
        else:
            x = self._representative(samples).x
            groups = (f"inputs/{k}" for k in range(len(received)))
            misfits = [misfit(state.get(group, {}), x) for group in groups]
        return {"base": received[f"base/{int(np.argmin(misfits))}"]}

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        if "base" not in received:  # the client knows the task, not the examples
            chosen = int(np.asarray(state.get("chosen", {}).get(str(task), 0)))
            received = {"base": received[f"base/{chosen}"]}
        return super().predict(state, received, task, x)

    def losses(
        self, state: Payload, received: Payload, examples: Examples, task: int
    ) -> list[float]:
        """Compute ``L(w_k, d_n)`` by k; equation 6 chooses the least."""
        part = self._representative(examples)
        return [
            score(partial(self.predict, state, {"base": model}, task), part).loss
            for model in _in_order(received)
        ]

    def entropies(
        self, state: Payload, received: Payload, examples: Examples, task: int
    ) -> list[float]:
        """Compute by k the mean entropy of w_k's predictions on d_n, in nats."""
        part = self._representative(examples)
        means = []
        for model in _in_order(received):
            total = 0.0
            with torch.no_grad():
                for x, _ in batches(part, 512):
                    logits = self.predict(state, {"base": model}, task, x)
                    total += float(torch.special.entr(logits.softmax(1)).sum())
            means.append(total / len(part.y))
        return means

    def _representative(self, examples: Examples) -> Examples:
        """Draw d_n: ``subset`` examples at random, the same in every process."""
        seed = self.context.derive("representative")
        return next(batches(examples, self.params.subset, seed), examples)


def _in_order(received: Payload) -> Iterator[Arrays]:
    """Yield the concept models w_k by k."""
    return (received[f"base/{k}"] for k in range(len(received)))
