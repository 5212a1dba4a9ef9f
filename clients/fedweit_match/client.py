"""FedWeIT whose new tasks start from a matching task of another client.

Ours. FedWeIT (Yoon et al., ICML 2021) adds the adapters of other clients to a new
task's weights. Here a finished task travels whole (weights, mask, biases, head), and a
client that begins a task looks for the one among those it received whose own head
separates its training examples best. If that clearly beats every task of its own past,
the new task starts there, and when it ends its weights are averaged back towards that
start as far as validation allows. The base is exchanged between tasks only.
"""

import logging

import numpy as np
from typing_extensions import override

from clients.fedweit.client import FedWeit
from clients.fedweit.client_state import known_tasks
from clients.fedweit.equations import by_channel, compose
from clients.fedweit.task_model import Tensors, predict
from clients.fedweit_match.matching import (
    averaged_back,
    clearly_above,
    matched_accuracy,
)
from fcl_flower.core.errors import WireError
from fcl_flower.core.sparse import SparseArray
from fcl_flower.core.types import Payload, TaskStage
from fcl_flower.data.examples import TaskData
from fcl_flower.training.tensors import arrays_of, dense, to_numpy
from strategies.fedweit_match import FedWeitMatchParams

HEAD = "head."
log = logging.getLogger(__name__)


class FedWeitMatch(FedWeit[FedWeitMatchParams]):
    """State beside that of `FedWeit`, while a task that found a match is trained.

    ``start/tensors``: theta and private tensors that it began with; ``start/from``:
    the client and the task that they come from.
    """

    @override
    def start(
        self, state: Payload, received: Payload, task: int, data: TaskData
    ) -> Payload:
        begun = super().start(state, {}, task, data)
        found = self._best_match(state, received, task, data)
        if found is None:
            return begun
        source, tensors = found
        begun = {**begun, f"masks/{task}": received[f"masks/{source}"]}
        return {
            **self._set(begun, tensors, task),
            "start/tensors": arrays_of(tensors),
            "start/from": {"number": np.array([int(n) for n in source.split("/")])},
        }

    @override
    def finish(self, state: Payload, task: int, data: TaskData) -> Payload:
        if "start/tensors" in state:
            mixed = averaged_back(
                self.torch(state["start/tensors"]),
                self._tensors(state, task),
                lambda tensors, x: predict(self.model, tensors, x, task),
                data.valid,
            )
            state = self._set(state, mixed, task)
        return super().finish(state, task, data)

    @override
    def close(self, state: Payload, task: int) -> Payload:
        kept = {g: arrays for g, arrays in state.items() if not g.startswith("start/")}
        return super().close(kept, task)

    @override
    def sent(self, state: Payload, stage: TaskStage) -> Payload:
        if not stage.ends_task:
            return {"base": {}}
        task = stage.task
        tensors, gates = self._tensors(state, task), self.gates(state, task)
        own_head = f"heads.{self.model.head_index(task)}."
        return {
            "base": self.sent_base(state, task),
            # Relative to the base that every client started with: what a client has
            # learned lies in its B as well, and no other client has that.
            "adapters": {
                name: SparseArray.of_nonzero(
                    to_numpy(tensors[name] - by_channel(gates[name], start) * start),
                    self.params.threshold,
                )
                for name, start in self.torch(self.initial()).items()
            },
            "masks": state[f"masks/{task}"],
            "heads": {
                name.replace(own_head, HEAD): values
                for name, values in state[f"heads/{task}"].items()
            },
        }

    @override
    def attention_weights(self, state: Payload) -> dict[str, float]:
        if "start/from" not in state:
            return {}
        client, task = dense(state["start/from"]["number"]).tolist()
        return {f"attention/{client}/{task}": 1.0}

    def _best_match(
        self, state: Payload, received: Payload, task: int, data: TaskData
    ) -> tuple[str, Tensors] | None:
        """Return ``client/task`` and tensors of the foreign task to start from."""
        count = self.params.match_examples
        x, y = data.train.x[:count], data.train.y[:count]
        known = max(
            (
                matched_accuracy(self.predict(state, {}, t, x), y)[0]
                for t in known_tasks(state)
            ),
            default=0.0,
        )
        best, found = known, None
        for group in received:
            source = group.removeprefix("adapters/")
            if source == group:
                continue
            try:
                tensors = self._foreign(received, source, task)
            except WireError as error:  # one client's nonsense must not stop the rest
                log.warning("not considered: %s", error)
                continue
            logits = predict(self.model, tensors, x, task)
            accuracy, order = matched_accuracy(logits, y)
            if accuracy > best and clearly_above(accuracy, known, len(y)):
                for name in self.model.head_names(task):
                    tensors[name] = tensors[name][order]
                best, found = accuracy, (source, tensors)
        return found

    def _foreign(self, received: Payload, source: str, task: int) -> Tensors:
        """Return theta and private tensors of a task that arrived, as of my ``task``.

        Raises:
            WireError: they do not fit this client's model.
        """
        own = {n: (v.shape, v.dtype) for n, v in self.model.state_dict().items()}
        own_head = f"heads.{self.model.head_index(task)}."
        gates = self.gates({"masks/0": received[f"masks/{source}"]}, 0)
        adapters = self.torch(received[f"adapters/{source}"])
        tensors = {
            name.replace(HEAD, own_head): values
            for name, values in self.torch(received[f"heads/{source}"]).items()
        }
        for name, start in self.torch(self.initial()).items():
            if name not in gates or name not in adapters:
                raise WireError(f"task {source}: {name} is missing")
            tensors[name] = compose(start, gates[name], adapters[name])
        for name, values in tensors.items():
            if own.get(name) != (values.shape, values.dtype):
                raise WireError(f"task {source}: {name} does not fit the model")
        return tensors

    def _tensors(self, state: Payload, task: int) -> Tensors:
        """Return theta and private tensors of one of my own tasks."""
        work = self.build_task_model(state, task)
        tensors = {**work.weights(), **work.tensors.private}
        return {name: tensor.detach() for name, tensor in tensors.items()}

    def _set(self, state: Payload, tensors: Tensors, task: int) -> Payload:
        """Return the state with A and the private tensors that give ``tensors``."""
        gates, base = self.gates(state, task), self.torch(state["base"])
        adapters = {
            name: tensors[name] - by_channel(gates[name], weight) * weight
            for name, weight in base.items()
        }
        private = {n: tensor for n, tensor in tensors.items() if n not in base}
        return {
            **state,
            f"adapters/{task}": arrays_of(adapters),
            f"heads/{task}": arrays_of(private),
        }
