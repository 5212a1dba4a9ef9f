"""FedWeIT with whole tasks in the knowledge base, server side.

Ours; see the client side for what they are good for. The base travels between tasks
only: down in full when a client starts one, up when it ends one.
"""

import numpy as np
from typing_extensions import override

from fcl_flower.core import update_checks
from fcl_flower.core.errors import WireError
from fcl_flower.core.sparse import SparseArray
from fcl_flower.core.types import Payload, TaskStage, Update
from strategies.fedweit.decomposition import decomposed
from strategies.fedweit.server import SEEN, FedWeit
from strategies.fedweit_match import FedWeitMatchParams

MAX_HEADS = 2**26
"""Bytes of a task's private tensors: far more than those of any network of ours."""


class FedWeitMatch(FedWeit[FedWeitMatchParams]):
    """Beside an adapter, keep the mask and the private tensors of its task."""

    uploaded_groups = ("adapters", "masks", "heads")

    @override
    def configure_train(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        if not stage.starts_task:
            return {"base": {}}
        return super().configure_train({**state, SEEN: {}}, stage, client)

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        """Refuse what does not fit; private tensors are checked by who uses them."""
        payload = update.payload
        rest = {g: a for g, a in payload.items() if g not in {"masks", "heads"}}
        super().check_update(state, Update(rest, update.num_examples))
        given = payload.keys() & set(self.uploaded_groups)
        if given and len(given) < len(self.uploaded_groups):
            raise WireError(f"groups {sorted(given)}: a task is handed in whole")
        if given:
            gates = {
                name: np.zeros(len(weight), weight.dtype)
                for name, weight in decomposed(state["base"]).items()
            }
            update_checks.fits("masks", payload["masks"], gates, sparse=False)
            if payload["masks"].keys() != gates.keys():
                raise WireError("masks: expected one for each tensor of the base")
        heads = payload.get("heads", {})
        for name, tensor in heads.items():
            if isinstance(tensor, SparseArray):
                raise WireError(f"heads/{name}: expected a dense tensor")
        size = sum(np.asarray(tensor).nbytes for tensor in heads.values())
        if size > MAX_HEADS:  # they are kept, and sent to every client
            raise WireError(f"heads: expected at most {MAX_HEADS} bytes, got {size}")
