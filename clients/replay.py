"""Replay: training replays a few samples of each old task with every new one.

De Masson d'Autume et al., NeurIPS 2019, https://arxiv.org/abs/1906.01076. As FedET (Liu
et al., IJCAI 2023, section 4.1) federates it, every client keeps a fraction gamma of
its samples. With ``budget`` fixed it keeps a number of samples in all. With
``strength`` above 0 the method is the baseline "regularization + replay" of Huang et
al., NAACL 2021, https://arxiv.org/abs/2104.05489. That adds an L2 term on the
classifier's hidden state, between the old and the new model. In a federation the old
model is the one that the client received for the round.
"""

from torch import Tensor
from typing_extensions import override

from fcl_flower.algorithms.exemplars import (
    memory_seed,
    remember_fraction,
    remember_task,
    replay_samples,
)
from fcl_flower.algorithms.local_training import Batch, LocalTraining, Turn
from fcl_flower.core.types import Arrays, Payload, Update
from fcl_flower.data.examples import Examples, concat
from fcl_flower.training.distillation import hidden_features
from fcl_flower.training.tensors import load
from strategies.replay import ReplayParams


class Replay(LocalTraining[ReplayParams]):
    """A learner that trains on the task's samples and those of the memory together.

    From a client's second task on ``strength * mean (h - h_received)^2`` is added. Here
    h is the body's output for a sample, and the mean is over samples and features.

    State beside that of `LocalTraining`: ``memory``, the samples of old tasks.
    """

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        state, _, stage, data = turn
        memory = state.get("memory", {})
        replayed = replay_samples(memory, self.context.device, without=stage.task)
        examples = concat([data.train, replayed])
        anchors = self._received_features(turn, examples)

        def loss(batch: Batch) -> Tensor:
            entropy = batch.cross_entropy()
            if anchors is None:
                return entropy
            moved = batch.features - anchors[batch.rows]
            return entropy + self.params.strength * moved.square().mean()

        state, update = self.fit_locally(turn, examples, loss=loss)
        return {**state, "memory": self._remembered(memory, turn)}, update

    def _received_features(self, turn: Turn, examples: Examples) -> Tensor | None:
        if not (self.params.strength and turn.stage.task and len(examples.y)):
            return None
        load(self.model, turn.received["base"])
        return hidden_features(self.model, examples)

    def _remembered(self, memory: Arrays, turn: Turn) -> Arrays:
        params, (_, _, stage, data) = self.params, turn
        if params.budget == "fixed":
            return remember_task(self, turn, memory)
        # A task counts once: its samples stay the same over rounds, even if its first
        # round was repeated, or the client missed it.
        share, seed = params.buffer_fraction, memory_seed(self.context, stage.task)
        return remember_fraction(memory, data.train, share, seed, task=stage.task)
