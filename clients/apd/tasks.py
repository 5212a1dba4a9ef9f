"""The tasks of a client in APD: FedWeIT's decomposition without other clients.

What both have in common is FedWeIT's: the sparse adapters, and the closed form by which
old ones follow the shared weights.
"""

from typing_extensions import override

from clients.apd.consolidation import consolidate
from clients.apd.task_model import ApdModel
from clients.fedweit.client import FedWeit
from clients.fedweit.client_state import known_tasks
from clients.fedweit.task_model import TaskTensors
from fcl_flower.algorithms.base import ClientContext
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Arrays, Payload, TaskStage
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.tensors import dense
from strategies.apd import ApdParams
from strategies.fedweit import FedWeitParams

LOCAL, GROUPS = "local/", "meta/groups/"


class ApdTasks(FedWeit[FedWeitParams]):
    """Learn a task with its own mask and adapter; share what adapters have in common.

    State beside that of `FedWeit`, whose ``foreign`` and ``attention`` stay empty:

    - ``local/G``: sigma~ of group G of tasks.
    - ``meta/groups/T``: the group of task T, by tensor; nothing of one that came after
      the last consolidation.
    """

    def __init__(
        self,
        params: ApdParams,
        model: MultiHeadModel,
        context: ClientContext,
        mu: float = 0.0,
    ) -> None:
        """Refuse a model in which there is nothing to decompose.

        Args:
            params: hyper-parameters.
            model: freshly initialised.
            context: where the learner runs.
            mu: weight of staying near the received sigma, at least 0.
        """
        equal = FedWeitParams(
            lambda1=params.lambda1,
            lambda2=params.lambda2,
            lambda_mask=0.0,
            threshold=params.threshold,
            gate="sigmoid",
            initial_gate=0.0,
            initial_adapter=params.initial_adapter,
            mask_rate=params.mask_rate,
        )
        super().__init__(equal, model, context)
        self.apd, self.mu = params, mu
        if not self.initial():
            raise ConfigError(
                "model: got a body without trained weights, expected one that has "
                "them: APD decomposes nothing else"
            )

    @override
    def start(self, state: Payload, received: Payload, task: int) -> Payload:
        adapters = {
            name: self.apd.initial_adapter * dense(sigma)
            for name, sigma in state["base"].items()
        }
        return {**super().start(state, received, task), f"adapters/{task}": adapters}

    @override
    def close(self, state: Payload, task: int) -> Payload:
        """Finish a task; consolidate when enough have come since the last time."""
        finished = super().close(state, task)
        known, every = known_tasks(finished), self.apd.consolidate_every
        new = [t for t in known if GROUPS + str(t) not in finished]
        if not every or len(new) < every:
            return finished
        count = self.apd.groups * len(known) // every
        context = self.context
        seed = derive(context.seed, "consolidation", context.client, len(known))
        whole = {t: self.whole_adapter(finished, t) for t in known}
        kept = {g: a for g, a in finished.items() if not g.startswith(LOCAL)}
        return {**kept, **consolidate(whole, count, self.apd.gap, seed)}

    @override
    def sent(self, state: Payload, stage: TaskStage) -> Payload:
        return {"base": state["base"]}

    @override
    def task_tensors(self, state: Payload, task: int) -> TaskTensors:
        tensors = super().task_tensors(state, task)
        tensors.foreign = self.torch(local_of(state, task))
        return tensors

    @override
    def build_task_model(self, state: Payload, task: int) -> ApdModel:
        return ApdModel(
            self.model,
            self.params,
            task,
            self.task_tensors(state, task),
            weight_decay=self.apd.weight_decay,
            mu=self.mu,
        )

    def whole_adapter(self, state: Payload, task: int) -> Arrays:
        """Return tau + sigma~ of a finished task."""
        local = local_of(state, task)
        return {
            name: dense(tau) + dense(local[name]) if name in local else tau
            for name, tau in state[f"adapters/{task}"].items()
        }


def local_of(state: Payload, task: int) -> Arrays:
    """Return sigma~ of a task's groups, by tensor; nothing where it has one alone."""
    return {
        name: shared[name]
        for name, group in state.get(GROUPS + str(task), {}).items()
        if name in (shared := state.get(f"{LOCAL}{int(dense(group))}", {}))
    }
