"""FedWeIT, client side: a gated base, one sparse adapter a task, foreign adapters.

Yoon et al., ICML 2021, https://arxiv.org/abs/2003.03196, algorithm 1. Each decomposed
tensor is theta = B * g(m) + A + sum_j alpha_j A_j. B is shared with the server. A task
owns m, A, alpha and everything that is not decomposed (biases, normalisation, the
head). The mask receives the task's gradient, and old adapters follow the base; the
released code leaves out both. A client that meets a task again goes on from the task's
state; the paper has no such case.
"""

import math
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
from torch import Tensor
from typing_extensions import override

from clients.fedweit.maths import (
    Followers,
    OldTask,
    TaskModel,
    TaskTensors,
    Tensors,
    attended,
    by_channel,
    centres,
    compose,
    gate,
    retroactive,
    rounded,
    top_channels,
)
from fcl_flower.algorithms.augmentation import augmenter
from fcl_flower.algorithms.base import ClientLearner, ClientQueries, P, Turn
from fcl_flower.core.types import (
    AnyArray,
    Array,
    Arrays,
    Payload,
    SparseArray,
    TaskStage,
    Update,
)
from fcl_flower.training.loop import Fit, fit, score
from fcl_flower.training.tensors import arrays_of, dense, snapshot, to_numpy, to_torch
from strategies.fedweit import FedWeitParams
from strategies.fedweit.maths import EXACT, decomposed

CURRENT = "meta/current"
RECEIVED = "received/"
ADAPTERS = "adapters/"
"""The prefix of other clients' adapters in what the server sends: ``adapters/C/S``."""


def current_task(state: Payload) -> int | None:
    """Read the task in progress; None between tasks."""
    return int(dense(state[CURRENT]["task"])) if CURRENT in state else None


def known_tasks(state: Payload) -> list[int]:
    """List the tasks that a client has ever trained on, ascending."""
    return sorted(int(g.split("/")[1]) for g in state if g.startswith("masks/"))


def received(state: Payload) -> list[str]:
    """List the sources of the task's received adapters, ``client/task``, in order."""
    return sorted(g.removeprefix(RECEIVED) for g in state if g.startswith(RECEIVED))


def foreign_adapters(state: Payload) -> dict[str, Array]:
    """Collect received adapters, (J, *shape) by tensor; empty when there are none."""
    adapters = [state[RECEIVED + source] for source in received(state)]
    return {
        name: np.stack([dense(adapter[name]) for adapter in adapters])
        for name in (state["base"] if adapters else ())
    }


def foreign_sums(state: Payload) -> dict[str, Array]:
    """Compute sum_j alpha_j A_j of the task in progress; empty without adapters."""
    return {
        name: to_numpy(attended(to_torch(stack), to_torch(state["attention"][name])))
        for name, stack in foreign_adapters(state).items()
    }


def start_task(
    state: Payload, task: int, foreign: Mapping[str, Arrays] = {}
) -> dict[str, Arrays]:
    """Put ``task`` in progress, with equal attention to adapters by ``client/task``.

    Another task may still be in progress, if its end was never requested.
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


class Learned(NamedTuple):
    """The result of a round of training, and its validation loss."""

    state: Payload
    metrics: dict[str, float]
    loss: float


class DecomposedLearner(ClientLearner[P]):
    """A learner of tasks with an adapter each; old tasks stay as they were.

    A method says in `upload` what travels, and may change any step. State, with T the
    number of a task:

    - ``base``: B now; ``anchor/base``: B when a task last ended.
    - ``masks/T``: raw masks m; ``heads/T``: biases, normalisation and head.
    - ``adapters/T``: A. A finished task has its A of the last end of any task. With the
      gradient solver it has the present A, and ``anchor/T`` has that of the end.
    - ``foreign/T``: sum_j alpha_j A_j of a finished task. Where adapters are rounded,
      it is a part of ``adapters/T`` instead, which takes half of the bytes.
    - For the task in progress: ``meta/current``, ``attention`` (alpha by tensor),
      ``received/C/S`` (A_j) and ``optimizer``.
    """

    needs_task = True
    balances = ("weights", "batches")
    augments = True

    settings: FedWeitParams
    """The settings of the decomposition, which a method gives in `prepare`."""

    @abstractmethod
    def upload(self, state: Payload, stage: TaskStage) -> Payload:
        """Select what the client sends after a round."""

    def attention_weights(self, state: Payload) -> dict[str, float]:
        """Report ``attention/C/S``, the weight of each foreign adapter."""
        return {}

    @override
    def init(self) -> Payload:
        start = self.initial()
        return {"base": start, "anchor/base": start}

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        state, received, stage, data = turn
        task, unfinished = stage.task, current_task(state)
        if unfinished not in (None, task):  # the client was away at its end
            state = self.finish_task(state, unfinished)
        state = self.take_up(state, received.get("base", {}))
        if task not in known_tasks(state):
            state, metrics, _ = self.begin(turn._replace(state=state))
        else:
            state = state if unfinished == task else self.resume(state, task)
            state, metrics, _ = self.learn(turn._replace(state=state))
        metrics |= self.attention_weights(state)
        sent = self.upload(state, stage)
        if stage.ends_task:
            metrics |= self.task_statistics(state, task)
            state = self.finish_task(state, task)
        return state, Update(sent, len(data.train.y), metrics)

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        if f"masks/{task}" not in state:
            state = {**state, **self.fresh(task)}
        return self.build_task_model(state, task).logits(x)

    # ---- a round of training

    def take_up(self, state: Payload, sent: Arrays) -> Payload:
        """Write theta_G over B; let the adapter in training follow it in part.

        Averaging undoes what a task has learned in B. That costs most where the other
        clients' tasks are unlike it. The adapter takes back the share ``follow`` of the
        loss. Old adapters take back all of theirs.
        """
        base, task = with_global_base(state["base"], sent), current_task(state)
        taken = {**state, "base": base}
        if task is None or not self.settings.follow:
            return taken
        old, new = self.to_tensors(state["base"]), self.to_tensors(base)
        gates, share = self.gates(state, task), self.settings.follow
        adapters = self.to_tensors(state[f"adapters/{task}"])
        for name, adapter in adapters.items():
            undone = share * (old[name] - new[name])
            adapters[name] = compose(undone, gates[name], adapter)
        return {**taken, f"adapters/{task}": arrays_of(adapters)}

    def begin(self, turn: Turn) -> Learned:
        """Train the first round of a task."""
        started = self.start(turn.state, turn.received, turn.stage.task)
        return self.learn(turn._replace(state=started))

    def learn(self, turn: Turn) -> Learned:
        """Train a round, and measure the validation loss."""
        state, _, stage, data = turn
        task = stage.task
        work, training = self.build_task_model(state, task), self.context.training
        work.class_weights = training.class_weights(data.train.y, self.model.classes)
        seen, augment = work.prepared(data), augmenter(self.context, stage.round)
        validate = partial(score, work.logits, seen.valid, balanced=training.balanced)

        def objective(x: Tensor, y: Tensor) -> Tensor:
            return work.loss(x if augment is None else augment(x), y)

        job = Fit(
            parameters=work.leaves,
            objective=objective,
            examples=seen.train,
            training=training,
            labelled=True,
            seed=self.context.seed,
            rates=work.rates,
            after_step=work.proximal_step,
            client=self.context.client,
            round=stage.round,
            validate=validate,
            optimizer_state=state["optimizer"],
        )
        done = fit(job)
        after = {**state, **self.changed(work, task), "optimizer": done.optimizer_state}
        loss = validate().loss if self.settings.drop_harmful else 0.0
        return Learned(after, done.metrics(), loss)

    def build_task_model(self, state: Payload, task: int) -> TaskModel:
        """Build a task's model, ready to predict or to be trained."""
        return TaskModel(
            self.model, self.settings, task, self.task_tensors(state, task)
        )

    def task_tensors(self, state: Payload, task: int) -> TaskTensors:
        """Collect the tensors of a task, and in progress also those of other tasks."""
        tensors = TaskTensors(
            base=self.to_tensors(state["base"]),
            masks=self.to_tensors(state[f"masks/{task}"]),
            adapters=self.adapters(state, task),
            private=self.to_tensors(state[f"heads/{task}"]),
            foreign=self.to_tensors(state.get(f"foreign/{task}", {})),
        )
        if current_task(state) == task:
            tensors.others = self.to_tensors(foreign_adapters(state))
            alpha = state["attention"] if tensors.others else {}
            tensors.attention = self.to_tensors(alpha)
            others = [t for t in known_tasks(state) if t != task]
            if others and self.settings.solver != "unbraked":
                tensors.anchor = self.to_tensors(state["anchor/base"])
                if self.settings.solver == "closed":
                    tensors.followers = self.followers(state, others)
                else:
                    tensors.old = {t: self.old_task(state, t) for t in others}
        return tensors

    def followers(self, state: Payload, tasks: Sequence[int]) -> dict[str, Followers]:
        """Collect what the task in progress must know of old tasks, by weight."""
        lambda2 = self.settings.lambda2
        if not lambda2:
            return {}
        gates = [self.gates(state, t) for t in tasks]
        old, device = [state[f"adapters/{t}"] for t in tasks], self.context.device
        return {
            name: Followers.of(
                [to_torch(arrays[name], device) for arrays in old],
                [task_gates[name] for task_gates in gates],
                lambda2,
            )
            for name in state["base"]
        }

    def old_task(self, state: Payload, task: int) -> OldTask:
        """Collect the tensors of an old task that the gradient solver trains along."""
        return OldTask(
            self.to_tensors(state[f"anchor/{task}"]),
            self.gates(state, task),
            self.to_tensors(state[f"adapters/{task}"]),
        )

    def changed(self, work: TaskModel, task: int) -> Payload:
        """Collect what training changed, as groups of the client's state."""
        tensors = work.tensors
        changed: dict[str, Arrays] = {
            "base": arrays_of(tensors.base),
            f"masks/{task}": arrays_of(tensors.masks),
            f"adapters/{task}": arrays_of(tensors.adapters),
            f"heads/{task}": arrays_of(tensors.private),
        }
        for t, old in tensors.old.items():
            changed[f"adapters/{t}"] = arrays_of(old.adapters)
        if tensors.attention:
            changed["attention"] = arrays_of(tensors.attention)
        return changed

    # ---- the beginning and the end of a task

    def initial(self) -> dict[str, Array]:
        """Decompose the initial weights, the same for every client."""
        return decomposed(snapshot(self.model, self.model.shared_names()))

    def fresh(self, task: int) -> Payload:
        """Create mask, adapter and private tensors of an untrained task."""
        owned = {*self.model.shared_names(), *self.model.head_names(task)}
        names = [name for name in self.model.state_dict() if name in owned]
        initial = snapshot(self.model, names)
        weights, params = decomposed(initial), self.settings
        return {
            f"masks/{task}": {
                name: np.full(len(v), params.initial_gate, v.dtype)
                for name, v in weights.items()
            },
            f"adapters/{task}": {
                name: np.multiply(params.initial_adapter, v, dtype=v.dtype)
                for name, v in weights.items()
            },
            f"heads/{task}": {n: v for n, v in initial.items() if n not in weights},
        }

    def start(self, state: Payload, received: Payload, task: int) -> Payload:
        """Begin a new task, with the adapters that were received for it."""
        foreign = {
            group.removeprefix(ADAPTERS): arrays
            for group, arrays in received.items()
            if group.startswith(ADAPTERS)
        }
        return {**start_task(state, task, foreign), **self.fresh(task)}

    def resume(self, state: Payload, task: int) -> Payload:
        """Come back to a task that the client has finished.

        Its adapter is the one of its present predictions. Mask, biases, head and
        foreign sum are as they were left. Adapters of others come only with new tasks
        (``stage.starts_task``), so alpha is not trained again.
        """
        adapters = arrays_of(self.adapters(state, task))
        return {**start_task(state, task), f"adapters/{task}": adapters}

    def finish_task(self, state: Payload, task: int) -> Payload:
        """Let all adapters follow the base and settle them; fold in the foreign sum."""
        finished: dict[str, Arrays] = {**end_task(state), "anchor/base": state["base"]}
        foreign = foreign_sums(state)
        for t in known_tasks(state):
            adapters = self.adapters(state, t)
            if t == task and foreign and self.settings.adapter_bits < EXACT:
                for name, values in self.to_tensors(foreign).items():
                    adapters[name] = adapters[name] + values
            finished[f"adapters/{t}"] = self.settled(adapters)
            if self.settings.solver == "gradient":
                finished[f"anchor/{t}"] = finished[f"adapters/{t}"]
        if foreign and self.settings.adapter_bits == EXACT:
            finished[f"foreign/{task}"] = {
                name: SparseArray.of_nonzero(values) for name, values in foreign.items()
            }
        return finished

    def settled(self, adapters: Tensors) -> dict[str, SparseArray]:
        """Prune and round adapters, as the client stores and sends them."""
        threshold, bits = self.settings.threshold, self.settings.adapter_bits
        return {
            name: rounded(SparseArray.of_nonzero(to_numpy(values), threshold), bits)
            for name, values in adapters.items()
        }

    def task_statistics(self, state: Payload, task: int) -> dict[str, float]:
        """Measure the parts of a task that ends.

        ``adapter_density`` and ``mask_density`` are the shares of entries that are not
        zero, in the settled A and in the gates m. ``foreign_norm`` is the Euclidean
        norm of sum_j alpha_j A_j divided by that of B.
        """
        foreign = {**state.get(f"foreign/{task}", {}), **foreign_sums(state)}
        return {
            "adapter_density": density(self.settled(self.adapters(state, task))),
            "mask_density": density(state[f"masks/{task}"]),
            "foreign_norm": norm(foreign) / norm(state["base"]),
        }

    def adapters(self, state: Payload, task: int) -> Tensors:
        """Compute A of a task, which follows the present base."""
        adapters = self.to_tensors(state[f"adapters/{task}"])
        if self.settings.solver == "gradient" or current_task(state) == task:
            return adapters
        base = self.to_tensors(state["base"])
        anchor = self.to_tensors(state["anchor/base"])
        gates = self.gates(state, task)
        lambdas = self.settings.lambda1, self.settings.lambda2
        return {
            name: retroactive(adapter, base[name] - anchor[name], gates[name], *lambdas)
            for name, adapter in adapters.items()
        }

    def gates(self, state: Payload, task: int) -> Tensors:
        """Compute g(m) of a task."""
        masks = self.to_tensors(state[f"masks/{task}"])
        return {name: gate(mask, self.settings.gate) for name, mask in masks.items()}

    def to_tensors(self, arrays: Arrays) -> Tensors:
        """Copy arrays to dense tensors on this learner's device."""
        return {n: to_torch(v, self.context.device) for n, v in arrays.items()}


W = TypeVar("W", bound=FedWeitParams)


class FedWeit(DecomposedLearner[W], ClientQueries):
    """A learner that sends the base's top channels, and attends to others' adapters."""

    @override
    def prepare(self) -> None:
        self.settings = self.params

    @override
    def answer_query(self, turn: Turn) -> Payload:
        """Summarise the new task; send nothing if the task has too few documents."""
        points = centres(
            to_numpy(self.model.embed(turn.data.train.x)),
            self.params.clusters,
            self.params.clustering,
            self.params.members,
            self.context.derive("summary", turn.stage.task),
        )
        if not len(points):
            return {}
        if self.params.overlap == "thresholded":
            return {"summary": {"centres": points}}
        return {"summary": {"mean": points.mean(0)}}

    @override
    def begin(self, turn: Turn) -> Learned:
        """Train a task's first round; ``drop_harmful`` leaves out harmful adapters.

        If the adapters of all others validate worse than none, each sender's are tried
        alone. The senders whose adapters validate better than none are then tried
        together.
        """
        received = turn.received

        def tried(clients: Collection[str]) -> Learned:
            offer = {
                group: arrays
                for group, arrays in received.items()
                if not group.startswith(ADAPTERS) or group.split("/")[1] in clients
            }
            return super(FedWeit, self).begin(turn._replace(received=offer))

        others = {g.split("/")[1] for g in received if g.startswith(ADAPTERS)}
        whole = tried(others)
        if not (others and self.params.drop_harmful):
            return whole
        without = tried(())
        if not without.loss < whole.loss:
            return whole
        apart = sorted(others, key=int) if len(others) > 1 else []
        alone = {client: tried([client]) for client in apart}
        helpful = [client for client in apart if alone[client].loss < without.loss]
        choices = [without, *alone.values()]
        if 1 < len(helpful) < len(others):
            choices.append(tried(helpful))
        return min(choices, key=lambda learned: learned.loss)

    @override
    def upload(self, state: Payload, stage: TaskStage) -> Payload:
        # The top-kappa channels of B (literal rule: B * g(m)) travel, A at the end.
        gates, base = self.gates(state, stage.task), {}
        for name, values in self.to_tensors(state["base"]).items():
            channels = to_numpy(top_channels(gates[name], self.params.kappa))
            literal = self.params.aggregation == "literal"
            sent = values * by_channel(gates[name], values) if literal else values
            base[name] = SparseArray.of_channels(to_numpy(sent), channels)
        groups: dict[str, Arrays] = {"base": base}
        if stage.ends_task:
            groups["adapters"] = self.settled(self.adapters(state, stage.task))
        return groups

    @override
    def attention_weights(self, state: Payload) -> dict[str, float]:
        if not (sources := received(state)):
            return {}
        return mean_attention(sources, [state["attention"][n] for n in state["base"]])


def mean_attention(
    sources: Collection[str], alpha: Collection[AnyArray]
) -> dict[str, float]:
    """Average |alpha| over the tensors for each source ``client/task``."""
    weights = np.mean([np.abs(dense(values)) for values in alpha], axis=0)
    named = zip(sources, weights, strict=True)
    return {f"attention/{source}": float(weight) for source, weight in named}


def density(arrays: Arrays) -> float:
    """Compute the share of all entries that are not zero, in [0, 1]."""
    tensors = [dense(values) for values in arrays.values()]
    kept = sum(int(np.count_nonzero(tensor)) for tensor in tensors)
    return kept / sum(tensor.size for tensor in tensors)


def norm(arrays: Arrays) -> float:
    """Compute the Euclidean norm of all tensors as one vector."""
    return math.sqrt(sum(float(np.square(dense(v)).sum()) for v in arrays.values()))


def with_global_base(base: Arrays, sent: Arrays) -> Arrays:
    """Write theta_G over B where it was sent; the rest stays (section 3.4)."""
    return {
        name: theta.overwrite(dense(values))
        if isinstance(theta := sent.get(name, values), SparseArray)
        else theta
        for name, values in base.items()
    }
