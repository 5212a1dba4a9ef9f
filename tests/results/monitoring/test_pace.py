"""What is foretold of a run whose rounds take times of our own."""

import pytest

from fcl_flower.results.monitoring.pace import Pace


def every(rounds):
    return lambda number: number % rounds == 0


def foretold(seconds, tasks, tested=lambda number: False, shown=None, running=0.0):
    """Return what is left after the first ``shown`` rounds of a run."""
    pace = Pace(len(seconds), tasks, tested)
    for number, took in enumerate(seconds[:shown], start=1):
        pace.add(number, took)
    return pace.left(running)


def test_nothing_is_foretold_before_a_round_is_finished():
    assert foretold([1.0] * 4, 2, shown=0) is None


@pytest.mark.parametrize(("shown", "left"), [(1, 35), (3, 25), (7, 5), (8, 0)])
def test_rounds_that_take_the_same_are_counted(shown, left):
    assert foretold([5.0] * 8, 2, shown=shown) == pytest.approx(left)


def test_the_time_in_a_round_is_no_longer_left_and_no_more_than_the_round():
    seconds = [5.0] * 4
    assert foretold(seconds, 1, shown=1, running=2) == pytest.approx(13)
    assert foretold(seconds, 1, shown=1, running=60) == pytest.approx(10)
    assert foretold(seconds, 1, shown=4, running=60) == pytest.approx(0)


def test_the_running_round_counts_with_its_test():
    seconds = [10, 10, 12, 10, 10, 14]
    left = foretold(seconds, 2, every(3), shown=5, running=60)
    assert left == pytest.approx(0)
    # 10 s and a test on two tasks, each of half of what the first took.
    assert foretold(seconds, 2, every(3), shown=5, running=11) == pytest.approx(1)


def test_tests_on_all_tasks_so_far_are_foretold_from_the_first():
    # A test on one task takes 2 s: 4 s after the second, 6 s after the third.
    seconds = [10, 10, 12, 10, 10, 14, 10, 10, 16]
    # Half of the first may have been loading: 2 + 3 s are left of such tests.
    assert foretold(seconds, 3, every(3), shown=3) == pytest.approx(65)
    assert foretold(seconds, 3, every(3), shown=4) == pytest.approx(55)
    assert foretold(seconds, 3, every(3), shown=6) == pytest.approx(36)
    assert foretold(seconds, 3, every(3), shown=7) == pytest.approx(26)


def test_what_the_first_test_loads_does_not_count_once_there_is_a_second():
    seconds = [10, 10, 60, 10, 10, 14, 10, 10, 16]
    assert foretold(seconds, 3, every(3), shown=6) == pytest.approx(36)


def test_all_tests_of_the_only_task_count():
    seconds = [4, 7, 4, 9, 4, 8]
    assert foretold(seconds, 1, every(2), shown=4) == pytest.approx(12)


def test_a_test_takes_no_time_rather_than_less_than_none():
    assert foretold([10, 10, 7, 1, 1, 1], 2, every(3), shown=3) == pytest.approx(30)


def test_rounds_of_which_each_is_tested_are_taken_whole():
    assert foretold([6, 6, 6, 6], 2, every(1), shown=2) == pytest.approx(12)


def test_between_tests_of_hidden_concepts_all_rounds_are_alike():
    # One task of six rounds, tested after every second one for 3 s.
    seconds = [4, 7, 4, 7, 4, 7]
    assert foretold(seconds, 1, every(2), shown=2) == pytest.approx(16 + 2 * 1.5)
    assert foretold(seconds, 1, every(2), shown=4) == pytest.approx(11)


def test_what_the_first_round_loads_does_not_count():
    seconds = [100, 10, 10, 10]
    # It counts for twice the second at the most: a mean of 15.
    assert foretold(seconds, 1, shown=2) == pytest.approx(30)
    assert foretold([15, 10, 10, 10], 1, shown=2) == pytest.approx(25)
    assert foretold([15, 10, 10, 10], 1, shown=3) == pytest.approx(35 / 3)
    # The second may be another kind of round, here one with a test.
    tested = foretold([100, 12, 10, 13, 10, 13], 3, every(2), shown=2)
    assert tested == pytest.approx(4 * 24)
    # The third is not held against the first once more.
    assert foretold([100, 10, 1, 1], 1, shown=3) == pytest.approx(31 / 3)


def test_from_the_second_task_on_the_first_says_little():
    # As FedWeIT: from the second on there are adapters of others.
    seconds = [10] * 5 + [20] * 20
    assert foretold(seconds, 5, shown=6) == pytest.approx(19 * (20 + 10) / 2)
    assert foretold(seconds, 5, shown=10) == pytest.approx(15 * (5 * 20 + 10) / 6)
    assert foretold(seconds, 5, shown=15) == pytest.approx(200)


def test_growth_from_the_second_task_on_is_taken_on():
    # 10, 12, 14 and so on: two tasks make a fifth of it count, three a half.
    seconds = [float(10 + 2 * task) for task in range(6) for _ in range(4)]
    two = [t * 0.4 for t in (1, 2, 3)]
    level = (4 * 14 + 12) / 5
    assert foretold(seconds, 6, shown=12) == pytest.approx(
        4 * sum(level + more for more in two)
    )
    level = (4 * 16 + 14) / 5
    assert foretold(seconds, 6, shown=16) == pytest.approx(
        4 * sum(level + more for more in (1, 2))
    )


def test_no_round_is_foretold_to_take_less_than_no_time():
    seconds = [30.0, 30, 20, 20, 1, 1] + [1] * 20
    assert foretold(seconds, 13, shown=6) > 0


def growing(tasks, rounds, step, growth, test):
    """Return the times of a run whose training and tests grow with the tasks."""
    return [
        8 + (step if task else 0) + growth * task + (test * (task + 1)) * (r == rounds)
        for task in range(tasks)
        for r in range(1, rounds + 1)
    ]


@pytest.mark.parametrize(
    ("step", "growth", "test"), [(0, 0, 0), (0, 0, 2), (4, 0, 0), (0, 0.4, 1)]
)
def test_after_the_first_task_the_end_is_right_within_a_quarter(step, growth, test):
    seconds = growing(8, 5, step, growth, test)
    for shown in range(6, 40):
        left = foretold(seconds, 8, every(5), shown=shown)
        assert left == pytest.approx(sum(seconds[shown:]), rel=0.25)
