import numpy as np
import pytest

from fcl_flower.algorithms.base import ServerContext
from fcl_flower.core.types import TaskStage
from strategies.fedweit import FedWeitParams
from strategies.fedweit.maths import Adapter, candidates
from strategies.fedweit.server import Broadcast, FedWeit


def state():
    return {
        "base": {"w": np.arange(8.0).reshape(4, 2), "v": np.arange(3.0)[:, None]},
        "meta/changed": {"w": np.array([0, 3, 5, 3]), "v": np.array([0, 0, 2])},
        "meta/seen": {"0": np.asarray(3), "1": np.asarray(3), "2": np.asarray(5)},
        **{f"adapters/{c}/{t}": {} for c in (10, 0, 9, 2) for t in (1, 0)},
    }


@pytest.mark.parametrize("since", range(7))
def test_channels_that_changed_in_a_round_or_later_travel(since):
    found = Broadcast(state()).changed_since(since)
    for name, values in state()["base"].items():
        rows = [
            r for r in range(len(values)) if state()["meta/changed"][name][r] >= since
        ]
        assert (name in found) == bool(rows)
        if rows:
            width = values.shape[1]
            places = [r * width + c for r in rows for c in range(width)]
            assert found[name].indices.tolist() == places
            assert found[name].values.tolist() == values.reshape(-1)[places].tolist()


@pytest.mark.parametrize("client", [*range(12), 100])
def test_all_adapters_but_a_clients_own_are_candidates(client):
    found = Broadcast(state()).adapters_beside(client)
    assert found == candidates(state(), Adapter(client, 0))
    assert len(found) == (6 if client in (0, 2, 9, 10) else 8)


def test_clients_that_were_reached_in_the_same_round_get_the_same_tensors():
    strategy, kept = FedWeit(FedWeitParams(), ServerContext(0)), state()
    later = TaskStage(round=6, task=0, starts_task=False, ends_task=False)

    first, second, third, new = (
        strategy.configure_train(kept, later, client)["base"]["w"]
        for client in (0, 1, 2, 3)
    )

    assert first is second
    assert first.indices.tolist() == [2, 3, 4, 5, 6, 7]
    assert third.indices.tolist() == [4, 5]
    assert new.indices.tolist() == list(range(8))


def test_another_state_has_a_broadcast_of_its_own():
    strategy, kept = FedWeit(FedWeitParams(knowledge="all"), ServerContext(0)), state()
    begins = TaskStage(round=6, task=7, starts_task=True, ends_task=False)
    before = strategy.configure_train(kept, begins, 0)
    base = {**kept["base"], "v": np.full((3, 1), 7.0)}
    after = strategy.configure_train(
        {**kept, "base": base, "adapters/5/0": {}}, begins, 0
    )

    assert before["base"].keys() == {"w"}
    assert after.keys() - before.keys() == {"adapters/5/0"}
    later = {**kept, "base": base, "meta/seen": {}}
    assert strategy.configure_train(later, begins, 0)["base"]["v"].values.tolist() == [
        *(7.0, 7.0, 7.0)
    ]
