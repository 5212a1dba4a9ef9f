"""TARGET, server side: the mean of the models, and samples that are made of it.

Zhang et al., ICCV 2023, https://arxiv.org/abs/2303.06937, algorithm 1. When a task
ends, samples of all classes so far are made of the global model and take the place of
those before; a client gets them once, in its first round of a later task. What the old
model says of them travels with them, so that no client has to keep that model.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from fcl_flower.algorithms.hooks import KnowsClasses, TrainsOnServer
from fcl_flower.core.types import Array, Arrays, Payload, TaskStage, Update
from fcl_flower.core.update_checks import same_tensors
from strategies.fedavg import FedAvg
from strategies.target import SynthesisParams

if TYPE_CHECKING:
    from strategies.target.trainer import SampleTrainer

SAMPLES = "memory/samples"
MADE = "meta/made"


class Target(FedAvg, TrainsOnServer, KnowsClasses):
    """Keep one global model and the samples that were made of it.

    State: ``base``; after the first task ``memory/samples`` (see
    `strategies.target.trainer`) and ``meta/made`` (``round``, of which round's model
    they were made).
    """

    averaged_groups = ()  # samples are made of the model after whole rounds
    params: SynthesisParams
    trainer: "SampleTrainer"

    @override
    def configure_train(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        made = np.asarray(state[MADE]["round"]) if MADE in state else np.inf
        # An evaluation after a task is in the round in which its samples are made.
        if not stage.starts_task or stage.round <= made:
            return self.summands(state)
        return {"base": state["base"], SAMPLES: state[SAMPLES]}

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        same_tensors(update.payload, self.summands(state))

    @override
    def aggregate_train(
        self, state: Payload, stage: TaskStage, updates: Mapping[int, Update]
    ) -> Payload:
        base = super().aggregate_train(self.summands(state), stage, updates)["base"]
        if not stage.ends_task or stage.task + 1 == len(self.classes_until):
            return {**state, "base": base}
        labels = np.array(self.classes_until[stage.task], np.int64)
        made = {
            SAMPLES: self.synthesize({**state, "base": base}, labels, stage.round),
            MADE: {"round": np.array(stage.round)},
        }
        return {**state, "base": base, **made}

    def synthesize(self, state: Payload, labels: Array, number: int) -> Arrays:
        """Return samples of classes made of the model in ``state``.

        Args:
            state: with the model of which they are made.
            labels: int64, shape (C,): places in the head.
            number: of the round.
        """
        base, params = state["base"], self.params
        return self.trainer.synthesize(base, labels, params, number)

    @override
    def summands(self, state: Payload) -> Payload:
        return {"base": state["base"]}
