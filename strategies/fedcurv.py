"""FedCurv, server side: the mean model, and sums of the clients' curvatures.

Shoham et al., 2019, https://arxiv.org/abs/1910.07796, section 3. Symbols: a client j
sends its model w_j, u_j = diag(I_j), which is ``curvature/fisher``, and v_j = diag(I_j)
w_j, which is ``curvature/weighted``.
"""

import numpy as np
from pydantic import Field
from typing_extensions import override

from fcl_flower.algorithms.base import Params, ServerStrategy, Updates
from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.core.errors import WireError
from fcl_flower.core.types import Array, Arrays, Payload, TaskStage, Update
from fcl_flower.core.update_checks import fits, same_tensors


class FedCurvParams(Params):
    """Hyper-parameters of FedCurv."""

    strength: float = Field(1.0, ge=0)
    """The weight of the penalty, at least 0 (the paper's lambda); 0 is FedAvg. The
    default is the largest of FedWeIT's experiments (Yoon et al., ICML 2021, appendix
    A)."""
    fisher_examples: int = Field(200, ge=1)
    """The number of training examples that estimate the Fisher information in a round,
    at least 1."""


ALGORITHM = Algorithm(
    name="fedcurv",
    server="strategies.fedcurv:FedCurv",
    client="clients.fedcurv:FedCurv",
    params_type=FedCurvParams,
    summary="FedAvg whose clients hold to what the other clients' data need",
    paper="Shoham et al., 2019",
)


FISHER, WEIGHTED = "curvature/fisher", "curvature/weighted"


class FedCurv(ServerStrategy[FedCurvParams]):
    """A strategy with one global model, and the last u_j and v_j of each client.

    A client receives the model and the sums over all others, so that it need not keep
    its own. Both ways these are three times the bytes of FedAvg.

    State: ``base``; ``curvature/fisher`` and ``curvature/weighted``, the sums over all
    clients, by parameter; ``curvature/fisher/J`` and ``curvature/weighted/J`` of client
    J, which stay while it is absent.
    """

    predicts = ("base",)

    @override
    def init(self, model: Arrays) -> Payload:
        return {"base": model, FISHER: {}, WEIGHTED: {}}

    @override
    def send(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        sums = {
            group: _without(state[group], state.get(f"{group}/{client}", {}))
            for group in (FISHER, WEIGHTED)
        }
        return {"base": state["base"], **sums}

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        sent, base = update.payload, state["base"]
        if sent.keys() != {"base", FISHER, WEIGHTED}:
            expected = ["base", FISHER, WEIGHTED]
            raise WireError(f"groups {sorted(sent)}: expected {expected}")
        same_tensors({"base": sent["base"]}, {"base": base})
        floats = {n: tensor for n, tensor in base.items() if tensor.dtype.kind == "f"}
        for group in (FISHER, WEIGHTED):
            fits(group, sent[group], floats, sparse=False)
        if sent[FISHER].keys() != sent[WEIGHTED].keys():
            odd = sorted(sent[FISHER].keys() ^ sent[WEIGHTED].keys())
            raise WireError(f"{odd}: expected in both {FISHER} and {WEIGHTED}")
        for name, values in sent[FISHER].items():
            if np.asarray(values).min(initial=0) < 0:
                raise WireError(f"{FISHER}/{name}: expected values of at least 0")

    @override
    def combine(self, state: Payload, stage: TaskStage, updates: Updates) -> Payload:
        trained = {c: sent for c, sent in updates.items() if sent.num_examples}
        if not trained:
            return state
        latest = {
            f"{group}/{client}": update.payload[group]
            for client, update in trained.items()
            for group in (FISHER, WEIGHTED)
        }
        kept = {**state, **latest}
        return {
            **kept,
            **self.aggregation.combine_groups(trained, {"base": state["base"]}),
            **{group: _sum_over_clients(kept, group) for group in (FISHER, WEIGHTED)},
        }


def _sum_over_clients(state: Payload, group: str) -> dict[str, Array]:
    total: dict[str, Array] = {}
    prefix = f"{group}/"
    clients = sorted(int(g.removeprefix(prefix)) for g in state if g.startswith(prefix))
    for client in clients:
        for name, values in state[f"{prefix}{client}"].items():
            total[name] = total.get(name, np.float64(0)) + np.asarray(values)
    base = state["base"]
    return {name: np.asarray(total[name], base[name].dtype) for name in sorted(total)}


def _without(total: Arrays, own: Arrays) -> dict[str, Array]:
    return {
        name: np.asarray(values) - (np.asarray(own[name]) if name in own else 0)
        for name, values in total.items()
    }
