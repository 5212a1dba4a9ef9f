"""LoRM, server side: what clients learned is merged so that it answers as they do.

Salami et al., ICLR 2025, https://arxiv.org/abs/2410.17961.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from typing_extensions import override

from fcl_flower.algorithms.base import ServerStrategy
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Array, Arrays, Payload, TaskStage, Update
from strategies.lorm import LormParams
from strategies.lorm.merging import merged_up, regmean, symmetric
from strategies.lorm.payloads import (
    ADAPTERS,
    BIAS,
    DOWN,
    GRAMS,
    HEAD,
    HEADS,
    KNOWN,
    TASK,
    TOKENS,
    UP,
    WEIGHT,
    adapted_layers,
    diagonals,
    trained_factor,
)
from strategies.lorm.received import check_update

HELD = "meta/held"


class Lorm(ServerStrategy[LormParams]):
    """Keep a change of low rank for each task, and one head; merge, never train.

    A client receives those of finished tasks once.

    State: the groups of `strategies.lorm.payloads`, and ``meta/held`` (by client, how
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
        """Return the state with its task among the finished ones, and a fresh one."""
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
        """Return factors whose product is 0: A as LoRA draws it, and B = 0."""
        rng = np.random.default_rng(derive(self.context.seed, "lorm", task))
        made = {}
        for name in sorted(shapes):
            width = shapes[name][1] ** -0.5 if name.endswith(DOWN) else 0.0
            made[name] = rng.uniform(-width, width, shapes[name]).astype(np.float32)
        return made


def _merged_factors(state: Payload, updates: Sequence[Update]) -> Arrays:
    """Return both factors of each layer, one of them merged."""
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
    """Return the mean squares over all clients' tokens."""
    sent = [update.payload["grams"] for update in updates]
    tokens = sum(int(np.asarray(grams[TOKENS])) for grams in sent)
    layers = [name for name in sent[0] if name not in (TOKENS, HEAD)]
    found: dict[str, Array] = {TOKENS: _number(tokens)}
    for layer in layers:
        total = np.sum([diagonals(grams, layer) for grams in sent], axis=0)
        found[layer] = (total / max(tokens, 1)).astype(np.float32)
    return found


def _merged_heads(heads: Arrays, updates: Sequence[Update]) -> tuple[Arrays, Array]:
    """Return the head, and which of its classes have been learned, uint8.

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
    """Return a client's weights or biases of some of the classes that it sent."""
    heads = update.payload["heads"]
    places = np.searchsorted(np.asarray(heads["classes"]), classes)
    return np.asarray(np.asarray(heads[name])[places])


def _no_grams(inputs: Mapping[str, int]) -> Arrays:
    none = {layer: np.zeros(count, np.float32) for layer, count in inputs.items()}
    return {**none, TOKENS: _number(0)}


def _number(value: int) -> Array:
    return np.asarray(value, np.int64)
