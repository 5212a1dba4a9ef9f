"""Replay: a few samples of each old task are trained on again with every new one.

De Masson d'Autume et al., NeurIPS 2019, https://arxiv.org/abs/1906.01076, as FedET
(Liu et al., IJCAI 2023, section 4.1) federates it: every client keeps a share gamma of
what it has seen.
"""

from pydantic import Field
from typing_extensions import override

from clients.fedavg import Sgd
from clients.replay.buffer import recalled, remembered
from fcl_flower.algorithms.base import Params, Place
from fcl_flower.core.seeds import derive
from fcl_flower.core.types import Payload, Stage, Update
from fcl_flower.data.examples import TaskData, together


class ReplayParams(Params):
    """Hyper-parameters of replay.

    Attributes:
        gamma: share of a task's training samples that is remembered, in (0, 1].
    """

    gamma: float = Field(0.03, gt=0, le=1)


class Replay(Sgd[ReplayParams]):
    """Minimise the loss over the task's samples and the remembered ones together.

    State beside that of `Sgd`: ``memory``, see `clients.replay.buffer`.
    """

    params_type = ReplayParams
    rehearses = True

    @override
    def train(
        self, state: Payload, received: Payload, stage: Stage, data: TaskData
    ) -> tuple[Payload, Update]:
        seen = rehearsed(state, stage, data, self.place)
        after, update = super().train(state, received, stage, seen)
        return memorised(after, stage, data, self.params.gamma, self.place), update


def rehearsed(state: Payload, stage: Stage, data: TaskData, place: Place) -> TaskData:
    """Return the task's data with what is remembered of others to train on."""
    old = recalled(state.get("memory", {}), place.device, without=stage.task)
    train = together([data.train, old])
    return TaskData(train, data.valid, data.test, data.classes)


def memorised(
    state: Payload, stage: Stage, data: TaskData, gamma: float, place: Place
) -> Payload:
    """Return the state with the share ``gamma`` of the task's samples in memory.

    A task counts once: its samples stay the same over rounds, also where its first
    round was tried again, or the client was away then.
    """
    seed = derive(place.seed, "sample-memory", place.client, stage.task)
    memory = state.get("memory", {})
    return {
        **state,
        "memory": remembered(memory, data.train, gamma, seed, task=stage.task),
    }
