"""The sample memory: how much of what stays, and in which form."""

from collections import Counter

import numpy as np
import pytest
import torch

from fcl_flower.algorithms.exemplars import contains, remember_fraction, replay_samples
from fcl_flower.data.examples import Examples, concat


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


def test_everything_stays_with_a_share_of_one():
    given = examples({0: 2, 1: 5})
    memory = remember_fraction({}, given, 1.0, 0, task=0)
    assert memory["x"][:, 0].tolist() == list(range(7))
    np.testing.assert_array_equal(memory["y"], given.y)


def test_a_sample_keeps_its_label_and_comes_once():
    given = examples({0: 30, 1: 30})
    memory = remember_fraction({}, given, 0.5, 7, task=0)
    drawn = memory["x"][:, 0].astype(int)
    assert len(set(drawn)) == 30
    np.testing.assert_array_equal(memory["y"], given.y[drawn])


def test_the_buffer_stays_within_its_fraction_over_ten_tasks():
    rng = np.random.default_rng(0)
    memory, seen, labels = {}, 0, 0
    for task in range(10):
        counts = {2 * task: int(rng.integers(5, 400)), 2 * task + 1: 100}
        memory = remember_fraction(
            memory, examples(counts, start=seen), 0.03, task, task=task
        )
        seen, labels = seen + sum(counts.values()), labels + 2
        # Each task's share is rounded once.
        assert len(memory["y"]) <= max(0.03 * seen, labels) + (task + 1) / 2
        drawn = classes(memory)
        assert len(drawn) == labels
        assert abs(drawn[2 * task] - drawn[2 * task + 1]) <= 1
        assert len(set(memory["x"][:, 0])) == len(memory["y"])
    assert len(memory["y"]) > 0.02 * seen


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


def test_a_task_without_samples_changes_nothing():
    first = remember_fraction({}, examples({0: 20}), 0.1, 0, task=0)
    none = Examples(torch.empty(0, 3), torch.empty(0, dtype=torch.int64))
    assert remember_fraction(first, none, 0.1, 0, task=1) is first
    assert remember_fraction({}, none, 0.1, 0, task=1) == {}


def test_the_draw_depends_on_the_seed_alone():
    given = examples({0: 50, 1: 50})
    one, same, other = (remember_fraction({}, given, 0.1, s, task=0) for s in (3, 3, 4))
    np.testing.assert_array_equal(one["x"], same["x"])
    assert not np.array_equal(one["x"], other["x"])


def test_adding_leaves_the_old_memory_as_it_was():
    first = remember_fraction({}, words([[5, 6]]), 1.0, 0, task=0)
    before = {name: values.copy() for name, values in first.items()}
    remember_fraction(first, words([[1, 2, 3]]), 1.0, 0, task=1)
    for name, values in before.items():
        np.testing.assert_array_equal(first[name], values)


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


def test_images_come_back_as_they_were():
    x = torch.rand(4, 1, 8, 8)
    memory = remember_fraction(
        {}, Examples(x, torch.tensor([0, 1, 0, 1])), 1.0, 0, task=0
    )
    found = replay_samples(memory, "cpu")
    assert torch.equal(found.x, x)
    assert found.y.tolist() == [0, 1, 0, 1]
    assert found.y.dtype == torch.int64


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
