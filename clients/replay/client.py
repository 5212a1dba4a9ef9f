"""Replay: a few samples of each old task are trained on again with every new one.

De Masson d'Autume et al., NeurIPS 2019, https://arxiv.org/abs/1906.01076, as FedET
(Liu et al., IJCAI 2023, section 4.1) federates it: every client keeps a share gamma of
what it has seen.
"""

from typing_extensions import override

from clients.fedavg import Sgd
from clients.replay.buffer import add_to_buffer, replay_samples
from fcl_flower.algorithms.base import ClientContext
from fcl_flower.core.seeds import derive
from fcl_flower.core.types import Payload, TaskStage, Update
from fcl_flower.data.examples import TaskData, concat
from strategies.replay import ReplayParams


class Replay(Sgd[ReplayParams]):
    """Minimise the loss over the task's samples and the remembered ones together.

    State beside that of `Sgd`: ``memory``, see `clients.replay.buffer`.
    """

    needs_single_head = True

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        seen = with_replay(state, stage, data, self.context)
        after, update = super().train(state, received, stage, seen)
        return with_buffer(after, stage, data, self.params.gamma, self.context), update


def with_replay(
    state: Payload, stage: TaskStage, data: TaskData, context: ClientContext
) -> TaskData:
    """Return the task's data with what is remembered of others to train on."""
    old = replay_samples(state.get("memory", {}), context.device, without=stage.task)
    train = concat([data.train, old])
    return TaskData(train, data.valid, data.test, data.classes)


def with_buffer(
    state: Payload,
    stage: TaskStage,
    data: TaskData,
    gamma: float,
    context: ClientContext,
) -> Payload:
    """Return the state with the share ``gamma`` of the task's samples in memory.

    A task counts once: its samples stay the same over rounds, also where its first
    round was tried again, or the client was away then.
    """
    seed = derive(context.seed, "sample-memory", context.client, stage.task)
    memory = state.get("memory", {})
    return {
        **state,
        "memory": add_to_buffer(memory, data.train, gamma, seed, task=stage.task),
    }
