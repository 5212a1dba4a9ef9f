"""The time that several runs will take, by a clock of our own."""

import pytest

from fcl_flower.cli.tables import Estimate


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def finish(estimate, clock, run, seconds):
    estimate.progress(run, 0.0)
    clock.now += seconds
    estimate.progress(run, 1.0)
    estimate.over(run)


def test_nothing_is_known_before_a_round_is_done(clock):
    estimate = Estimate(["a", "a"], 1, clock)
    assert estimate.left() is None
    estimate.progress(0, 0.0)
    clock.now += 7
    assert estimate.left() is None


def test_the_share_of_the_rounds_says_what_a_run_takes(clock):
    estimate = Estimate(["a", "a", "a"], 1, clock)
    estimate.progress(0, 0.0)
    clock.now += 10
    estimate.progress(0, 0.25)
    # 40 s a run, of which 10 are over.
    assert estimate.left() == pytest.approx(30 + 40 + 40)
    clock.now += 6
    assert estimate.left() == pytest.approx(24 + 40 + 40)


def test_a_finished_run_of_the_same_variant_counts_before_the_share_of_rounds(clock):
    estimate = Estimate(["a", "b", "a"], 1, clock)
    finish(estimate, clock, 0, 100)
    estimate.progress(2, 0.0)
    clock.now += 10
    estimate.progress(2, 0.5)  # 20 s at this pace
    assert estimate.left() == pytest.approx(90 + 100)


def test_a_variant_that_has_not_begun_takes_what_the_others_did(clock):
    estimate = Estimate(["a", "b", "c"], 1, clock)
    finish(estimate, clock, 0, 100)
    assert estimate.left() == pytest.approx(200)
    finish(estimate, clock, 1, 20)
    assert estimate.left() == pytest.approx(60)


def test_finished_runs_of_a_variant_are_averaged(clock):
    estimate = Estimate(["a", "b", "a", "a"], 1, clock)
    finish(estimate, clock, 0, 100)
    finish(estimate, clock, 1, 1)
    finish(estimate, clock, 2, 200)
    assert estimate.left() == pytest.approx(150)


def test_runs_at_the_same_time_share_what_is_left(clock):
    estimate = Estimate(["a", "a", "a", "a", "a"], 2, clock)
    finish(estimate, clock, 0, 100)
    assert estimate.left() == pytest.approx(200)
    for run in (1, 2, 3):
        finish(estimate, clock, run, 100)
    assert estimate.left() == pytest.approx(100)  # one cannot be shared


def test_a_resumed_run_has_only_its_own_rounds_to_do(clock):
    estimate = Estimate(["a", "a"], 1, clock)
    estimate.progress(0, 0.5)
    clock.now += 10
    estimate.progress(0, 0.6)
    # A tenth takes 10 s: 40 s for this one, 100 s for a whole one.
    assert estimate.left() == pytest.approx(40 + 100)
    clock.now += 40
    estimate.progress(0, 1.0)
    estimate.over(0)
    assert estimate.left() == pytest.approx(100)


def test_a_run_that_takes_longer_than_expected_has_nothing_left(clock):
    estimate = Estimate(["a", "a"], 1, clock)
    finish(estimate, clock, 0, 10)
    estimate.progress(1, 0.0)
    clock.now += 15
    assert estimate.left() == 0


def test_a_failed_run_is_over_and_says_nothing_of_the_others(clock):
    estimate = Estimate(["a", "a"], 1, clock)
    estimate.progress(0, 0.0)
    estimate.over(0)
    assert estimate.left() is None
    finish(estimate, clock, 1, 10)
    assert estimate.left() == 0
    estimate = Estimate(["a", "a"], 1, clock)
    finish(estimate, clock, 0, 10)
    estimate.progress(1, 0.0)
    estimate.over(1)
    assert estimate.left() == 0
