"""FedWeIT, client side: a gated base, one sparse adapter a task, foreign adapters.

Yoon et al., ICML 2021, https://arxiv.org/abs/2003.03196, algorithm 1. Per decomposed
tensor: theta = B * g(m) + A + sum_j alpha_j A_j. B is shared with the server; m, A,
alpha and everything that is not decomposed (biases, normalisation, the head) belong to
a task. The mask receives the task's gradient and old adapters follow the base, which
is what the released code leaves out. A client that meets a task again goes on where it
stood, which the paper does not know.
"""

import math
from collections.abc import Collection, Mapping
from typing import TypeVar

import numpy as np
from torch import Tensor
from typing_extensions import override

from clients.fedweit.maths import (
    ForeignBank,
    Learned,
    by_channel,
    centres,
    drop_harmful_senders,
    gate,
    retroactive,
    top_channels,
)
from clients.fedweit.task_model import OldTask, TaskModel, TaskTensors, Tensors
from fcl_flower.algorithms.base import ClientLearner, ClientQueries
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Array, Arrays, Payload, SparseArray, TaskStage, Update
from fcl_flower.data.examples import TaskData
from fcl_flower.training.loop import Fit, fit, score
from fcl_flower.training.tensors import arrays_of, dense, snapshot, to_numpy, to_torch
from strategies.fedweit import FedWeitParams
from strategies.fedweit.maths import decomposed

CURRENT = "meta/current"
RECEIVED = "received/"
ADAPTERS = "adapters/"
"""Of others, in what the server sends: ``adapters/C/S``."""


def current_task(state: Payload) -> int | None:
    """Task in progress; None between tasks."""
    return int(dense(state[CURRENT]["task"])) if CURRENT in state else None


def known_tasks(state: Payload) -> list[int]:
    """List the tasks that a client has ever trained on, ascending."""
    return sorted(int(g.split("/")[1]) for g in state if g.startswith("masks/"))


def senders(offer: Payload) -> list[str]:
    """List the clients whose adapters are in what the server sent, in one order."""
    found = {group.split("/")[1] for group in offer if group.startswith(ADAPTERS)}
    return sorted(found, key=int)


def only_adapters_of(clients: Collection[str], offer: Payload) -> Payload:
    """Leave out the adapters of all but some clients from what the server sent."""
    return {
        group: arrays
        for group, arrays in offer.items()
        if not group.startswith(ADAPTERS) or group.split("/")[1] in clients
    }


def start_task(
    state: Payload, task: int, foreign: Mapping[str, Arrays] = {}
) -> dict[str, Arrays]:
    """Put ``task`` in progress, with equal attention.

    Args:
        state: another task may be in progress, if its end was never asked for.
        task: its number.
        foreign: the adapters that came for it, by ``client/task``.
    """
    equal = np.full(len(foreign), 1 / max(len(foreign), 1), np.float32)
    return {
        **end_task(state),
        CURRENT: {"task": np.asarray(task)},
        **{RECEIVED + source: arrays for source, arrays in foreign.items()},
        "attention": dict.fromkeys(state["base"], equal),
    }


def end_task(state: Payload) -> dict[str, Arrays]:
    """Leave no task in progress."""
    kept = {
        group: arrays
        for group, arrays in state.items()
        if group not in {CURRENT, "attention"} and not group.startswith(RECEIVED)
    }
    return {**kept, "optimizer": {}}


def received(state: Payload) -> list[str]:
    """List whose adapters came for the task, as ``client/task``, in one order."""
    groups = sorted(group for group in state if group.startswith(RECEIVED))
    return [group.removeprefix(RECEIVED) for group in groups]


def foreign_adapters(state: Payload) -> dict[str, ForeignBank]:
    """Collect the adapters that came, by tensor; empty when none did."""
    groups = [RECEIVED + source for source in received(state)]
    if not groups:
        return {}
    return {
        name: ForeignBank([_sparse(state[group], name) for group in groups])
        for name in state["base"]
    }


def merged_foreign(state: Payload) -> dict[str, SparseArray]:
    """Compute sum_j alpha_j A_j by tensor, as it is now; empty without any A_j."""
    return {
        name: SparseArray.of_nonzero(bank.combine(_alpha(state, name)))
        for name, bank in foreign_adapters(state).items()
    }


def attention_weights(state: Payload) -> dict[str, float]:
    """Report ``attention/C/S``: mean |alpha| over the tensors."""
    sources = received(state)
    if not sources:
        return {}
    alpha = [np.abs(_alpha(state, name)) for name in state["base"]]
    return {
        f"attention/{source}": float(weight)
        for source, weight in zip(sources, np.mean(alpha, axis=0), strict=True)
    }


def _alpha(state: Payload, name: str) -> Array:
    return dense(state["attention"][name])


def _sparse(arrays: Arrays, name: str) -> SparseArray:
    tensor = arrays[name]
    if isinstance(tensor, SparseArray):
        return tensor
    return SparseArray.of_nonzero(tensor)


W = TypeVar("W", bound=FedWeitParams)


class FedWeit(ClientLearner[W], ClientQueries):
    """Learn a task with its own adapter; keep old tasks as they were.

    State, with T the number of a task:

    - ``base``: B now; ``anchor/base``: B when a task last ended.
    - ``masks/T``: raw masks m; ``heads/T``: biases, normalisation and head.
    - ``adapters/T``: A. Of a finished task, as it was when a task last ended; with the
      gradient solver as it is now, and ``anchor/T`` as it was then.
    - ``foreign/T``: sum_j alpha_j A_j of a finished task.
    - what `clients.fedweit.client` tells of the task in progress.
    """

    @override
    def init(self) -> Payload:
        start = self.initial()
        return {"base": start, "anchor/base": start}

    @override
    def answer_query(
        self, state: Payload, question: Payload, stage: TaskStage, data: TaskData
    ) -> Payload:
        """Summarise the new task; nothing where it has too few documents."""
        found = centres(
            to_numpy(self.model.embed(data.train.x)),
            self.params.clusters,
            self.params.clustering,
            self.params.members,
            derive(self.context.seed, "summary", self.context.client, stage.task),
        )
        if not len(found):
            return {}
        if self.params.overlap == "thresholded":
            return {"summary": {"centres": found}}
        return {"summary": {"mean": found.mean(0)}}

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        task, unfinished = stage.task, current_task(state)
        if unfinished not in (None, task):  # the client was away when it ended
            state = self.finish_task(state, unfinished)
        state = {**state, "base": with_global_base(state["base"], received["base"])}
        if task not in known_tasks(state):
            state, metrics, _ = self.begin(state, received, stage, data)
        else:
            begun = current_task(state) == task
            state = state if begun else self.resume(state, task)
            state, metrics, _ = self.learn(state, stage, data)
        metrics |= self.attention_weights(state)
        if stage.ends_task:
            state = self.finish_task(state, task)
            metrics |= task_statistics(state, task)
        return state, Update(self.upload(state, stage), len(data.train.y), metrics)

    def begin(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> Learned:
        """Train the first round of a task, without adapters that harm if so asked."""

        def tried(clients: Collection[str]) -> Learned:
            offer = only_adapters_of(clients, received)
            return self.learn(self.start(state, offer, stage.task), stage, data)

        others, drop = senders(received), self.params.drop_harmful
        return drop_harmful_senders(tried, others) if drop else tried(others)

    def learn(self, state: Payload, stage: TaskStage, data: TaskData) -> Learned:
        """Train a round; also measure the loss in validation."""
        task = stage.task
        work = self.build_task_model(state, task)
        seen = work.prepared(data)
        job = Fit(
            parameters=work.leaves,
            objective=work.loss,
            examples=seen.train,
            training=self.context.training,
            seed=self.context.seed,
            rates=work.rates,
            after_step=work.proximal_step,
            client=self.context.client,
            round=stage.round,
            validate=lambda: score(work.logits, seen.valid),
            optimizer_state=state["optimizer"],
        )
        done = fit(job)
        after = {**state, **self.changed(work, task), "optimizer": done.optimizer_state}
        loss = score(work.logits, seen.valid).loss if self.params.drop_harmful else 0.0
        return after, done.metrics(), loss

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        if f"masks/{task}" not in state:
            state = {**state, **self.fresh(task)}
        return self.build_task_model(state, task).logits(x)

    def initial(self) -> Arrays:
        """Decompose the weights that every client starts from."""
        return decomposed(snapshot(self.model, self.model.shared_names()))

    def fresh(self, task: int) -> Payload:
        """Make mask, adapter and private tensors of a task not yet trained."""
        owned = {*self.model.shared_names(), *self.model.head_names(task)}
        initial = snapshot(
            self.model, [name for name in self.model.state_dict() if name in owned]
        )
        weights = decomposed(initial)
        return {
            f"masks/{task}": {
                name: np.full(len(v), self.params.initial_gate, v.dtype)
                for name, v in weights.items()
            },
            f"adapters/{task}": {
                name: np.multiply(self.params.initial_adapter, v, dtype=v.dtype)
                for name, v in weights.items()
            },
            f"heads/{task}": {
                name: values for name, values in initial.items() if name not in weights
            },
        }

    def start(self, state: Payload, received: Payload, task: int) -> Payload:
        """Begin a new task, with what arrived for it."""
        foreign = {
            group.removeprefix("adapters/"): arrays
            for group, arrays in received.items()
            if group.startswith("adapters/")
        }
        return {**start_task(state, task, foreign), **self.fresh(task)}

    def resume(self, state: Payload, task: int) -> Payload:
        """Come back to a task that the client has finished.

        Its adapter is the one that it would predict with now; mask, biases, head and
        foreign sum are as they were left. Adapters of others are for new tasks alone
        (``stage.starts_task``), so that alpha is not trained again.
        """
        adapters = arrays_of(self.adapters(state, task))
        return {**start_task(state, task), f"adapters/{task}": adapters}

    def finish_task(self, state: Payload, task: int) -> Payload:
        """Let all adapters follow the base and prune them; fold the foreign ones."""
        finished: dict[str, Arrays] = {
            **end_task(state),
            **{
                f"adapters/{t}": {
                    name: SparseArray.of_nonzero(
                        to_numpy(values), self.params.threshold
                    )
                    for name, values in self.adapters(state, t).items()
                }
                for t in known_tasks(state)
            },
            "anchor/base": state["base"],
        }
        if foreign := merged_foreign(state):
            finished[f"foreign/{task}"] = foreign
        if self.params.solver == "gradient":
            for t in known_tasks(state):
                finished[f"anchor/{t}"] = finished[f"adapters/{t}"]
        return finished

    def upload(self, state: Payload, stage: TaskStage) -> Payload:
        """Select what goes up: B on the top-kappa channels, at a task's end also A."""
        groups = {"base": self.upload_base(state, stage.task)}
        if stage.ends_task:
            groups["adapters"] = state[f"adapters/{stage.task}"]
        return groups

    def upload_base(self, state: Payload, task: int) -> Arrays:
        """Select B, or B * g(m), on the top-kappa channels by gate."""
        masks = self.to_tensors(state[f"masks/{task}"])
        sent = {}
        for name, base in self.to_tensors(state["base"]).items():
            gates = gate(masks[name], self.params.gate)
            channels = top_channels(gates, self.params.kappa)
            if self.params.aggregation == "literal":
                base = base * by_channel(gates, base)
            sent[name] = SparseArray.of_channels(to_numpy(base), to_numpy(channels))
        return sent

    def attention_weights(self, state: Payload) -> dict[str, float]:
        """Report the weight of each foreign adapter."""
        return attention_weights(state)

    def adapters(self, state: Payload, task: int) -> Tensors:
        """Compute A of a task as it follows today's base."""
        adapters = self.to_tensors(state[f"adapters/{task}"])
        if self.params.solver == "gradient" or current_task(state) == task:
            return adapters
        base, anchor = (
            self.to_tensors(state["base"]),
            self.to_tensors(state["anchor/base"]),
        )
        gates = self.gates(state, task)
        return {
            name: retroactive(
                adapter,
                base[name] - anchor[name],
                gates[name],
                self.params.lambda1,
                self.params.lambda2,
            )
            for name, adapter in adapters.items()
        }

    def gates(self, state: Payload, task: int) -> Tensors:
        """Compute g(m) of a task."""
        masks = self.to_tensors(state[f"masks/{task}"])
        return {name: gate(mask, self.params.gate) for name, mask in masks.items()}

    def build_task_model(self, state: Payload, task: int) -> TaskModel:
        """Build a task's model, ready to predict or to be trained."""
        return TaskModel(self.model, self.params, task, self.task_tensors(state, task))

    def task_tensors(self, state: Payload, task: int) -> TaskTensors:
        """Collect the tensors of a task."""
        tensors = TaskTensors(
            base=self.to_tensors(state["base"]),
            masks=self.to_tensors(state[f"masks/{task}"]),
            adapters=self.adapters(state, task),
            private=self.to_tensors(state[f"heads/{task}"]),
            foreign=self.to_tensors(state.get(f"foreign/{task}", {})),
        )
        if current_task(state) == task:
            tensors.banks = foreign_adapters(state)
            tensors.attention = self.to_tensors(
                state["attention"] if tensors.banks else {}
            )
            if self.params.solver != "unbraked":
                tensors.anchor = self.to_tensors(state["anchor/base"])
                tensors.old = {
                    t: self.old_task(state, t) for t in known_tasks(state) if t != task
                }
        return tensors

    def old_task(self, state: Payload, task: int) -> OldTask:
        """Collect what the task in progress must know of one of the past."""
        adapters = self.to_tensors(state[f"adapters/{task}"])
        gates = self.gates(state, task)
        if self.params.solver == "closed":
            return OldTask(adapters, gates)
        return OldTask(self.to_tensors(state[f"anchor/{task}"]), gates, adapters)

    def changed(self, work: TaskModel, task: int) -> Payload:
        """Collect what training changed, as groups of the client's state."""
        tensors = work.tensors
        changed: dict[str, Arrays] = {
            "base": arrays_of(tensors.base),
            f"masks/{task}": arrays_of(tensors.masks),
            f"adapters/{task}": arrays_of(tensors.adapters),
            f"heads/{task}": arrays_of(tensors.private),
            **{
                f"adapters/{t}": arrays_of(old.adapters)
                for t, old in tensors.old.items()
                if old.adapters
            },
        }
        if tensors.attention:
            changed["attention"] = arrays_of(tensors.attention)
        return changed

    def to_tensors(self, arrays: Arrays) -> Tensors:
        """Copy arrays to dense tensors on this learner's device."""
        return {
            n: to_torch(values, self.context.device) for n, values in arrays.items()
        }


def task_statistics(state: Payload, task: int) -> dict[str, float]:
    """Measure the parts of a finished task.

    ``adapter_density`` and ``mask_density``: shares of A's entries and of the gates m
    that are not zero. ``foreign_norm``: the Euclidean norm of sum_j alpha_j A_j over
    that of B.
    """
    foreign = state.get(f"foreign/{task}", {})
    return {
        "adapter_density": density(state[f"adapters/{task}"]),
        "mask_density": density(state[f"masks/{task}"]),
        "foreign_norm": norm(foreign) / norm(state["base"]),
    }


def norm(arrays: Arrays) -> float:
    """Compute the Euclidean norm over all tensors; 0 of none."""
    return math.sqrt(sum(float(np.square(dense(v)).sum()) for v in arrays.values()))


def density(arrays: Arrays) -> float:
    """Measure the share of entries that are not zero, in [0, 1]."""
    tensors = [dense(values) for values in arrays.values()]
    kept = sum(int(np.count_nonzero(tensor)) for tensor in tensors)
    return kept / sum(tensor.size for tensor in tensors)


def with_global_base(base: Arrays, sent: Arrays) -> Arrays:
    """Write theta_G over B where it was sent; the rest stays (section 3.4)."""
    return {
        name: theta.overwrite(dense(values))
        if isinstance(theta := sent.get(name, values), SparseArray)
        else theta
        for name, values in base.items()
    }
