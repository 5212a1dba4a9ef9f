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

from fcl_flower.algorithms.exemplars import memory_seed, remember_fraction
from fcl_flower.algorithms.local_training import Turn
from fcl_flower.algorithms.rehearsal import Rehearsal
from fcl_flower.core.types import Arrays
from fcl_flower.data.examples import Examples
from fcl_flower.training.distillation import hidden_features
from fcl_flower.training.tensors import load
from strategies.replay import ReplayParams


class Replay(Rehearsal[ReplayParams]):
    """A learner that trains on the task's samples and those of the memory together.

    From a client's second task on ``strength * mean (h - h_received)^2`` is added. Here
    h is the body's output for a sample, and the mean is over samples and features.
    """

    has_teacher = False

    @override
    def begin(self, turn: Turn) -> Examples:
        examples = super().begin(turn)
        self._received: Tensor | None = None
        if self.params.strength > 0 and turn.stage.task > 0 and len(examples.y):
            load(self.model, turn.received["base"])
            self._received = hidden_features(self.model, examples)
        return examples

    @override
    def penalty(self, rows: Tensor, hidden: Tensor) -> Tensor | float:
        if self._received is None:
            return 0.0
        return self.params.strength * (hidden - self._received[rows]).square().mean()

    @override
    def remember(self, turn: Turn) -> Arrays:
        if self.params.budget == "fixed":
            return super().remember(turn)
        # A task counts once: its samples stay the same over rounds, even if its first
        # round was repeated, or the client missed it.
        task, share = turn.stage.task, self.params.buffer_fraction
        memory, seed = self.memory(turn), memory_seed(self.context, task)
        return remember_fraction(memory, turn.data.train, share, seed, task=task)
