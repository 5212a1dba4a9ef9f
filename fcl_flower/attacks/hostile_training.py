"""A client that trains as others do, and sends something else."""

from dataclasses import replace
from typing import Any

import numpy as np

from fcl_flower.algorithms.base import ClientLearner
from fcl_flower.attacks.tampering import noisy, overlaid, start_of, turned
from fcl_flower.config.sections import Attack
from fcl_flower.core.seeds import derive
from fcl_flower.core.types import Arrays, Payload, TaskStage, Update, group_kind
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.federation.transport.messages import MAX_EXAMPLES
from fcl_flower.training.tensors import snapshot

_SCALING = 10.0


class HostileTraining:
    """What `ClientLearner.train` does, by a client with other ends.

    - ``sign-flip``: the change of the model the other way round, with the largest
      number of examples that is let through.
    - ``noise``: standard normal noise on the model.
    - ``scaling``: ten times the change, the other way round.
    - ``label-flip``: an honest update, of labels y that became C - 1 - y.
    - ``counts``: an honest update, with that largest number of examples.
    - ``adapters``: standard normal noise on what other clients receive as it is.

    The model is what the client has a start of; statistics stay as they are. What
    is handed on is left alone by all attacks but the last.
    """

    def __init__(
        self, learner: ClientLearner[Any], attack: Attack, handed_on: tuple[str, ...]
    ) -> None:
        """Prepare to train in the place of an honest client.

        Args:
            learner: the honest one; freshly made, so that its model is the initial one.
            attack: not empty.
            handed_on: see `ServerStrategy`.
        """
        self._learner, self._attack, self._handed_on = learner, attack, handed_on
        model = learner.model
        self._initial = snapshot(model, model.shared_names())

    def __call__(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        """Return the next private state, an honest one, and the hostile update."""
        if self._attack == "label-flip":
            data = replace(
                data,
                train=_flipped(data.train, data.classes),
                valid=_flipped(data.valid, data.classes),
            )
        after, update = self._learner.train(state, received, stage, data)
        payload = update.payload
        handed_on = {g for g in payload if group_kind(g) in self._handed_on}
        starts = self._starts(payload, overlaid(state, received), handed_on)
        client, seed = self._learner.context.client, self._learner.context.seed
        rng = np.random.default_rng(derive(seed, "attack", client, stage.round))
        match self._attack:
            case "sign-flip":
                payload = turned(payload, starts, 1.0)
            case "scaling":
                payload = turned(payload, starts, _SCALING)
            case "noise":
                payload = noisy(payload, starts, rng)
            case "adapters":
                payload = noisy(
                    payload, {g: _zeros(payload[g]) for g in handed_on}, rng
                )
        claims = self._attack in ("sign-flip", "counts")
        examples = MAX_EXAMPLES if claims else update.num_examples
        return after, replace(update, payload=payload, num_examples=examples)

    def _starts(self, payload: Payload, known: Payload, handed_on: set[str]) -> Payload:
        """Return what the groups of a model started from."""
        found = {
            group: start_of(group, arrays, [known, {group_kind(group): self._initial}])
            for group, arrays in payload.items()
            if group not in handed_on
        }
        return {group: start for group, start in found.items() if start is not None}


def _zeros(arrays: Arrays) -> Arrays:
    """Return where adapters start: they are added to something."""
    return {name: np.zeros(t.shape, t.dtype) for name, t in arrays.items()}


def _flipped(examples: Examples, classes: int) -> Examples:
    return examples._replace(y=classes - 1 - examples.y)
