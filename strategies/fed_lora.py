"""Federated LoRA, server side: four rules for the mean of changes of low rank.

Each linear layer of a frozen transformer has the weight ``W0 + B A``. Symbols: A, shape
(rank, inputs), is ``NAME.down``. B, shape (outputs, rank), is ``NAME.up``. p_k is the
share of client k, the last of which is K. A bar is the mean ``sum_k p_k (.)``.

The mean of the clients' weights needs ``sum_k p_k B_k A_k``. The product of the means
misses it by ``E = sum_k p_k (B_k - Bbar) (A_k - Abar)``. E is 0 where all clients have
one of the factors in common. The rules, by the names of their papers:

- ``mean``, FedIT (Zhang et al., ICASSP 2024, https://arxiv.org/abs/2305.05644): both
  factors are trained and averaged, and E is lost;
- ``frozen``, FFA-LoRA (Sun et al., ICLR 2024, https://arxiv.org/abs/2403.12313): A
  stays as it is drawn from the run's seed, the same for all, and never travels;
- ``alternating``, RoLoRA (Chen et al., 2025, https://arxiv.org/abs/2502.01755): B is
  trained in one round, A in the next;
- ``residual``, FedEx-LoRA (Singhal et al., ACL 2025, https://arxiv.org/abs/2410.09432):
  both are trained and averaged, and E is added to W0.

In FedEx-LoRA clients count alike; here they count by their examples, as in all means.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import numpy as np
from typing_extensions import override

from fcl_flower.algorithms.base import Params, Updates
from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.core.errors import config_error
from fcl_flower.core.types import Array, Arrays, Payload, TaskStage, Update
from strategies.fedavg import FedAvg
from strategies.lorm import DOWN, UP


class FedLoraParams(Params):
    """Hyper-parameters of federated LoRA; the rank is the model's."""

    aggregation: Literal["mean", "frozen", "alternating", "residual"] = "alternating"
    """The rule. The ``mean`` of both factors is not the mean of the weights. The other
    rules give exactly that: A ``frozen``, factors trained in ``alternating`` rounds, or
    the ``residual`` of the mean added to the frozen weights."""


ALGORITHM = Algorithm(
    name="fed-lora",
    server="strategies.fed_lora:FedLora",
    client="clients.fed_lora:FedLora",
    params_type=FedLoraParams,
    summary="a frozen transformer with LoRA, averaged by one of four rules",
    paper="Singhal et al., ACL 2025",
    defaults={"data.datasets": "stdlib-docs"},
    models=("lora-transformer", "lora-vit", "causal-lm"),
    privacy_units=("client", "example"),
    token_labels=True,
)


# ---- the equations

Matrices: TypeAlias = tuple[Array, ...]
"""The factors of a product, as in `Lora.fixed`: one matrix (outputs, inputs); or two,
of shapes (k, inputs) and (outputs, k); () for 0."""


def residual(
    ups: Sequence[Array], downs: Sequence[Array], shares: Sequence[float]
) -> tuple[Array, Array]:
    """Factor E, which is ``sum_{k<K} p_k (B_k - Bbar) (A_k - A_K)``.

    The ``p_k (B_k - Bbar)`` add up to 0, so any matrix may be subtracted from all A_k
    alike. A_K leaves one client out. The factors are those of the singular value
    decomposition, each with the roots of the values. They follow from E alone, so they
    do not show single clients' factors.

    Args:
        ups: B_k by client, at least two.
        downs: A_k by client.
        shares: p_k, which add up to 1.

    Returns:
        float64, shapes (k, inputs) and (outputs, k), where k is at most (K - 1) rank; E
        is the second times the first.
    """
    up, down = np.asarray(ups, np.float64), np.asarray(downs, np.float64)
    weights = np.asarray(shares)[:, None, None]
    left = (weights * (up - (weights * up).sum(0)))[:-1]
    right = (down - down[-1])[:-1]
    rows, rest = np.linalg.qr(np.hstack(left))
    columns, other = np.linalg.qr(np.vstack(right).T)
    turned, values, back = np.linalg.svd(rest @ other.T, full_matrices=False)
    roots = np.sqrt(values)
    return roots[:, None] * back @ columns.T, rows @ turned * roots


def add(product: Matrices, down: Array, up: Array) -> Matrices:
    """Add ``up @ down`` to a product, in the form that has fewer numbers.

    Once the product is one matrix it stays one.
    """
    if len(product) == 1:
        return (product[0] + up @ down,)
    if product:
        down = np.concatenate([product[0], down])
        up = np.concatenate([product[1], up], axis=1)
    small = down.size + up.size < len(up) * down.shape[1]
    return (down, up) if small else (up @ down,)


# ---- the groups that travel

ADAPTED: Final = "lora-transformer, lora-vit or causal-lm, whose changes are averaged"
FIXED: Final = "adapters/fixed"
"""The group of the factors that no client trains in this round."""
RESIDUAL: Final = "adapters/residual"
"""The group of the sum of all E so far: each layer's factors, or one matrix by the
layer's name."""


def adapted(names: Iterable[str]) -> list[str]:
    """List the layers that have a change of low rank, by the names of a model."""
    return [name.removesuffix(DOWN) for name in names if name.endswith(DOWN)]


def residual_of(payload: Payload, layer: str) -> Matrices:
    """Look up the sum of all E of a layer so far."""
    arrays = payload.get(RESIDUAL, {})
    names = (layer,), (layer + DOWN, layer + UP)
    present = next((forms for forms in names if forms[0] in arrays), ())
    return tuple(np.asarray(arrays[name]) for name in present)


class FedLora(FedAvg):
    """A strategy that keeps one model and what a rule needs beside it.

    Clients train and send what they receive as ``base``, and no more. All else is sent
    as a whole, so nothing depends on the rounds in which a client took part.

    State: ``base``; by the rule ``alternating`` also ``adapters/fixed``, the factor
    whose turn comes a round later; by ``residual`` also ``adapters/residual``.
    """

    # No group is a mean or a model: a round is taken as a whole, and products of
    # rounded factors are not exact.
    groups = {}
    params: FedLoraParams

    @override
    def init(self, model: Arrays) -> Payload:
        rule = self.params.aggregation
        if rule == "residual" and self.aggregation.compares:
            expected = "another one, or federation.aggregation 'mean' and "
            expected += "federation.clip_to_median 0, as each client adds a product of "
            expected += "its own to the weights"
            raise config_error("strategy.aggregation", rule, expected)
        downs = {name: model[name] for name in model if name.endswith(DOWN)}
        if not downs:
            raise config_error("model.name", "one without LoRA", ADAPTED)
        rest = {name: model[name] for name in model if name not in downs}
        match rule:
            case "frozen":
                return {"base": rest}
            case "alternating":
                return {"base": rest, FIXED: downs}
            case _:
                return {"base": model}

    @override
    def check_summable(self) -> None:
        rule = self.params.aggregation
        if rule == "residual":
            expected = "another one, or federation.secure_aggregation false, as the "
            expected += "server needs the product of each client's factors"
            raise config_error("strategy.aggregation", rule, expected)

    @override
    def summands(self, state: Payload) -> Payload:
        return {"base": state["base"]}

    @override
    def send(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        return state

    @override
    def combine(self, state: Payload, stage: TaskStage, updates: Updates) -> Payload:
        new = super().combine(state, stage, updates)
        match self.params.aggregation:
            case "alternating":
                return _next_turn(new)
            case "residual":
                return {**new, RESIDUAL: _with_residual(state, updates)}
            case _:
                return new


def _next_turn(state: Payload) -> Payload:
    """Exchange the trained factor and the fixed one."""
    base = state["base"]
    trained = {name: base[name] for name in base if name.endswith((UP, DOWN))}
    rest = {name: base[name] for name in base if name not in trained}
    return {"base": {**rest, **state[FIXED]}, FIXED: trained}


def _with_residual(state: Payload, updates: Mapping[int, Update]) -> Arrays:
    counts = [update.num_examples for update in updates.values()]
    sent = [
        update.payload["base"] for update in updates.values() if update.num_examples
    ]
    shares = [count / sum(counts) for count in counts if count]
    if len(sent) < 2:
        return state.get(RESIDUAL, {})
    total = dict[str, Array]()
    for layer in adapted(state["base"]):
        ups, downs = (
            [np.asarray(arrays[layer + factor]) for arrays in sent]
            for factor in (UP, DOWN)
        )
        matrices = add(residual_of(state, layer), *residual(ups, downs, shares))
        names = (layer,) if len(matrices) == 1 else (layer + DOWN, layer + UP)
        for name, matrix in zip(names, matrices, strict=True):
            total[name] = matrix.astype(ups[0].dtype)
    return total
