"""Heads in closed form, against scikit-learn on the samples themselves."""

import numpy as np
import pytest
from analytic_cases import CLASSES, WIDTH, samples
from scipy.stats import multivariate_normal
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge

from strategies.analytic.heads import (
    NEVER,
    PENALTIES,
    SHRINKAGES,
    UNKNOWN,
    HeadSums,
    discriminants,
    likelihoods,
    ridges,
    solve,
    squared_errors,
)
from strategies.analytic.sums import add_up, gram


def sums(h, y, classes=CLASSES):
    found = [gram(h, y, classes)] if len(y) else []
    return add_up(found, classes, WIDTH)


def alone(one, shrinkage):
    """Return the discriminant of one head that nobody shares anything with."""
    (head,) = discriminants([one], [shrinkage], [0], [{}])
    return head


def relative(found, expected):
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("shrinkage", [0.001, 0.1, 0.9, 1.0])
def test_a_discriminant_is_scikit_learns(shrinkage):
    h, y = samples(80)
    head = alone(sums(h, y), shrinkage)
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(h, y)
    assert relative(head.weight, theirs.coef_) < 1e-9
    assert relative(head.bias, theirs.intercept_) < 1e-9


@pytest.mark.parametrize("penalty", [1e-3, 0.1, 10.0])
def test_a_ridge_regression_is_scikit_learns(penalty):
    h, y = samples(80)
    centred = h - h.mean(0)
    alpha = penalty * np.trace(centred.T @ centred) / WIDTH
    (head,) = ridges([sums(h, y)], [penalty])
    theirs = Ridge(alpha=alpha).fit(h, np.eye(CLASSES)[y])
    assert relative(head.weight, theirs.coef_) < 1e-9
    assert relative(head.bias, theirs.intercept_) < 1e-9


def test_a_class_without_samples_is_never_predicted():
    h, y = samples(40)
    y[y == 2] = 1
    for head in (
        alone(sums(h, y), 0.1),
        ridges([sums(h, y)], [0.1])[0],
    ):
        assert head.bias[2] == NEVER
        assert (head.weight[2] == 0).all()
        assert ((h @ head.weight.T + head.bias).argmax(1) != 2).all()


def test_the_likelihood_is_that_of_the_validation_samples_in_the_gaussians():
    (h, y), (v, z) = samples(60), samples(30, seed=1)
    train = sums(h, y)
    found = likelihoods(train, sums(v, z), [0.01, 0.3])
    for shrinkage, ours in zip([0.01, 0.3], found, strict=True):
        covariance = (1 - shrinkage) * train.within / len(y)
        covariance += (
            shrinkage * np.trace(train.within) / len(y) / WIDTH * np.eye(WIDTH)
        )
        direct = np.mean(
            [
                multivariate_normal(train.means[label], covariance).logpdf(one)
                for one, label in zip(v, z, strict=True)
            ]
        )
        assert ours - WIDTH / 2 * np.log(2 * np.pi) == pytest.approx(direct)


def test_the_squared_error_is_that_on_the_validation_samples_less_a_constant():
    (h, y), (v, z) = samples(60), samples(30, seed=1)
    penalties = [0.01, 0.1, 10.0]
    found = squared_errors(sums(h, y), sums(v, z), penalties)
    direct = []
    for penalty in penalties:
        (head,) = ridges([sums(h, y)], [penalty])
        direct.append(
            np.square(v @ head.weight.T + head.bias - np.eye(CLASSES)[z]).sum(1).mean()
        )
    np.testing.assert_allclose(np.diff(found), np.diff(direct), rtol=1e-9)


@pytest.mark.parametrize(
    ("kind", "judge", "candidates"),
    [
        ("discriminant", lambda h, c: [-v for v in likelihoods(*h, c)], SHRINKAGES),
        ("ridge", lambda h, c: squared_errors(*h, c), PENALTIES),
    ],
)
def test_the_penalty_is_the_candidate_that_validation_samples_like_best(
    kind, judge, candidates
):
    (h, y), (v, z) = samples(20), samples(200, seed=1)
    stretch = np.array([1, 1, 0.5, 0.5, 0.1, 0.1])
    held = HeadSums(sums(h * stretch, y), sums(v * stretch, z))
    _, (penalty,), _ = solve([held], kind, 0.0)
    scores = judge(held, candidates)
    assert penalty == candidates[int(np.argmin(scores))]
    # Neither end: there is something to choose.
    assert candidates[0] < penalty < candidates[-1]


def test_a_given_penalty_is_taken_and_without_validation_samples_a_usual_one():
    h, y = samples(40)
    held = HeadSums(sums(h, y), sums(h[:0], y[:0]))
    assert solve([held], "ridge", 0.25)[1] == [0.25]
    assert solve([held], "ridge", 0.0)[1] == [UNKNOWN]


@pytest.mark.parametrize("kind", ["discriminant", "ridge"])
def test_the_head_is_of_validation_samples_too_once_the_penalty_is_chosen(kind):
    (h, y), (v, z) = samples(40), samples(40, seed=1)
    held = HeadSums(sums(h, y), sums(v, z))
    (head,), (penalty,), _ = solve([held], kind, 0.0)
    both = sums(np.concatenate([h, v]), np.concatenate([y, z]))
    expected = (
        alone(both, penalty) if kind == "discriminant" else ridges([both], [penalty])[0]
    )
    np.testing.assert_allclose(head.weight, expected.weight, rtol=1e-9)


def test_a_covariance_is_drawn_towards_the_clients_and_that_towards_everybodys():
    drawn = [samples(40), samples(12, seed=1), samples(25, seed=2)]
    held = [sums(h, y) for h, y in drawn]
    within = [one.within for one in held]
    sizes = [40, 12, 25]
    everybody = (sum(within) + WIDTH * sum(within) / 77) / (77 + WIDTH)
    first = (within[0] + within[1] + WIDTH * everybody) / (52 + WIDTH)
    second = (within[2] + WIDTH * everybody) / (25 + WIDTH)
    heads = discriminants(held, [0.1] * 3, [4, 4, 9], [{}, {}, {}])
    for place, prior in enumerate([first, first, second]):
        covariance = (within[place] + WIDTH * prior) / (sizes[place] + WIDTH)
        shrunk = 0.9 * covariance + 0.1 * np.trace(covariance) / WIDTH * np.eye(WIDTH)
        weight = held[place].means @ np.linalg.inv(shrunk)
        np.testing.assert_allclose(heads[place].weight, weight, rtol=1e-9)
        shares = np.log(held[place].counts / sizes[place])
        bias = shares - (held[place].means * weight).sum(1) / 2
        np.testing.assert_allclose(heads[place].bias, bias, rtol=1e-9)


def test_one_sample_is_enough_for_a_head():
    h, y = samples(1)
    for kind in ("discriminant", "ridge"):
        held = HeadSums(sums(h, y), sums(h[:0], y[:0]))
        (head,), *_ = solve([held], kind, 0.0)
        logits = h @ head.weight.T + head.bias
        assert logits.argmax() == y[0]
        assert np.isfinite(logits).all()


def test_ridge_regressions_of_several_heads_know_nothing_of_each_other():
    (h, y), (v, z) = samples(40), samples(12, seed=1)
    together, apart = (
        ridges([sums(h, y), sums(v, z)], [0.1, 0.1]),
        ridges([sums(v, z)], [0.1]),
    )
    np.testing.assert_array_equal(together[1].weight, apart[0].weight)
