"""Exemplars: how many stay, which, and in which form."""

from collections import Counter

import numpy as np
import pytest
import torch

from fcl_flower.algorithms.exemplars import (
    contains,
    drawn_order,
    herding_order,
    leverage_scores,
    remember,
    remember_fraction,
    replay_samples,
    without_task,
)
from fcl_flower.algorithms.params import MemoryParams
from fcl_flower.config.parsing import validate_params
from fcl_flower.core.errors import ConfigError, ContractError
from fcl_flower.data.examples import Examples, concat
from strategies.fedcbdr import FedCbdrParams
from strategies.replay import ReplayParams


def examples(counts, width=3, start=0):
    """Return ``counts[label]`` samples of each label; the first number tells them."""
    y = torch.tensor([label for label, n in counts.items() for _ in range(n)])
    x = torch.zeros(len(y), width)
    x[:, 0] = torch.arange(start, start + len(y))
    return Examples(x, y)


def words(rows):
    return Examples(torch.tensor(rows), torch.arange(len(rows)))


def classes(memory):
    return Counter(memory["y"].tolist())


def params(samples=6, policy="balanced", **more):
    return MemoryParams(memory_samples=samples, memory_policy=policy, **more)


def drawn(memory):
    return memory["x"][:, 0].astype(int).tolist()


# ---- budget


def test_old_classes_shrink_and_those_that_stay_were_there_before():
    memory = remember({}, examples({0: 9, 1: 9}), params(12), 1, task=0)
    assert classes(memory) == {0: 6, 1: 6}
    later = remember(memory, examples({2: 9, 3: 9}, start=100), params(12), 2, task=1)
    assert classes(later) == {0: 3, 1: 3, 2: 3, 3: 3}
    of_first = [number for number in drawn(later) if number < 100]
    assert set(of_first) < set(drawn(memory))
    # The first three in the order of the class stay, not any three.
    for label in (0, 1):
        rows = memory["y"] == label
        best = np.argsort(memory["rank"][rows])[:3]
        kept = memory["x"][rows][best, 0].astype(int).tolist()
        assert set(kept) <= set(of_first)


def test_the_budget_is_used_up_where_classes_do_not_divide_it():
    memory = remember({}, examples({4: 9, 6: 9, 8: 9}), params(8), 1, task=0)
    assert classes(memory) == {4: 3, 6: 3, 8: 2}
    memory = remember({}, examples({4: 1, 6: 9, 8: 9}), params(7), 1, task=0)
    assert classes(memory) == {4: 1, 6: 3, 8: 3}


@pytest.mark.parametrize("policy", ["balanced", "herding", "reservoir", "leverage"])
def test_each_class_keeps_its_number_however_many_classes_there_are(policy):
    few = MemoryParams(memory_per_class=3, memory_policy=policy)
    features = np.random.default_rng(0).normal(size=(11, 4))
    memory = remember({}, examples({0: 9, 1: 2}), few, 1, 0, features)
    assert classes(memory) == {0: 3, 1: 2}, "what one has not is left to no other"
    more = features[:9]
    later = remember(memory, examples({2: 9}, start=100), few, 2, 1, more)
    assert classes(later) == {0: 3, 1: 2, 2: 3}
    assert set(drawn(later)) > set(drawn(memory)), "old classes do not shrink"
    again = remember(later, examples({0: 5}, start=200), few, 3, 2, more[:5])
    assert classes(again) == {0: 3, 1: 2, 2: 3}, "a class comes back"


def test_a_class_keeps_the_first_of_its_herding():
    few = MemoryParams(memory_per_class=2, memory_policy="herding")
    features = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [5.0, -1.0]])
    memory = remember({}, examples({0: 4}), few, 1, task=0, features=features)
    assert drawn(memory) == sorted(herding_order(features, 2).tolist())


def test_bytes_bound_a_number_for_each_class_too():
    few = MemoryParams(memory_per_class=5, memory_bytes=60)
    memory = remember({}, examples({0: 9, 1: 9}), few, 1, task=0)
    assert classes(memory) == {0: 2, 1: 2}  # 15 bytes each


@pytest.mark.parametrize(
    ("kind", "given", "sentence"),
    [
        (
            MemoryParams,
            {"memory_per_class": 20, "memory_samples": 200},
            "strategy.memory_samples: got 200, expected none beside "
            "strategy.memory_per_class 20: set one of the two",
        ),
        (
            ReplayParams,
            {"memory_per_class": 20},
            "strategy.memory_per_class: got 20, expected none unless strategy.budget "
            "is 'fixed', without which it has no effect",
        ),
    ],
)
def test_two_bounds_on_a_memory_are_refused(kind, given, sentence):
    with pytest.raises(ConfigError) as problem:
        validate_params(kind, given)
    assert str(problem.value) == sentence


@pytest.mark.parametrize("policy", ["balanced", "reservoir"])
def test_a_task_counts_once_whatever_is_repeated(policy):
    chosen = params(6, policy)
    first = remember({}, examples({0: 9, 1: 9}), chosen, 1, task=0)
    assert remember(first, examples({0: 9, 1: 9}), chosen, 1, task=0) is first
    second = remember(first, examples({2: 9}, start=50), chosen, 2, task=1)
    assert remember(second, examples({2: 9}, start=50), chosen, 2, task=1) is second


def test_samples_that_lost_a_task_of_theirs_lose_it_again():
    # None of a later task may have stayed in a reservoir: asking again changes nothing.
    chosen = params(1, "reservoir")
    memory = remember({}, examples({0: 500}), chosen, 1, task=0)
    for seed in range(5):
        after = remember(memory, examples({1: 1}, start=900), chosen, seed, task=1)
        if 1 in after["task"]:
            continue
        again = remember(after, examples({1: 1}, start=900), chosen, seed, task=1)
        assert drawn(again) == drawn(after) == drawn(memory)
        break
    else:
        raise AssertionError("no draw in which the newcomer is not chosen")


def test_nothing_stays_of_nothing():
    none = Examples(torch.empty(0, 3), torch.empty(0, dtype=torch.int64))
    assert remember({}, none, params(), 1, task=0) == {}
    memory = remember({}, examples({0: 9}), params(), 1, task=0)
    assert remember(memory, none, params(), 1, task=1) is memory
    empty = remember({}, examples({0: 9}), params(0), 1, task=0)
    assert len(replay_samples(empty, "cpu").y) == 0


def test_a_budget_in_bytes_is_what_is_stored():
    given = examples({0: 90, 1: 90})
    for limit in (100, 1000, 1031):
        memory = remember({}, given, params(500, memory_bytes=limit), 1, task=0)
        stored = sum(values.nbytes for values in memory.values())
        row = stored // len(memory["y"])
        assert stored <= limit < stored + row
        # three float32, and one byte for the label, the task and the rank
        assert row == 15
    extras = {"logits": np.zeros((180, 4), np.float32)}
    wider = remember(
        {}, given, params(500, memory_bytes=1000), 1, task=0, extras=extras
    )
    assert len(wider["y"]) == 1000 // 31


def test_what_is_kept_of_a_sample_stays_with_it():
    given = examples({0: 9, 1: 9})
    numbers = given.x[:, 0].numpy()
    memory = remember(
        {}, given, params(6), 1, task=0, extras={"logits": numbers[:, None] * 2}
    )
    later = remember(
        memory,
        examples({2: 4}, start=40),
        params(6),
        2,
        task=1,
        extras={"logits": (np.arange(40, 44) * 2.0)[:, None]},
    )
    np.testing.assert_array_equal(later["logits"][:, 0], later["x"][:, 0] * 2)
    old = without_task(later, 1)
    assert set(drawn(old)) < set(drawn(memory))
    assert (old["logits"][:, 0] == old["x"][:, 0] * 2).all()
    with pytest.raises(ContractError, match=r"expected .*'logits'"):
        remember(later, examples({3: 4}), params(6), 3, task=2)


# ---- policies


def test_the_draw_of_a_balanced_memory_depends_on_the_seed_alone():
    given = examples({0: 50, 1: 50})
    one, same, other = (remember({}, given, params(), s, task=0) for s in (3, 3, 4))
    assert drawn(one) == drawn(same) != drawn(other)


@pytest.mark.parametrize("policy", ["balanced", "herding"])
def test_the_seed_draws_which_classes_stay_in_too_small_a_memory(policy):
    given, chosen = examples(dict.fromkeys(range(8), 3)), params(3, policy)
    features = np.random.default_rng(0).normal(size=(24, 4))
    kept = Counter()
    for seed in range(40):
        memory = remember({}, given, chosen, seed, task=0, features=features)
        again = remember(memory, given, chosen, seed, task=0, features=features)
        assert drawn(again) == drawn(memory)
        assert sorted(classes(memory).values()) == [1, 1, 1]
        kept.update(classes(memory).keys())
    # 15 times each of the eight.
    assert len(kept) == 8
    assert min(kept.values()) > 5


def test_a_memory_that_has_no_room_for_all_classes_says_so():
    assert params(8).remarks(8, 2) == params(0).remarks(8, 2) == {}
    said = params(3).remarks(8, 2)["memory"]
    assert said.startswith("3 samples for 8 classes")
    assert "5 classes have none" in said
    assert ReplayParams().remarks(999, 2) == {}
    assert ReplayParams(memory_samples=3, budget="fixed").remarks(8, 2)
    assert FedCbdrParams(memory_samples=3).remarks(8, 2)
    assert FedCbdrParams(memory_samples=4).remarks(8, 2) == {}


def test_a_reservoir_keeps_each_sample_with_the_same_probability():
    counts = Counter()
    for seed in range(400):
        memory = {}
        for task in range(4):
            given = examples({task: 10}, start=10 * task)
            chosen = params(8, "reservoir")
            memory = remember(memory, given, chosen, 4 * seed + task, task=task)
        assert len(memory["y"]) == 8
        counts.update(drawn(memory))
    # 400 draws of 8 among 40: 80 each, with a deviation of 8.
    assert len(counts) == 40
    assert all(abs(n - 80) < 4 * 8 for n in counts.values())
    by_task = [sum(counts[10 * t + i] for i in range(10)) for t in range(4)]
    assert all(abs(n - 800) < 100 for n in by_task)


def herded(features, count):
    """Greedy herding as Welling's update: the sample nearest in angle to w."""
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    mean, w, chosen = unit.mean(0), unit.mean(0), []
    for _ in range(count):
        scores = unit @ w
        scores[chosen] = -np.inf
        best = int(scores.argmax())
        chosen.append(best)
        w = w + mean - unit[best]
    return chosen


def test_herding_is_that_of_the_paper():
    rng = np.random.default_rng(0)
    for _ in range(5):
        features = rng.normal(size=(30, 5)) + rng.normal(size=5)
        assert herding_order(features, 12).tolist() == herded(features, 12)
    # By hand: the mean of the unit vectors is (2/3, 1/3), that of two (1/2, 1/2).
    by_hand = np.array([[0.0, 3.0], [5.0, 0.0], [1.0, 0.0]])
    assert herding_order(by_hand, 3).tolist() == [1, 0, 2]
    assert herding_order(by_hand, 2).tolist() == [1, 0]
    assert sorted(herding_order(np.zeros((4, 2)), 9)) == [0, 1, 2, 3]


def test_a_herded_memory_keeps_the_first_of_each_class():
    given = examples({0: 20, 1: 20})
    features = np.random.default_rng(1).normal(size=(40, 4)) + 1
    memory = remember({}, given, params(10, "herding"), 0, task=0, features=features)
    expected = herded(features[:20], 5) + [20 + i for i in herded(features[20:], 5)]
    assert sorted(drawn(memory)) == sorted(expected)
    more = np.random.default_rng(2).normal(size=(9, 4))
    later = remember(
        memory,
        examples({2: 9}, start=100),
        params(6, "herding"),
        0,
        task=1,
        features=more,
    )
    kept = herded(features[:20], 2) + [20 + i for i in herded(features[20:], 2)]
    kept += [100 + i for i in herded(more, 2)]
    assert sorted(drawn(later)) == sorted(kept)


@pytest.mark.parametrize("policy", ["herding", "leverage"])
def test_a_policy_that_looks_at_features_needs_some(policy):
    assert params(5, policy).looks_at_features
    assert not params(5, "reservoir").looks_at_features
    with pytest.raises(ContractError, match=f"expected some for {policy}"):
        remember({}, examples({0: 9}), params(5, policy), 0, task=0)


def test_leverage_scores_are_the_squared_rows_of_u():
    x = np.random.default_rng(0).normal(size=(12, 5))
    x[:, 4] = x[:, 0] + x[:, 1]  # of rank 4 only
    u, s, _ = np.linalg.svd(x, full_matrices=False)
    expected = (u[:, s > 1e-9] ** 2).sum(1)
    np.testing.assert_allclose(leverage_scores(x, x.T @ x), expected, atol=1e-9)
    # They add up to the rank, and halve where everybody has the same samples again.
    assert leverage_scores(x, x.T @ x).sum() == pytest.approx(4)
    np.testing.assert_allclose(leverage_scores(x, 2 * x.T @ x), expected / 2, atol=1e-9)


def test_samples_are_drawn_by_their_weights():
    weights = np.array([1.0, 3.0, 0.0, 4.0])
    first, second = Counter(), Counter()
    for seed in range(4000):
        order = drawn_order(weights, np.random.default_rng(seed)).tolist()
        assert sorted(order) == [0, 1, 2, 3]
        assert order[3] == 2  # who has no weight comes last
        first[order[0]] += 1
        second[order[0], order[1]] += 1
    for place, share in ((0, 1 / 8), (1, 3 / 8), (3, 4 / 8)):
        assert first[place] / 4000 == pytest.approx(share, abs=0.03)
    # After the third one, the first has 1 of 5.
    assert second[1, 0] / first[1] == pytest.approx(1 / 5, abs=0.04)


def test_a_memory_by_leverage_prefers_samples_that_others_do_not_have():
    given = examples({0: 20})
    features = np.tile([1.0, 0.0], (20, 1))
    features[7] = [0.0, 1.0]  # alone in its direction: a leverage of 1 beside 1/19
    chosen = [
        7
        in drawn(
            remember({}, given, params(3, "leverage"), seed, task=0, features=features)
        )
        for seed in range(60)
    ]
    # Half of what is left at each of three draws: 7 in 8 of the memories.
    assert sum(chosen) > 45


# ---- a fraction of each task


def test_a_share_of_the_samples_stays_and_classes_are_balanced():
    memory = remember_fraction({}, examples({0: 90, 1: 10, 2: 20}), 0.1, 1, task=0)
    assert classes(memory) == {0: 4, 1: 4, 2: 4}
    # 0.1 * 110 = 11: one class has one sample less.
    memory = remember_fraction({}, examples({0: 90, 1: 10, 2: 10}), 0.1, 1, task=0)
    assert sorted(classes(memory).values()) == [3, 4, 4]


def test_every_class_leaves_at_least_one_sample():
    memory = remember_fraction({}, examples({3: 2, 5: 4, 8: 1}), 0.03, 0, task=0)
    assert classes(memory) == {3: 1, 5: 1, 8: 1}


def test_a_class_with_too_few_samples_leaves_its_room_to_the_others():
    memory = remember_fraction({}, examples({0: 2, 1: 9, 2: 9}), 0.5, 0, task=0)
    assert classes(memory) == {0: 2, 1: 4, 2: 4}


def test_a_class_that_comes_again_gets_a_further_share():
    memory = remember_fraction({}, examples({0: 20, 1: 20}), 0.1, 0, task=0)
    memory = remember_fraction(
        memory, examples({1: 20, 2: 20}, start=40), 0.1, 0, task=1
    )
    assert classes(memory) == {0: 2, 1: 4, 2: 2}
    assert memory["task"].tolist() == [0] * 4 + [1] * 4


def test_what_does_not_divide_evenly_goes_to_the_class_that_has_least():
    first = remember_fraction({}, examples({0: 10, 1: 11}), 0.15, 0, task=0)
    assert sorted(classes(first).values()) == [1, 2]
    for seed in range(5):
        both = remember_fraction(first, examples({0: 10, 1: 11}), 0.15, seed, task=1)
        assert classes(both) == {0: 3, 1: 3}


def test_a_task_is_remembered_once():
    first = remember_fraction({}, examples({0: 20, 1: 20}), 0.1, 0, task=0)
    assert remember_fraction(first, examples({0: 20, 1: 20}), 0.1, 9, task=0) is first
    assert contains(first, 0)
    assert not contains(first, 1)
    assert not contains({}, 0)


# ---- form


def test_documents_are_padded_to_the_widest():
    memory = remember_fraction({}, words([[5, 6]]), 1.0, 0, task=0)
    memory = remember_fraction(memory, words([[1, 2, 3]]), 1.0, 0, task=1)
    memory = remember_fraction(memory, words([[7]]), 1.0, 0, task=2)
    x, _ = replay_samples(memory, "cpu")
    assert x.tolist() == [[5, 6, 0], [1, 2, 3], [7, 0, 0]]
    assert x.dtype == torch.int64


@pytest.mark.parametrize(
    ("largest", "dtype"), [(255, "uint8"), (256, "uint16"), (70000, "uint32")]
)
def test_word_numbers_take_the_smallest_type_that_is_exact(largest, dtype):
    memory = remember_fraction({}, words([[1, largest]]), 1.0, 0, task=0)
    assert memory["x"].dtype == dtype
    assert memory["y"].dtype == memory["task"].dtype == "uint8"
    assert replay_samples(memory, "cpu").x.tolist() == [[1, largest]]


def test_the_type_grows_with_what_is_added():
    memory = remember_fraction({}, words([[1, 255]]), 1.0, 0, task=0)
    memory = remember_fraction(memory, words([[30000, 1]]), 1.0, 0, task=300)
    assert memory["x"].dtype == memory["task"].dtype == "uint16"
    assert replay_samples(memory, "cpu").x.tolist() == [[1, 255], [30000, 1]]
    assert memory["task"].tolist() == [0, 300]


def test_one_task_can_be_left_out():
    memory = remember_fraction({}, words([[5, 6]]), 1.0, 0, task=0)
    memory = remember_fraction(memory, words([[1, 2]]), 1.0, 0, task=1)
    assert replay_samples(memory, "cpu", without=0).x.tolist() == [[1, 2]]
    assert replay_samples(memory, "cpu", without=1).x.tolist() == [[5, 6]]


def test_no_memory_joins_with_anything():
    for x in (torch.rand(2, 1, 8, 8), torch.tensor([[1, 2], [3, 4]])):
        given = Examples(x, torch.tensor([0, 1]))
        found = concat([given, replay_samples({}, "cpu")])
        assert torch.equal(found.x, x)
        assert found.x.dtype == x.dtype
        assert found.y.tolist() == [0, 1]
