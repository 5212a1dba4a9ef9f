"""FedWeIT's server half: aggregation rules, what is sent, and the knowledge base."""

from dataclasses import replace

import numpy as np
import pytest

from fcl_flower.aggregation.policy import Aggregation
from fcl_flower.algorithms.base import ServerContext
from fcl_flower.core.diagnostics import Table
from fcl_flower.core.errors import ConfigError, WireError
from fcl_flower.core.types import ClientTask, SparseArray, TaskStage, Update
from strategies.fedweit import FedWeit, FedWeitParams
from strategies.fedweit.maths import check_metrics, choose

W = "body.fc.weight"


def stage(number, task=0, starts_task=False, ends_task=False):
    return TaskStage(number, task, starts_task, ends_task)


def server(seed=3, **params):
    return FedWeit(FedWeitParams(**params), ServerContext(seed))


def start(strategy):
    weight = np.float32([[1, 1], [2, 2], [3, 3]])
    return strategy.init({W: weight, "body.fc.bias": np.float32([9, 9, 9])})


def rows(values, channels):
    return SparseArray.of_channels(np.float32(values), np.array(channels))


def update(base=None, adapter=None, at=None):
    payload = {"base": {} if base is None else {W: base}}
    if adapter is not None:
        payload["adapters"] = {W: SparseArray.of_nonzero(np.float32(adapter))}
    return Update(payload, num_examples=10, stage=at)


def test_only_weights_with_channels_are_common():
    assert set(start(server())["base"]) == {W}
    with pytest.raises(ConfigError, match=r"^model: got a body without trained weight"):
        server().init({"heads.0.weight": np.zeros((2, 3), np.float32)})


# ---- the base


@pytest.mark.parametrize(
    ("params", "rule", "expected"),
    [
        # Channel 0 came from all three, 1 from two, 2 from nobody.
        ({}, "mean", [[6, 5], [7, 6], [3, 3]]),
        ({}, "median", [[8, 0], [2, 2], [3, 3]]),  # two are too few
        # 1/C sum B m: what one did not send counts as zero.
        (
            {"aggregation": "literal", "gate": "sigmoid"},
            "mean",
            [[6, 5], [14 / 3, 4], [3, 3]],
        ),
    ],
)
def test_the_base_is_combined_over_the_clients_that_sent_a_channel(
    params, rule, expected
):
    strategy = server(**params)
    strategy.aggregation = Aggregation(rule)
    state = start(strategy)
    sent = [([[0, 15]] * 3, [0]), ([[8, 0], [6, 6], [0, 0]], [0, 1])]
    sent.append(([[10, 0], [8, 6], [0, 0]], [0, 1]))
    updates = {c: update(rows(*one)) for c, one in enumerate(sent)}

    new = strategy.combine(state, stage(4), updates)

    np.testing.assert_allclose(new["base"][W], expected, rtol=1e-6)
    assert new["meta/changed"][W].tolist() == [4, 4, 0]
    assert state["base"][W].tolist() == [[1, 1], [2, 2], [3, 3]]


def test_the_literal_rule_is_refused_where_it_cannot_hold():
    # The base would be multiplied by its gates in every round, and doubled by a 2.
    with pytest.raises(
        ValueError, match=r"aggregation: got 'literal', expected 'maske"
    ):
        FedWeitParams(aggregation="literal", gate="identity")
    strategy = server(aggregation="literal", gate="sigmoid")
    strategy.aggregation = Aggregation("median")
    with pytest.raises(ConfigError, match=r"strategy\.aggregation: got 'literal'"):
        start(strategy)


def test_a_client_receives_only_channels_that_changed_since_it_took_part():
    strategy = server()

    def sent(state, number, client):
        base = strategy.send(state, stage(number), client)["base"]
        return sorted(set(base[W].indices // 2)) if W in base else []

    state = start(strategy)
    assert sent(state, 1, 0) == [0, 1, 2], "at first everything"
    state = strategy.combine(
        state, stage(1), {0: update(rows([[7, 7]] * 3, [1])), 1: update()}
    )
    assert sent(state, 2, 0) == [1]
    payload = strategy.send(state, stage(2), 0)
    assert payload["base"][W].values.tolist() == [7, 7]
    other = strategy.send(state, stage(2), 1)
    assert other["base"][W] is payload["base"][W], "equal tensors are one object"
    assert sent(state, 2, 2) == [0, 1, 2], "a newcomer"
    assert sent(strategy.on_state_lost(state, 0), 2, 0) == [0, 1, 2]

    state = strategy.combine(state, stage(2), {0: update(rows([[5, 5]] * 3, [0]))})
    assert sent(state, 3, 1) == [0, 1], "changes of rounds 1 and 2"
    # Client 0 was asked in round 2 and is late: 3 changed meanwhile by client 1.
    state = strategy.combine(
        state, stage(3), {1: update(rows([[4, 4]] * 3, [2]), at=stage(3))}
    )
    late = update(rows([[6, 6]] * 3, [1]), at=stage(2))
    state = strategy.combine(state, stage(4), {0: late})
    assert sent(state, 5, 0) == [0, 1, 2]


# ---- the knowledge base

WHO = [ClientTask(*one) for one in ((0, 0), (0, 1), (2, 0), (2, 1), (10, 0))]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("previous", [WHO[1], WHO[3], WHO[4]]),
        ("all", WHO),
        ("sample:5", WHO),
        ("sample:99", WHO),
        ("none", []),
    ],
)
def test_who_is_chosen_by_who_and_when(rule, expected):
    assert choose(rule, WHO, ClientTask(1, 2), seed=0) == expected


def test_a_sample_depends_on_seed_client_and_task_and_meets_everyone_in_the_end():
    new = ClientTask(1, 2)
    drawn = [choose("sample:2", WHO, new, seed) for seed in range(40)]
    for sample in drawn:
        assert len(set(sample)) == 2
        assert sample == sorted(sample)
    assert {adapter for sample in drawn for adapter in sample} == set(WHO)
    assert drawn == [choose("sample:2", WHO, new, seed) for seed in range(40)]
    for other in (ClientTask(1, 3), ClientTask(3, 2)):
        assert drawn != [choose("sample:2", WHO, other, seed) for seed in range(40)]


def with_adapters(strategy, clients=3, tasks=2):
    state = start(strategy)
    for task in range(tasks):
        updates = {
            c: update(adapter=[[100 * c + task + 1, 0]] * 3) for c in range(clients)
        }
        state = strategy.combine(state, stage(task + 1, task), updates)
    return state


def adapters_for(strategy, state, client, task, starts_task=True):
    now = stage(10, task, starts_task=starts_task)
    payload = strategy.send(state, now, client)
    return [group for group in payload if group != "base"]


@pytest.mark.parametrize(("rule", "tasks"), [("previous", [1]), ("all", [0, 1])])
def test_adapters_of_others_travel_once_a_task_and_never_the_clients_own(rule, tasks):
    strategy = server(knowledge=rule)
    state = with_adapters(strategy, clients=11)
    for client in (0, 1, 10):
        expected = [
            f"adapters/{c}/{t}" for c in range(11) if c != client for t in tasks
        ]
        assert adapters_for(strategy, state, client, 2) == expected
        assert adapters_for(strategy, state, client, 2, starts_task=False) == []
        # Slower than the others it gets what they have finished all the same.
        own = f"adapters/{client}/"
        slow = {group: a for group, a in state.items() if not group.startswith(own)}
        assert adapters_for(strategy, slow, client, 0) == expected
    payload = strategy.send(state, stage(10, 3, starts_task=True), 0)
    assert payload["adapters/2/1"][W].to_dense()[:, 0].tolist() == [202, 202, 202]


def test_who_goes_on_with_a_task_takes_no_more_adapters():
    strategy = server(knowledge="all")
    state = with_adapters(strategy, tasks=1)
    # Where concepts are hidden each round is the first and the last of the only task.
    assert adapters_for(strategy, state, 0, 0) == []
    lost = strategy.on_state_lost(state, 0)
    assert adapters_for(strategy, lost, 0, 0) == ["adapters/1/0", "adapters/2/0"]


def test_an_adapter_belongs_to_the_task_at_which_its_client_stood():
    strategy = server()
    ahead = replace(update(adapter=[[1, 0]] * 3), stage=stage(4, task=5))
    updates = {0: ahead, 1: update(adapter=[[2, 0]] * 3)}
    new = strategy.combine(start(strategy), stage(7, task=1), updates)
    assert {g for g in new if g.startswith("adapters/")} == {
        "adapters/0/5",
        "adapters/1/1",
    }


@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        ({"adapter_density": 1.5}, r"adapter_density: got 1\.5"),
        ({"adapter_density": -0.1}, r"adapter_density: got -0\.1"),
        ({"attention/1/0": -1.0}, r"attention/1/0: got -1\.0"),
        ({"attention/9/0": 1.0}, "for one of 1 adapters"),
    ],
)
def test_weights_and_densities_that_are_none_are_refused(metrics, sentence):
    with pytest.raises(WireError, match=sentence):
        check_metrics(metrics, {"1/0"})


def test_an_adapter_that_lacks_a_tensor_is_refused():
    strategy = server()
    whole = update(adapter=[[1, 0]] * 3).payload

    def changed(**groups):
        return Update({**whole, **groups}, 1)

    strategy.check_update(start(strategy), changed())
    with pytest.raises(WireError, match=r"adapters: tensors .* are missing"):
        strategy.check_update(start(strategy), changed(adapters={}))
    with pytest.raises(WireError, match=r"groups .* expected base and adapters"):
        strategy.check_update(start(strategy), changed(heads={}))


# ---- what a run's end says


def table_of(*densities):
    values = {f"0/{task}": (density,) for task, density in enumerate(densities)}
    table = Table(title="", rows="", columns=("density",), values=values)
    return {"adapters": table}


@pytest.mark.parametrize(
    ("densities", "params", "said"),
    [
        ((0.2, 0.0, 0.0), {}, "2 of 3 adapters ended empty"),
        ((0.0,), {"lambda1": 0.02}, "strategy.lambda1 was 0.02, and a tenth"),
        ((0.7, 0.4), {"adapter_bits": 32}, "1 of 2 adapters ended with more than half"),
        ((0.7,), {"adapter_bits": 32}, "strategy.adapter_bits = 5"),
        ((0.7, 0.9), {}, ""),
        ((0.5, 0.1), {"adapter_bits": 32}, ""),
    ],
)
def test_adapters_that_are_empty_or_full_are_named_with_what_mends_them(
    densities, params, said
):
    found = server(**params).advice(table_of(*densities))
    assert said in found
    assert bool(said) is bool(found)


def test_without_a_finished_task_there_is_no_advice():
    assert not server().advice({})
