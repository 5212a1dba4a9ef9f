"""LoRM, server side: clients' weights are merged so that outputs stay as they are.

Salami et al., ICLR 2025, https://arxiv.org/abs/2410.17961, section 3, and RegMean (Jin
et al., ICLR 2023, equation 2). The merged ``W`` minimises ``sum_k | W X_k - W_k X_k
|^2``. The columns of X_k, shape (inputs, tokens), are the inputs of the layer. The
solution needs only ``Gamma_k = X_k X_k^T``: a matrix, or a vector, its diagonal, where
all else counts as 0. All is computed in float64.

Some directions have hardly any inputs (three of MiniLM's features are such). There the
equations as printed would leave weights to rounding errors, and make them huge. Many W
are equally good as far as float32 can tell; here W is the one nearest to the mean.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import numpy as np
from typing_extensions import override

from fcl_flower.algorithms.base import Params, Updates
from fcl_flower.algorithms.finished_tasks import (
    HELD,
    TASK,
    SendsFinishedTasks,
    as_count,
    count_in,
    unsent,
    with_held,
)
from fcl_flower.algorithms.head_rows import BIAS, WEIGHT
from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.core.errors import WireError, config_error
from fcl_flower.core.types import Array, Arrays, Payload, TaskStage, Update
from fcl_flower.core.update_checks import head_places, same_tensors
from strategies.analytic.sums import symmetric


class LormParams(Params):
    """Hyper-parameters of LoRM; the rank is the model's."""

    contrast: Literal["task", "own"] = "task"
    """The classes of a client's loss: all of the ``task`` that some client has reported
    in an earlier round, or the client's ``own``."""


ALGORITHM = Algorithm(
    name="lorm",
    server="strategies.lorm:Lorm",
    client="clients.lorm:Lorm",
    params_type=LormParams,
    summary="a frozen transformer whose LoRA factors are merged in closed form",
    paper="Salami et al., ICLR 2025",
    defaults={"data.datasets": "stdlib-docs", "scenario.name": "class-incremental"},
    models=("lora-transformer", "lora-vit", "causal-lm"),
    needs_single_head=True,
    token_labels=True,
)


# ---- the equations


def regmean(weights: Sequence[Array], grams: Sequence[Array]) -> Array:
    """Merge linear layers: ``(sum_k W_k Gamma_k) (sum_k Gamma_k)^+``.

    With M the mean of all W_k, each of shape (outputs, inputs), it is computed as ``M +
    (sum_k (W_k - M) Gamma_k) (sum_k Gamma_k)^+``. Both are the same wherever the
    inverse exists. Without inputs the result is M.

    It merges the rows of a head, and the factors A where all clients have the same B.
    For ``B A X`` is nearest to all ``B A_k X_k`` if ``A X`` is nearest to all ``A_k
    X_k``.
    """
    own, seen = _doubled(weights), _doubled(grams)
    mean = np.mean(own, 0)
    away = [_times(w - mean, gram) for w, gram in zip(own, seen, strict=True)]
    return np.asarray(mean + _times(np.sum(away, 0), _inverse_of_sum(seen)))


def merged_up(ups: Sequence[Array], down: Array, grams: Sequence[Array]) -> Array:
    """Merge factors B: ``(sum_k B_k A Gamma_k) A^T (A (sum_k Gamma_k) A^T)^+``.

    B_k has shape (outputs, rank), A, the same for all, (rank, inputs).
    """
    (shared,) = _doubled([down])
    return regmean(ups, [_times(shared, g) @ shared.T for g in _doubled(grams)])


def merged_change(
    downs: Sequence[Array], ups: Sequence[Array], grams: Sequence[Array]
) -> tuple[Array, Array]:
    """Merge the changes of some tasks: ``(sum_t dW_t Gamma_t) (sum_t Gamma_t)^+``.

    The result is ``sum_t B_t (A_t Gamma_t (sum_t Gamma_t)^+)``, so its rank is at most
    the sum of theirs. The returned factors A and B are the parentheses, and B_t, side
    by side. So no matrix of the layer's own size is ever computed.
    """
    seen = _doubled(grams)
    inverse = _inverse_of_sum(seen)
    pairs = zip(_doubled(downs), seen, strict=True)
    merged = [_times(_times(down, gram), inverse) for down, gram in pairs]
    return np.concatenate(merged), np.concatenate(_doubled(ups), axis=1)


def _doubled(tensors: Sequence[Array]) -> list[Array]:
    return [np.asarray(tensor, np.float64) for tensor in tensors]


def _times(left: Array, gram: Array) -> Array:
    return np.asarray(left * gram if gram.ndim == 1 else left @ gram)


def _inverse_of_sum(grams: Sequence[Array]) -> Array:
    gram = np.sum(grams, 0)
    if gram.ndim == 1:
        return np.asarray(1 / np.where(gram > 0, gram, np.inf))
    least = len(gram) * float(np.finfo(np.float32).eps)
    return np.asarray(np.linalg.pinv(gram, rcond=least, hermitian=True))


# ---- the groups that travel

UP: Final = ".up"
DOWN: Final = ".down"
ADAPTERS: Final = "adapters/now"
GRAMS: Final = "grams/now"
HEADS: Final = "heads"
KNOWN: Final = "meta/known"
"""The group with ``classes``, uint8, (classes,): 1 for classes that a client has
learned."""
TOKENS: Final = "tokens"
HEAD: Final = "head"


def adapted_layers(names: Iterable[str]) -> tuple[str, ...]:
    """List the layers of a model that have a change of low rank."""
    shared = tuple(names)
    layers = tuple(name.removesuffix(DOWN) for name in shared if name.endswith(DOWN))
    head = {WEIGHT, BIAS}
    wanted = {layer + factor for layer in layers for factor in (UP, DOWN)}
    if not head.isdisjoint(shared):  # a language model has a frozen head
        wanted |= head
    odd = sorted({*shared} ^ wanted)
    if odd or not layers:
        raise config_error(
            "model.name",
            f"one that shares {odd[0]}" if odd else "one without LoRA",
            "lora-transformer, lora-vit or causal-lm, of which LoRA is shared",
        )
    return layers


def trained_factor(payload: Payload) -> str:
    """Name the factor of this round: B and A take turns in a task, B first.

    The number of the task's rounds that the server has aggregated decides. So a
    repeated round, or one without this client, changes nothing.
    """
    return DOWN if count_in(payload[TASK], "rounds") % 2 else UP


def merged_layer(payload: Payload, layer: str) -> tuple[Array, Array]:
    """Merge a layer's factors A and B to its change by all tasks so far.

    The current task counts once a round of it is aggregated.
    """
    tasks = [*map(str, range(count_in(payload[TASK], "finished"))), "now"]
    factors = [payload[f"adapters/{task}"] for task in tasks]
    return merged_change(
        [np.asarray(task_factors[layer + DOWN]) for task_factors in factors],
        [np.asarray(task_factors[layer + UP]) for task_factors in factors],
        [_diagonal(payload[f"grams/{task}"], layer) for task in tasks],
    )


def _diagonal(grams: Arrays, layer: str) -> Array:
    values = np.asarray(grams[layer]).astype(np.float64)
    return np.asarray(count_in(grams, TOKENS) * values)


_MOST_TOKENS = 2**16  # of a sample: far beyond what any encoder reads
_ROUNDING = 2.0**-9  # of an entry to bfloat16, the coarsest that is sent


class Lorm(SendsFinishedTasks[LormParams]):
    """A strategy that merges a low-rank change for each task, and one head.

    The head of a language model is frozen. It is not merged, and nothing of it travels.

    A client receives the changes of finished tasks once. It sends these groups:

    - ``adapters``: of each layer the factor of this round.
    - ``grams``: of each layer the mean diagonal of Gamma, ``tokens``, and ``head``, the
      `upper_half` of the mean Gram matrix of the features.
    - ``heads``: ``classes``, int64, ascending, and their rows.

    State:

    - ``adapters/T`` and ``grams/T`` of each finished task T and of ``now``.
    - ``heads``, ``meta/known`` and ``meta/held``.
    - ``meta/task``: ``rounds``, int64, of the current task so far; ``classes``, uint8,
      (classes,), 1 for those learned in it; ``finished``.
    """

    @override
    def init(self, model: Arrays) -> Payload:
        layers = adapted_layers(model)
        factors = {
            layer + kind: model[layer + kind] for layer in layers for kind in (UP, DOWN)
        }
        heads = {name: model[name] for name in (WEIGHT, BIAS) if name in model}
        none = np.zeros(len(np.asarray(heads.get(BIAS, ()))), np.uint8)
        return {
            **self._new_task(factors, 0, none),
            HEADS: heads,
            KNOWN: {"classes": none},
            HELD: {},
        }

    @override
    def send(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        missing = unsent(state, client)
        old = [f"{kind}/{n}" for kind in ("adapters", "grams") for n in missing]
        of_head = (HEADS, KNOWN) if state[HEADS] else ()
        sent = (ADAPTERS, GRAMS, *of_head, TASK, *old)
        return {group: state[group] for group in sent}

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        payload, factor = update.payload, trained_factor(state)
        groups = ["adapters", "grams", *(["heads"] if state[HEADS] else [])]
        if sorted(payload) != groups:
            raise WireError(f"groups {sorted(payload)}: expected {', '.join(groups)}")
        expected: dict[str, Arrays] = {
            "adapters": {
                n: a for n, a in state[ADAPTERS].items() if n.endswith(factor)
            },
            "grams": state[GRAMS],
        }
        if state[HEADS]:
            count, features = np.asarray(state[HEADS][WEIGHT]).shape
            half = np.zeros(features * (features + 1) // 2, np.float32)
            classes = head_places("heads", payload["heads"], count)
            expected["grams"] = {**state[GRAMS], HEAD: half}
            expected["heads"] = {
                "classes": classes,
                WEIGHT: np.zeros((len(classes), features), np.float32),
                BIAS: np.zeros(len(classes), np.float32),
            }
        same_tensors(payload, expected)
        for name, gram in payload["grams"].items():
            if name == HEAD:
                check_gram(f"grams/{HEAD}", np.asarray(gram))
            elif name == TOKENS:
                tokens, examples = int(np.asarray(gram)), update.num_examples
                if not 0 <= tokens <= _MOST_TOKENS * examples:
                    raise WireError(
                        f"grams/{name}: expected 0 to {_MOST_TOKENS} an example, got "
                        f"{tokens} of {examples}"
                    )
            elif not (np.asarray(gram) >= 0).all():
                raise WireError(f"grams/{name}: expected squares, which are at least 0")

    @override
    def combine(self, state: Payload, stage: TaskStage, updates: Updates) -> Payload:
        received = list(updates.values())
        task = state[TASK]
        heads, learned = _merged_heads(state[HEADS], received)
        finished = count_in(task, "finished")
        adapters, grams = _merged_factors(state, received), _joined_grams(received)
        new: dict[str, Arrays] = {
            **with_held(state, updates),
            ADAPTERS: adapters,
            GRAMS: grams,
            HEADS: heads,
            KNOWN: {"classes": np.asarray(state[KNOWN]["classes"]) | learned},
            TASK: {
                "rounds": as_count(count_in(task, "rounds") + 1),
                "classes": np.asarray(task["classes"]) | learned,
                "finished": as_count(finished),
            },
        }
        if not stage.ends_task:
            return new
        ended = {f"adapters/{finished}": adapters, f"grams/{finished}": grams}
        begun = self._new_task(adapters, finished + 1, np.zeros_like(learned))
        return {**new, **ended, **begun}

    def _new_task(self, factors: Arrays, number: int, none: Array) -> Payload:
        """Begin a task: A is random, the same for all clients, and B is 0."""
        rng = np.random.default_rng(self.context.derive("lorm", number))
        adapters, grams = dict[str, Array](), dict[str, Array]()
        for name in sorted(factors):
            shape, width = factors[name].shape, 0.0
            if name.endswith(DOWN):
                width = shape[1] ** -0.5
                grams[name.removesuffix(DOWN)] = np.zeros(shape[1], np.float32)
            adapters[name] = rng.uniform(-width, width, shape).astype(np.float32)
        counts = {"rounds": as_count(0), "classes": none, "finished": as_count(number)}
        return {ADAPTERS: adapters, GRAMS: {**grams, TOKENS: as_count(0)}, TASK: counts}


def check_gram(name: str, half: Array) -> None:
    """Refuse an `upper_half` that is of no Gram matrix.

    Rounding moves an eigenvalue by at most its share of the trace.
    """
    gram = symmetric(half.astype(np.float64))
    if not np.isfinite(gram).all() or not (np.diag(gram) >= 0).all():
        raise WireError(f"{name}: expected squares on the diagonal, at least 0")
    if not np.linalg.eigvalsh(gram)[0] >= -_ROUNDING * np.trace(gram):
        raise WireError(f"{name}: expected a positive semidefinite matrix")


def _merged_factors(state: Payload, updates: Sequence[Update]) -> Arrays:
    factor, adapters = trained_factor(state), state[ADAPTERS]
    new = dict(adapters)
    for name in adapters:
        if not name.endswith(factor):
            continue
        layer = name.removesuffix(factor)
        sent = [np.asarray(update.payload["adapters"][name]) for update in updates]
        grams = [_diagonal(update.payload["grams"], layer) for update in updates]
        if factor == UP:
            merged = merged_up(sent, np.asarray(adapters[layer + DOWN]), grams)
        else:
            merged = regmean(sent, grams)
        new[name] = merged.astype(np.float32)
    return new


def _joined_grams(updates: Sequence[Update]) -> Arrays:
    sent = [update.payload["grams"] for update in updates]
    tokens = sum(count_in(grams, TOKENS) for grams in sent)
    joined: dict[str, Array] = {TOKENS: as_count(tokens)}
    for layer in sent[0]:
        if layer not in (TOKENS, HEAD):
            total = np.sum([_diagonal(grams, layer) for grams in sent], axis=0)
            joined[layer] = (total / max(tokens, 1)).astype(np.float32)
    return joined


def _merged_heads(heads: Arrays, updates: Sequence[Update]) -> tuple[Arrays, Array]:
    """Merge the head; also mark the classes that have been learned, uint8.

    A row is merged over the clients that learned it, its bias by number of examples.
    """
    if not heads:
        return heads, np.zeros(0, np.uint8)
    weight, bias = (np.asarray(heads[name]).copy() for name in (WEIGHT, BIAS))
    has = np.zeros((len(updates), len(bias)), bool)
    for number, update in enumerate(updates):
        has[number, np.asarray(update.payload["heads"]["classes"])] = True
    grams = [
        update.num_examples
        * symmetric(np.asarray(update.payload["grams"][HEAD]).astype(np.float64))
        for update in updates
    ]
    learned = np.flatnonzero(has.any(0))
    for pattern in np.unique(has[:, learned], axis=1).T:
        classes = np.flatnonzero((has == pattern[:, None]).all(0))
        clients = np.flatnonzero(pattern).tolist()
        rows = [_rows(updates[k], WEIGHT, classes) for k in clients]
        biases = [_rows(updates[k], BIAS, classes) for k in clients]
        counts = np.array([updates[k].num_examples for k in clients], np.float64)
        shares = counts if counts.any() else np.ones(len(counts))
        weight[classes] = regmean(rows, [grams[k] for k in clients])
        bias[classes] = np.average(biases, axis=0, weights=shares)
    return {WEIGHT: weight, BIAS: bias}, np.asarray(has.any(0), np.uint8)


def _rows(update: Update, name: str, classes: Array) -> Array:
    heads = update.payload["heads"]
    places = np.searchsorted(np.asarray(heads["classes"]), classes)
    return np.asarray(np.asarray(heads[name])[places])
