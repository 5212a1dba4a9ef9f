"""FedWeIT's server half: aggregation rules and the knowledge base, by hand."""

import dataclasses

import numpy as np
import pytest

from fcl_flower.aggregation.policy import Aggregation
from fcl_flower.algorithms.base import ServerContext
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.types import SparseArray, TaskStage, Update
from strategies.fedweit import FedWeitParams
from strategies.fedweit.server import FedWeit

W = "body.fc.weight"


def stage(number, task=0, starts_task=False, ends_task=False):
    return TaskStage(
        round=number, task=task, starts_task=starts_task, ends_task=ends_task
    )


def server(**params):
    return FedWeit(FedWeitParams(**params), ServerContext(3))


def start(strategy):
    weight = np.float32([[1, 1], [2, 2], [3, 3]])
    bias = np.float32([9, 9, 9])
    return strategy.init({W: weight, "body.fc.bias": bias})


def rows(values, channels):
    return SparseArray.of_channels(np.float32(values), np.array(channels))


def update(base=None, adapter=None):
    payload = {"base": {} if base is None else {W: base}}
    if adapter is not None:
        payload["adapters"] = {W: SparseArray.of_nonzero(np.float32(adapter))}
    return Update(payload, num_examples=10)


def test_only_weights_with_channels_are_common():
    assert set(start(server())["base"]) == {W}


def test_a_model_without_anything_to_decompose_is_refused():
    with pytest.raises(ConfigError, match=r"^model: got a body without trained weight"):
        server().init({"heads.0.weight": np.zeros((2, 3), np.float32)})


def test_masked_mean_averages_over_the_clients_that_sent_a_channel():
    strategy = server(aggregation="masked-mean")
    state = start(strategy)
    full = [[4, 8], [6, 6], [0, 0]]
    updates = {0: update(rows(full, [0, 1])), 1: update(rows([[8, 0]] * 3, [0]))}

    new = strategy.aggregate_train(state, stage(1), updates)

    # Channel 0: mean of (4, 8) and (8, 0). Channel 1: client 0 alone. 2: as it was.
    assert new["base"][W].tolist() == [[6, 4], [6, 6], [3, 3]]
    assert state["base"][W].tolist() == [[1, 1], [2, 2], [3, 3]]


def test_the_literal_rule_counts_what_was_not_sent_as_zero():
    strategy = server(aggregation="literal", gate="sigmoid")
    state = start(strategy)
    full = [[4, 8], [6, 6], [0, 0]]
    updates = {0: update(rows(full, [0, 1])), 1: update(rows([[8, 0]] * 3, [0]))}

    new = strategy.aggregate_train(state, stage(1), updates)

    # 1/C sum B m with C = 2: channel 1 shrinks to half of what its one client sent.
    assert new["base"][W].tolist() == [[6, 4], [3, 3], [3, 3]]


def test_the_literal_rule_is_refused_with_gates_that_may_exceed_1():
    """The base would be multiplied by its gates in every round, and doubled by a 2."""
    with pytest.raises(
        ValueError, match=r"aggregation: got 'literal', expected 'maske"
    ):
        FedWeitParams(aggregation="literal", gate="identity")
    for aggregation, gate in (("literal", "sigmoid"), ("masked-mean", "identity")):
        assert FedWeitParams(aggregation=aggregation, gate=gate).gate == gate


def test_a_client_receives_only_channels_that_changed_since_it_took_part():
    strategy = server()
    state = start(strategy)
    first = strategy.configure_train(state, stage(1), 0)["base"][W]
    assert first.nnz == 6, "at first everything"
    state = strategy.aggregate_train(
        state, stage(1), {0: update(rows([[7, 7]] * 3, [1])), 1: update()}
    )
    again = strategy.configure_train(state, stage(2), 0)["base"][W]
    assert again.indices.tolist() == [2, 3]
    assert again.values.tolist() == [7, 7]
    assert strategy.configure_train(state, stage(2), 2)["base"][W].nnz == 6, (
        "a newcomer"
    )

    state = strategy.aggregate_train(
        state, stage(2), {0: update(rows([[5, 5]] * 3, [0]))}
    )
    missed_one = strategy.configure_train(state, stage(3), 1)["base"][W]
    assert missed_one.indices.tolist() == [0, 1, 2, 3], "changes of rounds 1 and 2"


def with_adapters(strategy, clients=3, tasks=3):
    state = start(strategy)
    for task in range(tasks):
        updates = {
            client: update(adapter=[[100 * client + task + 1, 0]] * 3)
            for client in range(clients)
        }
        state = strategy.aggregate_train(
            state, stage(task + 1, task, ends_task=True), updates
        )
    return state


def received(strategy, state, client, task):
    payload = strategy.configure_train(state, stage(10, task, starts_task=True), client)
    return sorted(group for group in payload if group.startswith("adapters/"))


@pytest.mark.parametrize("knowledge", ["previous", "all", "sample:2", "sample:50"])
def test_the_knowledge_base_never_holds_the_clients_own_adapters(knowledge):
    strategy = server(knowledge=knowledge)
    state = with_adapters(strategy)
    for client in range(3):
        for task in range(4):
            own = f"adapters/{client}/"
            assert not any(
                group.startswith(own)
                for group in received(strategy, state, client, task)
            )


def test_previous_is_the_last_of_each_client_and_all_is_every_one():
    state = with_adapters(server(), tasks=2)
    assert received(server(knowledge="previous"), state, 1, 2) == [
        "adapters/0/1",
        "adapters/2/1",
    ]
    assert received(server(knowledge="all"), state, 1, 2) == [
        "adapters/0/0",
        "adapters/0/1",
        "adapters/2/0",
        "adapters/2/1",
    ]
    assert received(server(knowledge="none"), state, 1, 2) == []
    nothing = start(server())
    assert received(server(knowledge="all"), nothing, 1, 0) == []


def test_a_sample_is_of_size_k_and_depends_on_seed_client_and_task_only():
    strategy = server(knowledge="sample:2")
    state = with_adapters(strategy, clients=6)
    drawn = {(c, t): received(strategy, state, c, t) for c in range(6) for t in (3, 4)}
    assert all(len(groups) == 2 for groups in drawn.values())
    assert drawn == {key: received(strategy, state, *key) for key in drawn}
    assert len({tuple(groups) for groups in drawn.values()}) > 3
    other = FedWeit(FedWeitParams(knowledge="sample:2"), ServerContext(4))
    assert drawn != {key: received(other, state, *key) for key in drawn}


def test_adapters_travel_once_a_task_and_keep_their_values():
    strategy = server(knowledge="all")
    state = with_adapters(strategy)
    payload = strategy.configure_train(state, stage(10, 3, starts_task=True), 0)
    assert payload["adapters/2/1"][W].to_dense()[:, 0].tolist() == [202, 202, 202]
    later = strategy.configure_train(state, stage(11, 3, starts_task=False), 0)
    assert set(later) == {"base"}


def test_who_goes_on_with_a_task_takes_no_more_adapters():
    strategy = server(knowledge="all")
    state = with_adapters(strategy, tasks=1)
    # Where concepts are hidden each round is the first and the last of the only task.
    again = stage(2, 0, starts_task=True, ends_task=True)
    assert set(strategy.configure_train(state, again, 0)) == {"base"}
    lost = strategy.on_state_lost(state, 0)
    sent = strategy.configure_train(lost, again, 0)
    assert set(sent) == {"base", "adapters/1/0", "adapters/2/0"}


@pytest.mark.parametrize("knowledge", ["sample:0", "sample:x", "sample", "some", ""])
def test_unknown_knowledge_is_refused(knowledge):
    with pytest.raises(ValueError, match="knowledge"):
        FedWeitParams(knowledge=knowledge)


def test_an_adapter_belongs_to_the_task_at_which_its_client_stood():
    strategy = server()
    ahead = dataclasses.replace(update(adapter=[[1, 0]] * 3), stage=stage(4, task=5))
    updates = {0: ahead, 1: update(adapter=[[2, 0]] * 3)}

    new = strategy.aggregate_train(start(strategy), stage(7, task=1), updates)

    assert {g for g in new if g.startswith("adapters/")} == {
        "adapters/0/5",
        "adapters/1/1",
    }


def test_what_changed_while_a_client_was_busy_reaches_it_afterwards():
    strategy = server()
    state = start(strategy)
    busy = stage(1)
    one = dataclasses.replace(update(rows([[7, 7]] * 3, [1])), stage=stage(1))
    late = dataclasses.replace(update(rows([[5, 5]] * 3, [2])), stage=busy)

    state = strategy.aggregate_train(state, stage(1), {1: one})
    state = strategy.aggregate_train(state, stage(2), {0: late})

    # Client 0 was asked before channel 1 changed, and client 1 before channel 2 did.
    for client in (0, 1):
        sent = strategy.configure_train(state, stage(3), client)["base"][W]
        assert sorted(set(sent.indices // 2)) == [1, 2]


def test_a_median_is_that_of_the_clients_that_sent_a_channel():
    strategy = server()
    strategy.aggregation = Aggregation("median")
    state = start(strategy)
    sent = [([4, 8], [0]), ([5, 6], [0]), ([900, -900], [0, 1])]
    updates = {c: update(rows([v] * 3, at)) for c, (v, at) in enumerate(sent)}

    new = strategy.aggregate_train(state, stage(1), updates)

    # The first channel came from three, the second from one, the third from nobody.
    np.testing.assert_array_equal(new["base"][W], [[5, 6], [2, 2], [3, 3]])
    np.testing.assert_array_equal(new["meta/changed"][W], [1, 1, 0])
