"""TARGET, server side: the mean of the models, and synthetic samples made from it.

Zhang et al., ICCV 2023, https://arxiv.org/abs/2303.06937, algorithm 1. When a task
ends, the server makes samples of all classes so far from the global model. They replace
the earlier samples. A client gets them once, in its first round of a later task. The
old model's logits travel with them, so that no client has to keep that model.
"""

from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from fcl_flower.algorithms.base import Updates
from fcl_flower.core.types import Array, Arrays, Payload, TaskStage
from strategies.fedavg import FedAvg
from strategies.target import SynthesisParams

if TYPE_CHECKING:
    from strategies.target.trainer import SampleTrainer

SAMPLES = "memory/samples"
MADE = "meta/made"


class Target(FedAvg):
    """A strategy with one global model and the samples that were made from it.

    State: ``base``; after the first task ``memory/samples`` (see
    `strategies.target.trainer`) and ``meta/made`` (``round``, the round whose model
    made them).
    """

    predicts = ("base",)
    needs_rounds = True  # samples are made from the model after whole rounds
    params: SynthesisParams

    @override
    def prepare(self) -> None:
        self.trainer: SampleTrainer = self.context.trainer()

    @override
    def summands(self, state: Payload) -> Payload:
        return {"base": state["base"]}

    @override
    def send(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        made_in = np.asarray(state[MADE]["round"]) if MADE in state else np.inf
        sent = self.summands(state)
        # An evaluation after a task is in the round in which its samples are made.
        if stage.starts_task and stage.round > made_in:
            return {**sent, SAMPLES: state[SAMPLES]}
        return sent

    @override
    def combine(self, state: Payload, stage: TaskStage, updates: Updates) -> Payload:
        until = self.context.classes.until
        state = super().combine(state, stage, updates)
        if not stage.ends_task or stage.task + 1 == len(until):
            return state
        labels = np.array(until[stage.task], np.int64)
        samples = self.synthesize(state, labels, stage.round)
        return {**state, SAMPLES: samples, MADE: {"round": np.array(stage.round)}}

    def synthesize(self, state: Payload, labels: Array, number: int) -> Arrays:
        """Generate samples of classes, by places in the head, int64, shape (C,)."""
        return self.trainer.synthesize(state["base"], labels, self.params, number)
