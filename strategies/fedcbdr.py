"""FedCBDR: FedAvg, and the statistics by which clients choose the samples they keep.

Qi et al., 2025, https://arxiv.org/abs/2507.07712. There clients send their features,
each sample's turned by a random matrix. The server computes the singular value
decomposition ``U S V^T`` of all of them. A sample's leverage score is the square of its
row of U. The score is ``x^T G^+ x``, where G is the sum of ``x x^T`` over all samples.
So here clients send their matrices of products, and no features at all.
"""

from collections.abc import Mapping

import numpy as np
from pydantic import Field
from typing_extensions import override

from fcl_flower.algorithms.base import ServerQueries, ServerStrategy, Updates
from fcl_flower.algorithms.params import RoomParams, small_memory
from fcl_flower.algorithms.registry import class_incremental
from fcl_flower.core.errors import WireError
from fcl_flower.core.types import Array, Arrays, Payload, TaskStage, Update
from fcl_flower.core.update_checks import finite, same_tensors
from strategies.analytic.sums import symmetric

BASE, GRAMS = "base", "grams"
_SUMS, _COUNTS = "memory/grams", "memory/counts"
SELECTION = "selection"
"""The group by which a client chooses samples: ``gram`` (upper half of G) and
``quotas`` (by class)."""

MOST_EXAMPLES = 2**31
_TOLERANCE = 1e-9


class FedCbdrParams(RoomParams):
    """Hyper-parameters of class-wise balancing data replay.

    By data set, the paper chooses temperatures from 0.8 to 0.9 and 1.1 to 1.2, and
    weights from 1.1 to 1.4 and 0.7 to 0.9. The defaults are our choice, the mildest of
    these.
    """

    memory_samples: int = Field(200, ge=0)
    """The number of samples of all tasks that a client keeps, in the mean over clients;
    0 for none. A client with more samples of a class keeps more of it. The default is
    our choice."""
    memory_per_class: int = Field(0, ge=0)
    """The number of samples of each class that a client keeps, in the mean over
    clients, in the place of memory_samples; 0 for a total."""
    old_weight: float = Field(1.1, ge=0)
    """The weight of the loss of stored samples, at least 0."""
    new_weight: float = Field(0.9, ge=0)
    """The weight of the loss of new samples, at least 0."""

    @override
    def remarks(self, classes: int, clients: int) -> Mapping[str, str]:
        return small_memory(self.room(classes) * clients, classes)


ALGORITHM = class_incremental(
    name="fedcbdr",
    server="strategies.fedcbdr:FedCbdr",
    client="clients.fedcbdr:FedCbdr",
    params_type=FedCbdrParams,
    summary="FedAvg with replay whose samples are balanced and chosen over all clients",
    paper="Qi et al., 2025",
    privacy_units=(),
)


class FedCbdr(ServerStrategy[FedCbdrParams], ServerQueries):
    """A strategy with one global model, which asks for products at a task's end.

    The query comes before a client's last round of a task. It sends the model that the
    client then trains. The reply is ``grams``:
    ``half``, the upper half of the sum of ``x x^T`` over the features of the task's
    samples, float64; and ``counts``, its samples by class. With the round's model a
    client gets the sum over all clients that have replied for the task so far. A client
    whose reply is lost stores nothing of the task.

    State: ``base``; by client ``memory/grams/TASK`` while a task lasts, and
    ``memory/counts/TASK``.
    """

    groups = {}  # a task has to end for all at once
    robust_aggregation = True

    @override
    def init(self, model: Arrays) -> Payload:
        return {BASE: model}

    @override
    def configure_query(
        self, state: Payload, stage: TaskStage, client: int
    ) -> Payload | None:
        return {BASE: state[BASE]} if stage.ends_task else None

    @override
    def check_query_reply(self, state: Payload, answer: Payload) -> None:
        model = self.context.model
        half = np.broadcast_to(0.0, model.features * (model.features + 1) // 2)
        counts = np.broadcast_to(np.int64(0), model.classes)
        same_tensors(answer, {GRAMS: {"half": half, "counts": counts}})
        finite(answer)
        numbers = np.asarray(answer[GRAMS]["counts"])
        if numbers.min() < 0 or numbers.max() > MOST_EXAMPLES:
            raise WireError(
                f"{GRAMS}/counts: expected numbers from 0 to {MOST_EXAMPLES}"
            )
        values = np.linalg.eigvalsh(symmetric(np.asarray(answer[GRAMS]["half"])))
        if not values[0] >= -_TOLERANCE * max(values[-1], 1.0):
            raise WireError(f"{GRAMS}/half: expected sums of products of features")

    @override
    def aggregate_query(
        self, state: Payload, stage: TaskStage, answers: Mapping[int, Payload]
    ) -> Payload:
        # Replies are kept by client, since a repeated round asks again.
        state = dict(state)
        for kind, name in ((_SUMS, "half"), (_COUNTS, "counts")):
            new = {str(client): answers[client][GRAMS][name] for client in answers}
            group = f"{kind}/{stage.task}"
            state[group] = {**state.get(group, {}), **new}
        return state

    @override
    def send(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        grams = state.get(f"{_SUMS}/{stage.task}", {})
        if not stage.ends_task or str(client) not in grams:
            return {BASE: state[BASE]}
        seed = self.context.derive("kept-classes")
        samples, per_class = self.params.memory_samples, self.params.memory_per_class
        quota = quotas(_counts(state), samples, seed, per_class)[client]
        total = np.sum([np.asarray(half) for half in grams.values()], axis=0)
        return {BASE: state[BASE], SELECTION: {"gram": total, "quotas": quota}}

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        same_tensors(update.payload, {BASE: state[BASE]})

    @override
    def combine(self, state: Payload, stage: TaskStage, updates: Updates) -> Payload:
        kept = dict(state)
        if stage.ends_task:
            kept.pop(f"{_SUMS}/{stage.task}", None)
        return {**kept, **self.aggregation.combine_groups(updates, {BASE: state[BASE]})}

    @override
    def on_state_lost(self, state: Payload, client: int) -> Payload:
        # The client has lost its samples, so other clients get the room.
        others = {
            group: {name: t for name, t in arrays.items() if name != str(client)}
            for group, arrays in state.items()
        }
        return {**others, BASE: state[BASE]}


def _counts(state: Payload) -> dict[int, Array]:
    """Sum the numbers of samples of each class that clients have had so far."""
    totals: dict[int, Array] = {}
    for group, arrays in state.items():
        if group.startswith(_COUNTS):
            for client, counts in arrays.items():
                totals[int(client)] = totals.get(int(client), 0) + np.asarray(counts)
    return totals


def quotas(
    counts: Mapping[int, Array], samples: int, seed: int, per_class: int = 0
) -> dict[int, Array]:
    """Divide the room: compute how many samples of each class each client keeps.

    The paper (section 3) draws a class's samples from those of all clients together.
    Here each client draws its own, in proportion to its number of samples, so the
    server knows numbers alone. Two classes differ by at most one in their sums, unless
    one of them has no more samples.

    Args:
        counts: by client, the number of samples of each class that it has had, int64,
            shape (classes,). The quotas have the same form.
        samples: number that a client keeps in the mean, at least 0.
        seed: draws the classes that keep a sample, where there are more classes than
            samples.
        per_class: number that a client keeps of each class in the mean, in the place of
            ``samples``; 0 for a total.
    """
    clients = sorted(counts)
    held = np.array([counts[client] for client in clients], np.int64)
    total, limits = samples * len(clients), held.sum(0)
    if per_class:
        limits = np.minimum(limits, per_class * len(clients))
        total = int(limits.sum())
    order = np.random.default_rng(seed).permutation(len(limits))
    present = order[limits[order] > 0]
    wanted = np.zeros_like(limits)
    if total < len(present):
        wanted[present[:total]] = 1
    else:
        wanted = evenly(total, limits)
    shares = [
        in_proportion(int(number), held[:, label])
        for label, number in enumerate(wanted)
    ]
    return dict(zip(clients, np.stack(shares, axis=1), strict=True))


def evenly(total: int, limits: Array) -> Array:
    """Divide a number as equally as limits allow; less if all limits are reached.

    The remainder goes to the highest limits; of equal ones to the last.
    """
    shares = np.zeros_like(limits)
    order = np.argsort(limits, kind="stable")
    for place, index in enumerate(order):
        share = (total - int(shares.sum())) // (len(limits) - place)
        shares[index] = min(int(limits[index]), share)
    return shares


def in_proportion(total: int, sizes: Array) -> Array:
    """Divide a number nearly in proportion to sizes: by largest remainders.

    The number is at most the sum of the sizes. Of equal remainders the first come
    first.
    """
    # Python's integers are exact: products of claimed numbers may exceed 64 bits.
    everything = sum(map(int, sizes))
    if not everything:
        return np.zeros_like(sizes)
    products = [total * int(size) for size in sizes]
    shares = np.array([product // everything for product in products], np.int64)
    left = np.array([product % everything for product in products], np.int64)
    missing = total - int(shares.sum())
    shares[np.argsort(-left, kind="stable")[:missing]] += 1
    return shares
