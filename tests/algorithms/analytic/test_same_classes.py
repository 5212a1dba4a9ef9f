"""Which classes of different tasks are the same, and what a head learns from that."""

from itertools import combinations, permutations

import numpy as np
import pytest
from analytic_cases import MEANS, C, D, draw, start, sums
from fakes import rounds_of, run_in_process, summary_of
from scipy.stats import norm

from strategies.analytic import match_classes as module
from strategies.analytic.heads import HeadSums, discriminants, solve
from strategies.analytic.match_classes import match_classes
from strategies.analytic.sums import Sums, between


def tasks(*of_task, each=40, noise=0.7):
    return [sums(*draw(one, each, seed, noise)) for seed, one in enumerate(of_task)]


def test_the_same_classes_are_found_in_whatever_order_they_stand():
    found = match_classes(tasks((0, 1, 2), (3, 4, 5), (2, 0, 1), (5, 6, 7)))
    assert found[0] == {2: [(0, 1), (1, 2), (2, 0)]}
    assert found[1] == {3: [(2, 0)]}
    assert {one: sorted(pairs) for one, pairs in found[2].items()} == {
        0: [(0, 2), (1, 0), (2, 1)]
    }
    assert found[3] == {1: [(0, 2)]}


def test_without_a_class_in_common_nothing_is_joined():
    assert match_classes(tasks((0, 1, 2), (3, 4, 5), (6, 7, 8))) == [{}, {}, {}]


def test_a_class_is_at_most_one_of_another_task():
    """Two that are alike: with the nearest alone, both would be the same."""
    h, y = draw((0, 0, 7), seed=9)
    pairs = match_classes([*tasks((0, 1, 2), (3, 4, 5)), sums(h, y)])[2][0]
    assert pairs in ([(0, 0)], [(1, 0)])


def test_few_samples_say_nothing():
    drawn = ((0, 1, 2), (3, 4, 5), (0, 1, 2))
    assert match_classes(tasks(*drawn, each=2, noise=4.0)) == [{}, {}, {}]
    assert match_classes(tasks(*drawn, each=400, noise=4.0))[0].keys() == {2}


@pytest.mark.parametrize(
    "of_task",
    [
        [],
        tasks((0, 1, 2)),
        [sums(*draw((one,))) for one in (0, 1, 0)],  # never two classes in a task
        [sums(np.ones((6, D)), np.arange(6) % 3)] * 2,  # no variance at all
        [sums(*draw((0, 1, 2), each=1))] * 2,  # none within classes
    ],
)
def test_where_a_variance_is_unknown_classes_stand_alone(of_task):
    assert match_classes(of_task) == [{} for _ in of_task]


def test_a_class_without_samples_is_nobodys():
    h, y = draw((0, 1), seed=3)
    found = match_classes([*tasks((0, 1, 2), (3, 4, 5)), sums(h, y)])
    assert found[2] == {0: [(0, 0), (1, 1)]}


def test_classes_that_do_not_vary_where_nobodys_do_are_told_apart_all_the_same():
    """A client may send what it likes: here, one number a class and no scatter."""
    of_task = []
    for seed, codes in enumerate([(0, 1, 2), (3, 4, 5), (2, 0, 1)]):
        h, y = draw((0, 0, 0), seed=seed)
        for label in range(C):
            h[y == label] -= h[y == label].mean(0)
        h[:, 6:] = np.eye(6)[np.array(codes)[y]]
        of_task.append(sums(h, y))
    found = match_classes(of_task)
    assert {one: sorted(pairs) for one, pairs in found[2].items()} == {
        0: [(0, 2), (1, 0), (2, 1)]
    }
    assert not found[1]
    _, within, _ = module._space(of_task)
    assert within.min() == pytest.approx(1e-6)  # not 0, by which it is divided


def test_a_class_of_less_than_one_sample_makes_nobodys_noise_large():
    """So much may be left of it where its task counts in part."""
    of_task = tasks((0, 1, 2), (3, 4, 5), (2, 0, 1))
    counts = np.array([80.0, 1e-6, 1e-6])
    cross = np.column_stack([MEANS[[6, 7, 8]] * counts[:, None], counts])
    small = Sums(between(cross), cross)
    assert match_classes([*of_task, small])[:3] == match_classes(of_task)


def most_probable(evidence, others):
    """Return the pairs of the best of all matchings, tried one by one."""
    rows, columns = evidence.shape
    numbers = range(min(rows, columns) + 1)
    weights = {(): 0.0}
    for number in numbers[1:]:
        found = [
            tuple(zip(mine, its, strict=True))
            for mine in combinations(range(rows), number)
            for its in permutations(range(columns), number)
        ]
        prior = 1 / others / len(numbers) / len(found)
        for pairs in found:
            weights[pairs] = np.log(prior) + sum(evidence[one] for one in pairs)
    return list(max(weights, key=weights.__getitem__))


@pytest.mark.parametrize("others", [1, 8, 300])
@pytest.mark.parametrize("shape", [(3, 3), (2, 4), (4, 1)])
def test_the_matching_is_the_most_probable_of_all(shape, others):
    rng = np.random.default_rng(others)
    sizes = set()
    for spread in np.linspace(0.5, 12, 200):
        evidence = spread * rng.standard_normal(shape)
        found = module._matching(evidence, others)
        assert found == most_probable(evidence, others)
        sizes.add(len(found))
    assert sizes == set(range(min(shape) + 1))


def test_how_far_apart_classes_are_is_measured_without_their_noise():
    rng = np.random.default_rng(4)
    within, between = np.array([1.0, 4.0]), np.array([2.0, 0.5])
    counts = np.array([5.0, 20.0, 0.0, 10.0])
    sizes = np.maximum(counts, 1)[:, None]
    drawn = [
        module._spread(
            rng.normal(0, np.sqrt(between), (4, 2))
            + rng.normal(0, np.sqrt(within / sizes)),
            counts,
            within,
        )
        for _ in range(4000)
    ]
    squares, degrees = np.transpose(drawn)
    assert set(degrees) == {2}
    assert squares.mean() / 2 == pytest.approx(between.sum(), rel=0.05)
    assert module._spread(np.ones((2, 2)), np.array([3.0, 0.0]), within) == (0, 0)


def test_evidence_is_against_classes_half_as_far_apart_as_those_of_the_two(monkeypatch):
    given, others = [], []
    evidence, matching = module._evidence, module._matching
    monkeypatch.setattr(
        module, "_evidence", lambda *of: given.append(of[3]) or evidence(*of)
    )
    monkeypatch.setattr(
        module, "_matching", lambda *of: others.append(of[1]) or matching(*of)
    )
    h, y = draw((0, 0, 0), seed=5)
    one_class, one_thrice = sums(h, y * 0), sums(*draw((6, 6, 6), seed=6))
    of_task = [*tasks((0, 1, 2), (3, 4, 5)), one_class, one_class, one_thrice]
    match_classes(of_task)
    basis, within, between = module._space(of_task)
    squares, degrees = np.transpose(
        [module._spread(one.means @ basis, one.counts, within) for one in of_task]
    )
    assert degrees.tolist() == [2, 2, 0, 0, 2]
    assert squares[4] < 0  # by chance closer to each other than noise
    found = dict(zip(combinations(range(5), 2), given, strict=True))
    for pair, square in (
        ((0, 1), (squares[0] + squares[1]) / 4),
        ((0, 2), squares[0] / 2),
        ((2, 4), 0.0),
        ((2, 3), between.sum()),  # of whose classes nothing is known
    ):
        expected = between * square / between.sum() / 2
        np.testing.assert_allclose(found[pair], expected)
    assert set(others) == {4}


def test_tasks_whose_classes_are_close_to_each_other_are_not_taken_for_one():
    """Beside tasks of another kind, whose classes lie twenty times as far apart."""
    near, far = [], []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        y = np.repeat(np.arange(C), 40)
        for kind, apart in ((near, 0.25), (far, 5.0)):
            means = apart * rng.standard_normal((C, D))
            kind.append(sums(means[y] + 0.7 * rng.standard_normal((len(y), D)), y))
    assert not any(match_classes([*near, *far]))
    # What is the same is found there, too.
    assert match_classes([*near, *far, near[2]])[-1] == {2: [(c, c) for c in range(C)]}


def test_the_evidence_is_the_ratio_of_two_gaussian_densities():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 3, 4))
    n, m = np.array([5.0, 9.0, 0.0]), np.array([2.0, 30.0, 4.0])
    within, between = rng.random((2, 4)) + 0.1
    found = module._evidence((a, n), (b, m), within, between)
    for row in range(2):
        for column in range(3):
            spread = within * (1 / n[row] + 1 / m[column])
            away = a[row] - b[column]
            one = norm.logpdf(away, scale=np.sqrt(spread)).sum()
            two = norm.logpdf(away, scale=np.sqrt(spread + 2 * between)).sum()
            assert found[row, column] == pytest.approx(one - two)
    assert (found[2] == module._NEVER).all()


def test_a_joined_class_has_the_mean_of_all_its_samples_and_its_own_share():
    pair = ((0, 1, 2), (2, 8, 7))
    h, y = draw(pair[0], seed=0)
    v, z = draw(pair[1], each=20, seed=1)
    both = [sums(h, y), sums(v, z)]
    first, second = discriminants(both, [0.2, 0.2], [0, 0], [{1: [(2, 0)]}, {}])

    within = [one.within for one in both]
    count = len(y) + len(z)
    # Who shares a class counts once more for what it is drawn towards.
    prior = sum(within) / count
    last = np.concatenate([h[y == 2], v[z == 0]])
    means = np.stack([h[y == 0].mean(0), h[y == 1].mean(0), last.mean(0)])
    for head, covariance, mean, each in (
        (first, prior, means, 40),
        (
            second,
            (within[1] + D * prior) / (len(z) + D),
            np.stack([v[z == c].mean(0) for c in range(C)]),
            20,
        ),
    ):
        shrunk = 0.8 * covariance + 0.2 * np.trace(covariance) / D * np.eye(D)
        weight = mean @ np.linalg.inv(shrunk)
        np.testing.assert_allclose(head.weight, weight, rtol=1e-9)
        bias = np.log(each / (3 * each)) - (mean * weight).sum(1) / 2
        np.testing.assert_allclose(head.bias, bias, rtol=1e-9)


# ------------------------------------------------------------------------ runs


def overlapped(folder, **values):
    """Return a run whose clients learn the same groups of digits, each on its own."""
    given = {
        "scenario": "overlapped",
        "clients": 3,
        "tasks": 2,
        "classes_per_task": 5,
        "max_train_per_class": 24,
    }
    return start(folder, **{**given, **values})


@pytest.mark.run
def test_a_task_learns_from_those_that_others_finish_later(tmp_path):
    run_in_process(overlapped(tmp_path / "tested"))
    run_in_process(overlapped(tmp_path / "none", **{"strategy.matching": "none"}))
    tested, none = (summary_of(tmp_path / one) for one in ("tested", "none"))
    assert tested["average_accuracy"] > none["average_accuracy"]
    joined = [
        row["diagnostics"]["same_classes"] for row in rounds_of(tmp_path / "tested")
    ]
    assert joined == sorted(joined)
    assert joined[-1] > 0
    rows = rounds_of(tmp_path / "none")
    assert [row["diagnostics"]["same_classes"] for row in rows] == [0, 0]
    # It is the server's business: the same messages go up.
    assert tested["bytes_up"] == none["bytes_up"]


def test_classes_that_come_together_speak_for_each_other():
    evidence = np.where(np.eye(3), 4.5, -5.0)
    assert module._matching(evidence, 50) == [(0, 0), (1, 1), (2, 2)]
    alone = np.where(np.arange(3)[:, None] == 0, evidence, -5.0)
    assert module._matching(alone, 50) == []


def test_classes_without_samples_do_not_count_among_the_candidates():
    evidence = np.full((3, 3), module._NEVER)
    evidence[1, 2] = np.log(2 * 7) + 0.01  # either none or the one; of seven tasks
    assert module._matching(evidence, 7) == [(1, 2)]
    evidence[1, 2] -= 0.02
    assert module._matching(evidence, 7) == []


def test_variances_are_those_that_the_samples_were_drawn_with():
    """In its directions within is measured as it is, between without the noise."""
    rng = np.random.default_rng(1)
    of_task = []
    spread = np.where(np.arange(D) < 2, 3.0, 0.0)  # classes differ in two directions
    for _ in range(300):
        y = np.repeat(np.arange(C), 10)
        means = spread * rng.standard_normal((C, D))
        of_task.append(sums(means[y] + rng.standard_normal((len(y), D)), y))
    basis, within, between = module._space(of_task)
    lengths = np.square(basis).sum(0)
    np.testing.assert_allclose(within / lengths, 1.0, rtol=0.1)
    order = np.argsort(between)[::-1]
    np.testing.assert_allclose((between / lengths)[order[:2]], 9.0, rtol=0.15)
    # What is left of the others is the accident of the sample: nothing, on average.
    assert (between / lengths)[order[2:]].max(initial=0) < 0.05


def test_more_samples_of_the_same_classes_make_a_better_head():
    """Averaged over draws: eight samples a class alone, and with those of others."""
    right = {True: [], False: []}
    for seed in range(20):
        of_task = [(0, 1, 2), (0, 1, 2), (0, 1, 2), (3, 4, 5)]
        held = [
            HeadSums(sums(*draw(one, 8, 100 * seed + place, 1.4)), sums(*draw(one, 0)))
            for place, one in enumerate(of_task)
        ]
        v, z = draw((0, 1, 2), each=100, seed=seed + 5000, noise=1.4)
        for matching in right:
            heads, _, joined = solve(held, "discriminant", 0.3, matching=matching)
            logits = v @ heads[0].weight.T + heads[0].bias
            right[matching].append(float((logits.argmax(1) == z).mean()))
            assert matching or not joined
    assert np.mean(right[True]) > np.mean(right[False]) + 0.01


@pytest.mark.run
def test_a_ridge_regression_joins_nothing(tmp_path):
    run_in_process(overlapped(tmp_path, **{"strategy.head": "ridge"}))
    assert rounds_of(tmp_path)[-1]["diagnostics"]["same_classes"] == 0
