"""What chooses the shrinkage where each task has a head of its own."""

import numpy as np
import pytest
from analytic_cases import C, D, draw, sums

from strategies.analytic import heads as module
from strategies.analytic.heads import (
    LEANING,
    PENALTIES,
    SHRINKAGES,
    UNKNOWN,
    HeadSums,
    chosen,
    of_each,
    squared_errors,
    unexplained,
)


def task(classes, train=4, valid=9, seed=0):
    return HeadSums(
        sums(*draw(classes, train, seed)), sums(*draw(classes, valid, seed + 50))
    )


TASKS = [task((0, 1, 2)), task((3, 4, 5), seed=1), task((1, 0, 4), seed=2)]
ALONE = [{} for _ in TASKS]


def lost(held, owners, same=ALONE):
    """Return what each candidate leaves unexplained on each task's own samples."""
    train = [one.train for one in held]
    return np.array(
        [
            unexplained(cross, covariance, one.valid, SHRINKAGES)
            for one, (cross, covariance) in zip(
                held, of_each(train, owners, same), strict=True
            )
        ]
    )


def test_what_the_logits_leave_unexplained_is_that_of_a_regression_on_them():
    (h, y), (v, z) = draw((0, 1, 2)), draw((0, 1, 2), each=7, seed=10)
    train = sums(h, y)
    spread = np.cov(h.T)
    (found,) = unexplained(train.cross, spread, sums(v, z), [0.3])
    shrunk = 0.7 * spread + 0.3 * np.trace(spread) / D * np.eye(D)
    away = train.means - train.means.mean(0)
    f = v @ np.linalg.solve(shrunk, away.T)
    f = (f - f.mean(0)).ravel()
    target = np.eye(C)[z]
    target = (target - target.mean(0)).ravel()
    slope = (f @ target) / (f @ f)
    share = np.square(target - slope * f).sum() / np.square(target).sum()
    assert found == pytest.approx(share)


def test_logits_that_point_the_wrong_way_explain_nothing():
    train, valid = sums(*draw((0, 1, 2))), sums(*draw((1, 2, 0), seed=4))
    assert unexplained(train.cross, np.eye(D), valid, [0.1]) == [1.0]


def test_a_task_chooses_with_the_others_of_its_client_and_nobody_else():
    owners = [0, 0, 1]
    table = lost(TASKS, owners)
    of_client = table[:2].mean(0)
    expected = [
        SHRINKAGES[int(np.argmin(27 * own + LEANING * others))]
        for own, others in zip(table, [of_client, of_client, table[2]], strict=True)
    ]
    assert chosen(TASKS, "discriminant", owners, ALONE) == expected


def loss_by_task(monkeypatch, *best):
    """Make `unexplained` prefer a given candidate for each task in turn."""
    turns = iter(best)

    def fake(cross, covariance, valid, shrinkages):
        found = next(turns)
        return [0.01 * abs(place - found) for place in range(len(shrinkages))]

    monkeypatch.setattr(module, "unexplained", fake)


def test_many_validation_samples_outvote_the_client_and_few_do_not(monkeypatch):
    tasks = [task((0, 1, 2), valid=40), *[task((0, 1, 2), valid=3)] * 2]
    loss_by_task(monkeypatch, 9, 2, 2)
    assert chosen(tasks, "discriminant", [0] * 3, ALONE) == [
        SHRINKAGES[9],
        SHRINKAGES[2],
        SHRINKAGES[2],
    ]


def test_another_client_does_not_vote(monkeypatch):
    loss_by_task(monkeypatch, 9, 2, 2)
    assert chosen(TASKS, "discriminant", [0, 1, 1], ALONE)[0] == SHRINKAGES[9]


def test_a_task_without_validation_samples_takes_what_its_client_does(monkeypatch):
    tasks = [task((0, 1, 2), valid=0), task((0, 1, 2)), task((0, 1, 2), valid=0)]
    loss_by_task(monkeypatch, 4)
    assert chosen(tasks, "discriminant", [0, 0, 1], ALONE) == [
        SHRINKAGES[4],
        SHRINKAGES[4],
        UNKNOWN,
    ]


def test_joined_classes_are_judged_by_the_samples_of_all():
    """The shrinkage is that of the head that is returned, not of one alone."""
    same = [{2: [(0, 1), (1, 0)]}, {}, {0: [(1, 0), (0, 1)]}]
    apart, joined = lost(TASKS, [0, 1, 2]), lost(TASKS, [0, 1, 2], same)
    assert np.abs(apart[0] - joined[0]).max() > 1e-3
    # The covariance of everybody is the same, and task 1 shares nothing.
    np.testing.assert_allclose(apart[1], joined[1], rtol=1e-12)
    found = chosen(TASKS, "discriminant", [0, 1, 2], same)
    assert found == [SHRINKAGES[int(np.argmin(row))] for row in joined]


def test_a_class_without_samples_has_no_say_in_the_middle():
    h, y = draw((0, 1, 2))
    two = sums(h[y < 2], y[y < 2])
    valid = sums(h[y < 2][::5], y[y < 2][::5])
    padded = np.concatenate([two.cross[:2], np.zeros((1, D + 1))])
    assert two.cross == pytest.approx(padded)
    (found,) = unexplained(two.cross, np.eye(D), valid, [0.3])
    moved = two.cross.copy()
    moved[:2, :-1] += 5 * moved[:2, -1:]  # a shift of all classes changes nothing
    assert unexplained(moved, np.eye(D), valid, [0.3]) == [pytest.approx(found)]


def test_ridge_regressions_of_several_tasks_choose_as_discriminants_do():
    table = np.array([squared_errors(*one, PENALTIES) for one in TASKS])
    expected = [
        PENALTIES[int(np.argmin(27 * own + LEANING * table.mean(0)))] for own in table
    ]
    assert chosen(TASKS, "ridge", [0, 0, 0], ALONE) == expected
    assert len(set(expected)) > 1 or expected[0] not in (PENALTIES[0], PENALTIES[-1])
