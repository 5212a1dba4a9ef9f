"""DOLFIN, server side: changes of low rank that leave old tasks' inputs alone.

Moussadek et al., 2025, https://arxiv.org/abs/2510.13567: InfLoRA (Liang and Li, CVPR
2024, https://arxiv.org/abs/2404.00228) for a federation. Keys and values of all blocks
of a frozen transformer learn ``dW = B A`` in each task. Symbols: A, shape (rank,
inputs), is computed and then frozen; B, shape (outputs, rank), is trained. G is the
Gram matrix ``X^T X / n`` of the n tokens X, shape (n, inputs), that enter a layer.

These parts are InfLoRA's, by its paper's idea and its released code:

- A: the leading principal directions of the task's inputs outside of a subspace M;
- A's scale, and what clients train: B, and the head's rows of the task's classes;
- M (DualGPM): by the end of a task it holds a share of its inputs' energy.

These parts are DOLFIN's, whose text was not at hand beyond its summary and one page
about it: the keys and values, and the average over adapters alone.

These parts are our choice:

- Clients tell the server of the inputs by G and n, before a task and before its last
  round. All measure with one model. So A and M are those of all their tokens in one
  place.
- The energy is the sum of the squared inputs: eigenvalues of G. The released code
  squares the singular values of G, which are these already. So its shares are of fourth
  powers, and its A has the singular vectors of ``P G``, not of ``P X^T``.
- M is kept as a basis of its complement alone. DualGPM keeps the smaller of both.
- The share grows by a step, so that the number of tasks need not be known.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from pydantic import Field
from typing_extensions import override

from fcl_flower.algorithms.base import (
    Metrics,
    Params,
    Report,
    ServerQueries,
    Updates,
)
from fcl_flower.algorithms.finished_tasks import (
    HELD,
    TASK,
    SendsFinishedTasks,
    as_count,
    count_in,
    unsent,
    with_held,
)
from fcl_flower.algorithms.head_rows import BIAS, WEIGHT, check_rows, rows_classes
from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.core.errors import ConfigError, WireError, config_error
from fcl_flower.core.types import (
    Array,
    Arrays,
    Payload,
    TaskStage,
    Update,
)
from fcl_flower.core.update_checks import same_tensors
from strategies.analytic.sums import symmetric
from strategies.lorm import (
    DOWN,
    HEADS,
    KNOWN,
    TOKENS,
    UP,
    adapted_layers,
    check_gram,
)


class DolfinParams(Params):
    """Hyper-parameters of DOLFIN; the rank is the model's."""

    energy: float = Field(0.9, gt=0, lt=1)
    """The share of the first task's inputs, by their squares, that later tasks must
    leave alone, in (0, 1). The default is our choice."""
    energy_step: float = Field(0.0, ge=0, lt=1)
    """The growth of ``energy`` with each later task, in [0, 1); above 1 it stays at
    1."""


ALGORITHM = Algorithm(
    name="dolfin",
    server="strategies.dolfin:Dolfin",
    client="clients.dolfin:Dolfin",
    params_type=DolfinParams,
    summary="a frozen transformer with LoRA that leaves alone what old tasks' inputs "
    "span",
    paper="Moussadek et al., 2025",
    defaults={
        "data.datasets": "stdlib-docs",
        "scenario.name": "class-incremental",
        "model.layers": "keys-values",
        "model.rank": 10,
    },
    models=("lora-transformer", "lora-vit"),
    needs_single_head=True,
)


# ---- the equations


def directions(gram: Array, free: Array, rank: int) -> Array:
    """Compute A, whose rows are orthogonal and of length ``1 / sqrt(3)``.

    They are the leading eigenvectors of ``P G P``, where P projects on the free
    subspace. If fewer than ``rank`` directions are free, the last rows are 0.

    Args:
        gram: G, shape (inputs, inputs).
        free: an orthonormal basis of the complement of M, shape (inputs, directions).
        rank: number of rows of A, at least 1.

    Returns:
        float64, shape (rank, inputs).
    """
    _, vectors = _principal(gram, free)
    matrix = np.zeros((rank, len(gram)))
    rows = (free @ vectors[:, :rank]).T
    matrix[: len(rows)] = rows / np.sqrt(3)
    return matrix


def still_free(gram: Array, free: Array, energy: float) -> Array:
    """Remove the fewest directions of a task from the free subspace (DualGPM).

    They are leading eigenvectors of ``P G P``. The rest has at most ``1 - energy`` of
    the trace of G.

    Args:
        gram: G, shape (inputs, inputs).
        free: an orthonormal basis, shape (inputs, directions).
        energy: in (0, 1].

    Returns:
        an orthonormal basis, float64, of as many columns or fewer.
    """
    values, vectors = _principal(gram, free)
    left = np.append(np.cumsum(values[::-1])[::-1], 0.0)
    taken = int(np.argmax(left <= (1 - energy) * np.trace(gram)))
    return np.asarray(free @ vectors[:, taken:])


def _principal(gram: Array, free: Array) -> tuple[Array, Array]:
    values, vectors = np.linalg.eigh(free.T @ gram @ free)
    return np.maximum(values[::-1], 0.0), vectors[:, ::-1]


# ---- the groups that travel

ADAPTERS: Final = "adapters/now"
"""The group with B of each layer."""
DIRECTIONS: Final = "directions/now"
"""The group with A of each pair of layers; 0 until clients have sent grams."""
GRAMS: Final = "grams"
"""The group with the `upper_half` of each pair's G, float32, and ``tokens``, int64:
n."""
CLASSES: Final = "meta/classes"
"""The group with ``classes``, uint8, (classes,): 1 for the task's classes at a
client."""
SUBSPACE: Final = "subspace"


def unfit() -> ConfigError:
    """Build the error for a model whose layers are no such pairs."""
    return config_error(
        "model.layers",
        "layers with different inputs",
        "keys-values, of which each block has two with the same inputs",
    )


def pair_of(layer: str) -> str:
    """Name the pair of a layer, keys and values of a block, by its first layer."""
    home, _, place = layer.rpartition(".")
    if not place.isdigit():
        raise unfit()
    return f"{home}.{int(place) // 2 * 2}"


def factors_of(payload: Payload, layer: str) -> dict[str, tuple[Array, Array]]:
    """Look up A and B of a layer by task: all finished tasks, and ``now``."""
    tasks = [*map(str, range(count_in(payload[TASK], "finished"))), "now"]
    down, up = pair_of(layer) + DOWN, layer + UP
    return {
        task: (
            np.asarray(payload[f"directions/{task}"][down]),
            np.asarray(payload[f"adapters/{task}"][up]),
        )
        for task in tasks
    }


_MOST_TOKENS = 2**40


class Dolfin(SendsFinishedTasks[DolfinParams], ServerQueries):
    """A strategy that averages B and head rows, and computes A and M of each task.

    It computes A before a task, and M at its end. The server asks for Gram matrices
    with the model that clients then train. It asks until A is there, and before a
    task's last round. A then stays for all of the task.
    A client receives the factors of finished tasks once. It sends B. It also sends the
    head's rows of its own classes and of the task's classes that the server has named.

    State:

    - ``adapters/T`` and ``directions/T`` of each finished task T and of ``now``.
    - ``heads``.
    - ``subspace``: for each pair a basis of the free subspace.
    - ``grams``: of all tokens, before a last round.
    - ``meta/known``, ``meta/held``, and ``meta/task`` (``classes`` and ``finished``),
      as in LoRM.
    """

    @override
    def init(self, model: Arrays) -> Payload:
        layers = adapted_layers(model)
        none = np.zeros(len(np.asarray(model[BIAS])), np.uint8)
        downs = {pair_of(layer) + DOWN: model[layer + DOWN] for layer in layers}
        if 2 * len(downs) != len(layers) or any(
            model[layer + DOWN].shape != downs[pair_of(layer) + DOWN].shape
            for layer in layers
        ):
            raise unfit()
        ups = {layer + UP: model[layer + UP] for layer in layers}
        return {
            **_new_task(ups, downs, 0, none),
            HEADS: {name: model[name] for name in (WEIGHT, BIAS)},
            KNOWN: {"classes": none},
            HELD: {},
            SUBSPACE: {
                name.removesuffix(DOWN): np.eye(down.shape[1])
                for name, down in downs.items()
            },
        }

    @override
    def configure_query(
        self, state: Payload, stage: TaskStage, client: int
    ) -> Payload | None:
        if _has_directions(state) and not stage.ends_task:
            return None
        return _model(state, client)

    @override
    def check_query_reply(self, state: Payload, answer: Payload) -> None:
        widths = {pair: basis.shape[0] for pair, basis in state[SUBSPACE].items()}
        halves = {
            pair: np.broadcast_to(np.float32(0), width * (width + 1) // 2)
            for pair, width in widths.items()
        }
        expected = {GRAMS: {**halves, TOKENS: as_count(0)}, CLASSES: state[KNOWN]}
        same_tensors(answer, expected)
        tokens = count_in(answer[GRAMS], TOKENS)
        if not 0 <= tokens <= _MOST_TOKENS:
            raise WireError(
                f"{GRAMS}/{TOKENS}: expected 0 to {_MOST_TOKENS}, got {tokens}"
            )
        for pair in halves:
            check_gram(f"{GRAMS}/{pair}", np.asarray(answer[GRAMS][pair]))

    @override
    def aggregate_query(
        self, state: Payload, stage: TaskStage, answers: Mapping[int, Payload]
    ) -> Payload:
        reported = [
            np.asarray(answer[CLASSES]["classes"]) for answer in answers.values()
        ]
        new = {**state, TASK: _with_classes(state[TASK], np.any(reported, axis=0))}
        grams = _joined([answer[GRAMS] for answer in answers.values()])
        if not grams:
            return new
        if not _has_directions(state):
            new[DIRECTIONS] = {
                pair + DOWN: directions(
                    gram, np.asarray(state[SUBSPACE][pair]), _rank(state, pair)
                ).astype(np.float32)
                for pair, gram in grams.items()
            }
        return {**new, GRAMS: grams} if stage.ends_task else new

    @override
    def send(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        return {**_model(state, client), HEADS: state[HEADS], KNOWN: state[KNOWN]}

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        payload = update.payload
        if payload.keys() != {ADAPTERS, HEADS}:
            raise WireError(f"groups {sorted(payload)}: expected {ADAPTERS}, {HEADS}")
        same_tensors({ADAPTERS: payload[ADAPTERS]}, {ADAPTERS: state[ADAPTERS]})
        check_rows(HEADS, payload[HEADS], state[HEADS])

    @override
    def combine(self, state: Payload, stage: TaskStage, updates: Updates) -> Payload:
        before = {group: state[group] for group in (ADAPTERS, HEADS)}
        learned = np.zeros_like(np.asarray(state[KNOWN]["classes"]))
        for update in updates.values():
            learned[rows_classes(update.payload[HEADS])] = 1
        new: dict[str, Arrays] = {
            **with_held(state, updates),
            **self.aggregation.combine_groups(updates, before),
            KNOWN: {"classes": np.asarray(state[KNOWN]["classes"]) | learned},
            TASK: _with_classes(state[TASK], learned),
        }
        return _ended(new, self.params) if stage.ends_task else new

    @override
    def report(self, state: Payload, stage: TaskStage, metrics: Metrics) -> Report:
        """Report the share of its directions that is taken, for each pair of layers."""
        return {
            f"subspace/{pair}": 1 - basis.shape[1] / basis.shape[0]
            for pair, basis in state[SUBSPACE].items()
        }


def _new_task(ups: Arrays, downs: Arrays, task: int, none: Array) -> Payload:
    return {
        ADAPTERS: {name: np.zeros(up.shape, np.float32) for name, up in ups.items()},
        DIRECTIONS: {name: np.zeros(a.shape, np.float32) for name, a in downs.items()},
        TASK: {"classes": none, "finished": as_count(task)},
    }


def _ended(state: Payload, params: DolfinParams) -> Payload:
    """Remove the task's inputs from the free subspace, and begin another task.

    Without a reply before the task's last round nothing is removed.
    """
    task, free = count_in(state[TASK], "finished"), state[SUBSPACE]
    energy = min(params.energy + task * params.energy_step, 1.0)
    less = {
        pair: still_free(np.asarray(gram), np.asarray(free[pair]), energy)
        for pair, gram in state.get(GRAMS, {}).items()
    }
    ups, downs = state[ADAPTERS], state[DIRECTIONS]
    kept = {group: arrays for group, arrays in state.items() if group != GRAMS}
    return {
        **kept,
        f"adapters/{task}": ups,
        f"directions/{task}": downs,
        SUBSPACE: {**free, **less},
        **_new_task(ups, downs, task + 1, np.zeros_like(state[TASK]["classes"])),
    }


def _model(state: Payload, client: int) -> Payload:
    old = [
        f"{k}/{t}" for k in ("adapters", "directions") for t in unsent(state, client)
    ]
    return {group: state[group] for group in (ADAPTERS, DIRECTIONS, TASK, *old)}


def _has_directions(state: Payload) -> bool:
    return any(np.asarray(down).any() for down in state[DIRECTIONS].values())


def _rank(state: Payload, pair: str) -> int:
    return int(state[DIRECTIONS][pair + DOWN].shape[0])


def _with_classes(task: Arrays, more: Array) -> Arrays:
    return {**task, "classes": np.asarray(task["classes"]) | (more > 0)}


def _joined(sent: Sequence[Arrays]) -> dict[str, Array]:
    """Compute G of all tokens by pair, (inputs, inputs); empty without tokens."""
    tokens = [count_in(grams, TOKENS) for grams in sent]
    if not sum(tokens):
        return {}
    return {
        pair: np.asarray(
            sum(
                n / sum(tokens) * symmetric(np.asarray(grams[pair], np.float64))
                for n, grams in zip(tokens, sent, strict=True)
            )
        )
        for pair in sent[0]
        if pair != TOKENS
    }
