"""The task in progress: what a FedWeIT client keeps only while it trains on one.

In the client's state: ``meta/current`` is the task's number, ``received/C/S`` are the
foreign adapters A_j that came for it, ``attention`` is alpha, one for each of them and
tensor, ``optimizer`` is the state of Adam. A client may come back to a task that it
has finished; that is another visit, and nothing of the first one is left by then.
"""

from collections.abc import Collection, Mapping

import numpy as np

from clients.fedweit.foreign_adapters import ForeignBank
from fcl_flower.core.types import Array, Arrays, Payload, SparseArray
from fcl_flower.training.tensors import dense

CURRENT = "meta/current"
RECEIVED = "received/"
ADAPTERS = "adapters/"
"""Of others, in what the server sends: ``adapters/C/S``."""


def current_task(state: Payload) -> int | None:
    """Return the task in progress; None between tasks."""
    return int(dense(state[CURRENT]["task"])) if CURRENT in state else None


def known_tasks(state: Payload) -> list[int]:
    """Return the tasks that a client has ever trained on, ascending."""
    return sorted(int(g.split("/")[1]) for g in state if g.startswith("masks/"))


def senders(offer: Payload) -> list[str]:
    """Return the clients whose adapters are in what the server sent, in one order."""
    found = {group.split("/")[1] for group in offer if group.startswith(ADAPTERS)}
    return sorted(found, key=int)


def only_adapters_of(clients: Collection[str], offer: Payload) -> Payload:
    """Return what the server sent without the adapters of all but some clients."""
    return {
        group: arrays
        for group, arrays in offer.items()
        if not group.startswith(ADAPTERS) or group.split("/")[1] in clients
    }


def start_task(
    state: Payload, task: int, foreign: Mapping[str, Arrays] = {}
) -> dict[str, Arrays]:
    """Return the state with ``task`` in progress, and equal attention.

    Args:
        state: another task may be in progress, if its end was never asked for.
        task: its number.
        foreign: the adapters that came for it, by ``client/task``.
    """
    equal = np.full(len(foreign), 1 / max(len(foreign), 1), np.float32)
    return {
        **end_task(state),
        CURRENT: {"task": np.asarray(task)},
        **{RECEIVED + source: arrays for source, arrays in foreign.items()},
        "attention": dict.fromkeys(state["base"], equal),
    }


def end_task(state: Payload) -> dict[str, Arrays]:
    """Return the state with no task in progress."""
    kept = {
        group: arrays
        for group, arrays in state.items()
        if group not in {CURRENT, "attention"} and not group.startswith(RECEIVED)
    }
    return {**kept, "optimizer": {}}


def received(state: Payload) -> list[str]:
    """Return whose adapters came for the task, as ``client/task``, in one order."""
    groups = sorted(group for group in state if group.startswith(RECEIVED))
    return [group.removeprefix(RECEIVED) for group in groups]


def foreign_adapters(state: Payload) -> dict[str, ForeignBank]:
    """Return the adapters that came, by tensor; empty when none did."""
    groups = [RECEIVED + source for source in received(state)]
    if not groups:
        return {}
    return {
        name: ForeignBank([_sparse(state[group], name) for group in groups])
        for name in state["base"]
    }


def merged_foreign(state: Payload) -> dict[str, SparseArray]:
    """Return sum_j alpha_j A_j by tensor, as it is now; empty without any A_j."""
    return {
        name: SparseArray.of_nonzero(bank.combine(_alpha(state, name)))
        for name, bank in foreign_adapters(state).items()
    }


def attention_weights(state: Payload) -> dict[str, float]:
    """Return ``attention/C/S``: mean |alpha| over the tensors, for the report."""
    sources = received(state)
    if not sources:
        return {}
    alpha = [np.abs(_alpha(state, name)) for name in state["base"]]
    return {
        f"attention/{source}": float(weight)
        for source, weight in zip(sources, np.mean(alpha, axis=0), strict=True)
    }


def _alpha(state: Payload, name: str) -> Array:
    return dense(state["attention"][name])


def _sparse(arrays: Arrays, name: str) -> SparseArray:
    tensor = arrays[name]
    if isinstance(tensor, SparseArray):
        return tensor
    return SparseArray.of_nonzero(tensor)
