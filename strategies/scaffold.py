"""SCAFFOLD, server side: the mean model and the mean control variate.

Karimireddy et al., ICML 2020, https://arxiv.org/abs/1910.06378, algorithm 1, lines 16
and 17. Symbols: x is ``base``, c is ``control``, and client i sends its model y_i in
``base`` and c_i+ - c_i in ``control/change``.
"""

from typing import Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from fcl_flower.algorithms.base import Params, ServerStrategy, Updates
from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.core.errors import WireError
from fcl_flower.core.types import AnyArray, Array, Arrays, Payload, TaskStage, Update
from fcl_flower.core.update_checks import fits, same_tensors


class ScaffoldParams(Params):
    """Hyper-parameters of SCAFFOLD."""

    variate: Literal["steps", "start"] = Field("steps")
    """The new value of a client's control variate. With ``steps``, it is the mean
    gradient over the steps of a round (option II). With ``start``, it is the mean
    gradient over all of its samples at the received model (option I)."""


ALGORITHM = Algorithm(
    name="scaffold",
    server="strategies.scaffold:Scaffold",
    client="clients.scaffold:Scaffold",
    params_type=ScaffoldParams,
    summary="FedAvg whose clients correct their gradients by control variates",
    paper="Karimireddy et al., ICML 2020",
)


CHANGE = "control/change"
SEEN = "meta/seen"


class Scaffold(ServerStrategy[ScaffoldParams]):
    """A strategy with one global model and c, the mean of the c_i.

    Every client receives both.

    State: ``base``; ``control`` (by parameter, empty before the first round: zeros);
    ``meta/seen`` (``client``: the clients that have ever trained, ascending).

    In the paper c is a mean over all clients, and c_i = 0 for those that have not taken
    part. Here it is a mean over those that have, and a client begins with c_i = c.
    While it does not know its own drift, it corrects nothing. With all clients in each
    round the two are the same. The global step size is 1, and clients count in x by
    their examples, as in FedAvg.

    Only clients know their c_i. A round that is not used, or a client that then lost
    its state, still leaves its change in c, divided by their number.
    """

    predicts = ("base",)
    robust_aggregation = True

    @override
    def init(self, model: Arrays) -> Payload:
        return {"base": model, "control": {}, SEEN: {"client": np.zeros(0, np.int64)}}

    @override
    def send(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        return {"base": state["base"], "control": state["control"]}

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        sent = update.payload
        if sent.keys() != {"base", CHANGE}:
            raise WireError(f"groups {sorted(sent)}: expected {['base', CHANGE]}")
        same_tensors({"base": sent["base"]}, {"base": state["base"]})
        fits(CHANGE, sent[CHANGE], _floats(state["base"]), sparse=False)

    @override
    def combine(self, state: Payload, stage: TaskStage, updates: Updates) -> Payload:
        trained = {c: sent for c, sent in updates.items() if sent.num_examples}
        if not trained:
            return state
        changes = [update.payload[CHANGE] for update in trained.values()]
        seen = np.union1d(np.asarray(state[SEEN]["client"]), list(trained))
        share = len(trained) / len(seen)
        names = {*state["control"]}.union(*changes)
        still = {n: np.zeros_like(state["base"][n]) for n in sorted(names)}
        change = self.aggregation.combine(changes, start=still)
        return {
            **self.aggregation.combine_groups(trained, {"base": state["base"]}),
            "control": {
                name: _moved(state["control"].get(name, zeros), share, change[name])
                for name, zeros in still.items()
            },
            SEEN: {"client": seen.astype(np.int64)},
        }


def _floats(model: Arrays) -> Arrays:
    """Select possible parameters: BatchNorm counts its batches in integers."""
    return {name: tensor for name, tensor in model.items() if tensor.dtype.kind == "f"}


def _moved(control: AnyArray, share: float, change: Array) -> Array:
    return np.asarray(np.asarray(control) + share * change, change.dtype)
