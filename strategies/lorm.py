"""LoRM, server side: what clients learned is merged so that it answers as they do.

Salami et al., ICLR 2025, https://arxiv.org/abs/2410.17961.

Weights whose answers come nearest to those of several others, in closed form.

RegMean (Jin et al., ICLR 2023, equation 2), and LoRM's for the factors of ``dW = B A``
(Salami et al., ICLR 2025, section 3): of all ``W``, the merged one minimises

    sum_k | W X_k - W_k X_k |^2

where the columns of X_k, shape (inputs, tokens), are what has entered the layer. Of
them it takes ``Gamma_k = X_k X_k^T``: a matrix, shape (inputs, inputs), or a vector,
its diagonal, where all else counts as 0. All is computed in float64.

Some directions hardly any input has: there the equations as printed would leave weights
to rounding errors, and make them huge (three of MiniLM's features are such). Of all W
that are equally near, as far as float32 can tell, it is the one nearest to the mean.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
from typing_extensions import override

from fcl_flower.algorithms.base import Params, ServerStrategy
from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.core.errors import WireError, config_error
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import (
    AnyArray,
    Array,
    Arrays,
    Payload,
    TaskStage,
    Update,
    specs,
)
from fcl_flower.core.update_checks import fits


class LormParams(Params):
    """Hyper-parameters of LoRM; the rank is the model's."""

    contrast: Literal["task", "own"] = "task"
    """Among which classes a client's loss is: all of the ``task`` that some client has
    told of in an earlier round, or its ``own``."""


ALGORITHM = Algorithm(
    name="lorm",
    server="strategies.lorm:Lorm",
    client="clients.lorm:Lorm",
    params_type=LormParams,
    summary="a frozen transformer whose LoRA factors are merged in closed form",
    paper="Salami et al., ICLR 2025",
    defaults={"data.datasets": "stdlib-docs", "scenario.name": "class-incremental"},
    models=("lora-transformer", "lora-vit"),
    needs_single_head=True,
)


class LowRank(NamedTuple):
    """A change of a layer's weights, ``dW = up down``.

    Attributes:
        down: A, shape (rank, inputs).
        up: B, shape (outputs, rank).
    """

    down: Array
    up: Array


def regmean(weights: Sequence[Array], grams: Sequence[Array]) -> Array:
    """Merge linear layers: ``(sum_k W_k Gamma_k) (sum_k Gamma_k)^+``.

    With M the mean of all W_k it is computed as
    ``M + (sum_k (W_k - M) Gamma_k) (sum_k Gamma_k)^+``, which is the same wherever the
    inverse exists, and M where there are no inputs.

    So are merged rows of a head, and the factors A where all clients have the same B:
    ``B A X`` is nearest to all ``B A_k X_k`` if ``A X`` is to all ``A_k X_k``.

    Args:
        weights: W_k, each of shape (outputs, inputs).
        grams: Gamma_k, all matrices or all diagonals.

    Returns:
        float64, shape (outputs, inputs).
    """
    mean = np.mean([np.asarray(weight, np.float64) for weight in weights], 0)
    away = np.sum(
        [
            _times(np.asarray(weight, np.float64) - mean, np.asarray(gram, np.float64))
            for weight, gram in zip(weights, grams, strict=True)
        ],
        0,
    )
    return np.asarray(mean + _times(away, _inverse(_sum(grams))))


def merged_up(ups: Sequence[Array], down: Array, grams: Sequence[Array]) -> Array:
    """Merge factors B: ``(sum_k B_k A Gamma_k) A^T (A (sum_k Gamma_k) A^T)^+``.

    B_k has shape (outputs, rank), A, the same for all, (rank, inputs); Gamma_k are all
    matrices or all diagonals.
    """
    shared = np.asarray(down, np.float64)
    seen = [_times(shared, np.asarray(gram, np.float64)) @ shared.T for gram in grams]
    return regmean(ups, seen)


def merged_change(changes: Sequence[LowRank], grams: Sequence[Array]) -> LowRank:
    """Merge the changes of some tasks: ``(sum_t dW_t Gamma_t) (sum_t Gamma_t)^+``.

    Its rank is at most the sum of theirs, since it is
    ``sum_t B_t (A_t Gamma_t (sum_t Gamma_t)^+)``: the factors are B_t and what is in
    parentheses, side by side. So no matrix of the layer's own size is ever made.
    """
    inverse = _inverse(_sum(grams))
    downs = [
        _times(_times(np.asarray(change.down, np.float64), gram), inverse)
        for change, gram in zip(changes, grams, strict=True)
    ]
    ups = [np.asarray(change.up, np.float64) for change in changes]
    return LowRank(np.concatenate(downs), np.concatenate(ups, axis=1))


def damped(gram: Array, alpha: float) -> Array:
    """Multiply all that is off a matrix's diagonal by ``alpha``.

    With alpha below 1 it is regular if no input is always 0.
    """
    return np.asarray(alpha * gram + (1 - alpha) * np.diag(np.diag(gram)))


def upper_half(gram: Array) -> Array:
    """Pack a symmetric matrix to its n (n + 1) / 2 numbers, row by row."""
    return np.asarray(gram[np.triu_indices(len(gram))])


def symmetric(numbers: Array) -> Array:
    """Unpack `upper_half` to the matrix."""
    size = (int(np.sqrt(8 * len(numbers) + 1)) - 1) // 2
    upper = np.zeros((size, size), numbers.dtype)
    upper[np.triu_indices(size)] = numbers
    return np.asarray(upper + np.triu(upper, 1).T)


def _sum(grams: Sequence[Array]) -> Array:
    return np.asarray(np.sum([np.asarray(gram, np.float64) for gram in grams], 0))


def _times(left: Array, gram: Array) -> Array:
    return np.asarray(left * gram if gram.ndim == 1 else left @ gram)


def _inverse(gram: Array) -> Array:
    if gram.ndim == 1:
        return np.asarray(np.where(gram > 0, 1 / np.where(gram > 0, gram, 1.0), 0.0))
    least = len(gram) * float(np.finfo(np.float32).eps)
    return np.asarray(np.linalg.pinv(gram, rcond=least, hermitian=True))


UP: Final = ".up"
DOWN: Final = ".down"
WEIGHT: Final = "heads.0.weight"
BIAS: Final = "heads.0.bias"
ADAPTERS: Final = "adapters/now"
GRAMS: Final = "grams/now"
HEADS: Final = "heads"
KNOWN: Final = "meta/known"
"""``classes``, uint8, (classes,): which ones have been learned by anybody."""
TASK: Final = "meta/task"
"""``rounds``, int64: of the current task, so far; ``classes``, uint8, (classes,): which
ones have been learned in it; ``finished``, int64: tasks before it."""
TOKENS: Final = "tokens"
HEAD: Final = "head"


def adapted_layers(names: Iterable[str]) -> tuple[str, ...]:
    """List the layers of a model that have a change of low rank."""
    given = tuple(names)
    layers = tuple(name.removesuffix(DOWN) for name in given if name.endswith(DOWN))
    wanted = {layer + factor for layer in layers for factor in (UP, DOWN)}
    odd = sorted({*given} ^ {*wanted, WEIGHT, BIAS})
    if odd or not layers:
        raise config_error(
            "model.name",
            f"one that shares {odd[0]}" if odd else "one without LoRA",
            "lora-transformer or lora-vit, of which LoRM shares LoRA and head",
        )
    return layers


def trained_factor(payload: Payload) -> str:
    """Name the factor of this round: B and A take turns in a task, B first.

    The rounds of the task that the server has aggregated decide, so that a round that
    is repeated, or one without this client, changes nothing.
    """
    return DOWN if int(np.asarray(payload[TASK]["rounds"])) % 2 else UP


def diagonals(grams: Arrays, layer: str) -> Array:
    """Read the diagonal of Gamma for a layer, float64, shape (inputs,)."""
    tokens = int(np.asarray(grams[TOKENS]))
    return np.asarray(tokens * np.asarray(grams[layer]).astype(np.float64))


def merged_layer(payload: Payload, layer: str) -> LowRank:
    """Merge a layer's change as the tasks so far have it together.

    The current task counts once a round of it is aggregated.
    """
    finished = int(np.asarray(payload[TASK]["finished"]))
    tasks = [*map(str, range(finished)), "now"]
    changes = [
        LowRank(
            np.asarray(payload[f"adapters/{task}"][layer + DOWN]),
            np.asarray(payload[f"adapters/{task}"][layer + UP]),
        )
        for task in tasks
    ]
    grams = [diagonals(payload[f"grams/{task}"], layer) for task in tasks]
    return merged_change(changes, grams)


GROUPS = ("adapters", "grams", "heads")
_MOST_TOKENS = 2**16  # of a sample: far beyond what any encoder reads
_ROUNDING = 1e-4  # of float32 sums, as a share of the largest eigenvalue


def check_update(state: Payload, update: Update) -> None:
    """Refuse an update that does not fit the server's state.

    Args:
        state: the server's.
        update: ``adapters`` (of each layer the factor of this round), ``grams`` (as in
            `strategies.lorm`, and ``head``, the `upper_half` of the mean Gram
            matrix of the features) and ``heads`` (``classes``, int64, ascending, and
            their rows).
    """
    payload = update.payload
    if payload.keys() != {*GROUPS}:
        raise WireError(f"groups {sorted(payload)}: expected {', '.join(GROUPS)}")
    factor = trained_factor(state)
    turn = {name: t for name, t in state[ADAPTERS].items() if name.endswith(factor)}
    _same("adapters", payload["adapters"], turn)
    _check_grams(state, payload["grams"], update.num_examples)
    _check_heads(state[HEADS], payload["heads"])


def _check_grams(state: Payload, grams: Arrays, examples: int) -> None:
    features = np.asarray(state[HEADS][WEIGHT]).shape[1]
    half = np.zeros(features * (features + 1) // 2, np.float32)
    _same("grams", grams, {**state[GRAMS], HEAD: half})
    for name, found in grams.items():
        values = np.asarray(found)
        if name == HEAD:
            _check_gram(values)
        elif name == TOKENS:
            if not 0 <= int(values) <= _MOST_TOKENS * examples:
                raise WireError(
                    f"grams/{name}: expected 0 to {_MOST_TOKENS} an example, got "
                    f"{int(values)} of {examples}"
                )
        elif not (values >= 0).all():
            raise WireError(f"grams/{name}: expected squares, which are at least 0")


def _check_gram(half: Array) -> None:
    gram = symmetric(half.astype(np.float64))
    if not np.isfinite(gram).all() or not (np.diag(gram) >= 0).all():
        raise WireError(f"grams/{HEAD}: expected squares on the diagonal, at least 0")
    values = np.linalg.eigvalsh(gram)
    if not values[0] >= -_ROUNDING * max(values[-1], 0.0):
        raise WireError(f"grams/{HEAD}: expected a positive semidefinite matrix")


def _check_heads(heads: Arrays, sent: Arrays) -> None:
    count, features = np.asarray(heads[WEIGHT]).shape
    spec = specs(sent).get("classes")
    if spec is None or spec.sparse or spec.dtype != np.int64:
        raise WireError("heads/classes: expected a dense tensor of int64")
    if len(spec.shape) != 1 or not 0 < spec.shape[0] <= count:
        raise WireError(f"heads/classes: expected 1 to {count} integers")
    found = np.asarray(sent["classes"])
    if found.min() < 0 or found.max() >= count or (np.diff(found) <= 0).any():
        raise WireError("heads/classes: expected ascending places of the head")
    rows = {
        "classes": found,
        WEIGHT: np.zeros((found.size, features), np.float32),
        BIAS: np.zeros(found.size, np.float32),
    }
    _same("heads", sent, rows)


def _same(group: str, sent: Arrays, expected: Arrays) -> None:
    if sent.keys() != expected.keys():
        odd = sorted(sent.keys() ^ expected.keys())
        raise WireError(f"{group}: tensors {odd} are missing or unknown")
    wanted: dict[str, AnyArray] = dict(expected)
    fits(group, sent, wanted, sparse=False)


HELD = "meta/held"


class Lorm(ServerStrategy[LormParams]):
    """Keep a change of low rank for each task, and one head; merge, never train.

    A client receives those of finished tasks once.

    State: the groups of `strategies.lorm`, and ``meta/held`` (by client, how
    many finished tasks it had been sent when it last took part).
    """

    groups = {}

    @override
    def init(self, model: Arrays) -> Payload:
        layers = adapted_layers(model)
        classes = len(np.asarray(model[BIAS]))
        shapes = {n: t.shape for n, t in model.items() if n not in (WEIGHT, BIAS)}
        none = np.zeros(classes, np.uint8)
        inputs = {layer: shapes[layer + DOWN][1] for layer in layers}
        return {
            ADAPTERS: self._fresh(shapes, 0),
            GRAMS: _no_grams(inputs),
            HEADS: {name: model[name] for name in (WEIGHT, BIAS)},
            KNOWN: {"classes": none},
            TASK: {"rounds": _number(0), "classes": none, "finished": _number(0)},
            HELD: {},
        }

    @override
    def configure_train(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        finished = int(np.asarray(state[TASK]["finished"]))
        held = state[HELD].get(str(client))
        missing = range(0 if held is None else int(np.asarray(held)), finished)
        old = [f"{kind}/{n}" for kind in ("adapters", "grams") for n in missing]
        sent = (ADAPTERS, GRAMS, HEADS, KNOWN, TASK, *old)
        return {group: state[group] for group in sent}

    @override
    def on_state_lost(self, state: Payload, client: int) -> Payload:
        held = {c: n for c, n in state[HELD].items() if c != str(client)}
        return {**state, HELD: held}

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        check_update(state, update)

    @override
    def aggregate_train(
        self, state: Payload, stage: TaskStage, updates: Mapping[int, Update]
    ) -> Payload:
        received = list(updates.values())
        task = state[TASK]
        heads, learned = _merged_heads(state[HEADS], received)
        known = np.asarray(state[KNOWN]["classes"]) | learned
        finished = np.asarray(task["finished"])
        new: dict[str, Arrays] = {
            **state,
            ADAPTERS: _merged_factors(state, received),
            GRAMS: _joined_grams(received),
            HEADS: heads,
            KNOWN: {"classes": known},
            TASK: {
                "rounds": _number(int(np.asarray(task["rounds"])) + 1),
                "classes": np.asarray(task["classes"]) | learned,
                "finished": finished,
            },
            HELD: {**state[HELD], **{str(client): finished for client in updates}},
        }
        return self._with_next_task(new) if stage.ends_task else new

    def _with_next_task(self, state: Payload) -> Payload:
        number = int(np.asarray(state[TASK]["finished"]))
        adapters, grams = state[ADAPTERS], state[GRAMS]
        shapes = {name: tensor.shape for name, tensor in adapters.items()}
        inputs = {name: len(np.asarray(g)) for name, g in grams.items() if g.shape}
        none = np.zeros_like(np.asarray(state[TASK]["classes"]))
        return {
            **state,
            f"adapters/{number}": adapters,
            f"grams/{number}": grams,
            ADAPTERS: self._fresh(shapes, number + 1),
            GRAMS: _no_grams(inputs),
            TASK: {
                "rounds": _number(0),
                "classes": none,
                "finished": _number(number + 1),
            },
        }

    def _fresh(self, shapes: Mapping[str, tuple[int, ...]], task: int) -> Arrays:
        rng = np.random.default_rng(derive(self.context.seed, "lorm", task))
        made = {}
        for name in sorted(shapes):
            width = shapes[name][1] ** -0.5 if name.endswith(DOWN) else 0.0
            made[name] = rng.uniform(-width, width, shapes[name]).astype(np.float32)
        return made


def _merged_factors(state: Payload, updates: Sequence[Update]) -> Arrays:
    factor, adapters = trained_factor(state), state[ADAPTERS]
    new = dict(adapters)
    for name in adapters:
        if not name.endswith(factor):
            continue
        layer = name.removesuffix(factor)
        sent = [np.asarray(update.payload["adapters"][name]) for update in updates]
        grams = [diagonals(update.payload["grams"], layer) for update in updates]
        merged = (
            merged_up(sent, np.asarray(adapters[layer + DOWN]), grams)
            if factor == UP
            else regmean(sent, grams)
        )
        new[name] = merged.astype(np.float32)
    return new


def _joined_grams(updates: Sequence[Update]) -> Arrays:
    sent = [update.payload["grams"] for update in updates]
    tokens = sum(int(np.asarray(grams[TOKENS])) for grams in sent)
    layers = [name for name in sent[0] if name not in (TOKENS, HEAD)]
    found: dict[str, Array] = {TOKENS: _number(tokens)}
    for layer in layers:
        total = np.sum([diagonals(grams, layer) for grams in sent], axis=0)
        found[layer] = (total / max(tokens, 1)).astype(np.float32)
    return found


def _merged_heads(heads: Arrays, updates: Sequence[Update]) -> tuple[Arrays, Array]:
    """Merge the head; list which of its classes have been learned, uint8.

    A row is merged of those clients that learned it, its bias by number of examples.
    """
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
    for who in np.unique(has[:, learned], axis=1).T:
        classes = np.flatnonzero((has == who[:, None]).all(0))
        clients = np.flatnonzero(who).tolist()
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


def _no_grams(inputs: Mapping[str, int]) -> Arrays:
    none = {layer: np.zeros(count, np.float32) for layer, count in inputs.items()}
    return {**none, TOKENS: _number(0)}


def _number(value: int) -> Array:
    return np.asarray(value, np.int64)
