"""Server concept matching: algorithm 1 line by line, and one to one."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from strategies.concept_matching.maths import match

INF = np.inf


def matched(rule, distances, record, between=None, slack=2.0):
    distances, record = np.array(distances, float), np.array(record, float)
    between = np.full((len(distances),) * 2, 1e9) if between is None else between
    before = distances.copy(), record.copy()
    taken, following = match(
        distances, lambda number: between[:, number], record, rule, slack
    )
    assert (distances == before[0]).all(), "changed in place"
    assert (record == before[1]).all(), "changed in place"
    assert taken.dtype == np.int64
    return taken.tolist(), following.tolist()


def algorithm_1(clusters, concepts, record):
    """The pseudo-code of the paper on vectors, but that it skips W[null]."""
    concepts, record = [np.array(w) for w in concepts], list(record)
    writer = [None] * len(concepts)
    for j, cluster in enumerate(clusters):
        candidate, candidate_dist = None, INF
        for k, concept in enumerate(concepts):
            tmp_dist = float(np.abs(np.array(cluster) - concept).sum())
            if tmp_dist < min(record[k], candidate_dist):
                candidate, candidate_dist = k, tmp_dist
        if candidate is not None:
            concepts[candidate] = np.array(cluster)
            record[candidate] = candidate_dist
            writer[candidate] = j
    taken = [writer.index(j) if j in writer else -1 for j in range(len(clusters))]
    return taken, record


def literal(clusters, concepts, record):
    clusters, concepts = np.array(clusters, float), np.array(concepts, float)
    between = cdist(clusters, clusters, "cityblock")
    distances = cdist(clusters, concepts, "cityblock")
    return matched("literal", distances, record, between)


# ---- algorithm 1 on points of the plane, Manhattan


CONCEPTS = [[0, 0], [10, 0], [0, 10]]


def test_the_literal_rule_writes_and_records_cluster_after_cluster():
    # (1, 0): distances 1, 9, 11. (10, 2): 12, 2, 18.
    taken, record = literal([[1, 0], [10, 2]], CONCEPTS, [INF] * 3)
    assert (taken, record) == ([0, 1], [1, 2, INF])

    # Next round, from (1, 0), (10, 2), (0, 10). (1, 0.5): 0.5 < 1, so concept 0.
    # (10, 5): 3 is not below 2, but (0, 10) is 15 away and has no record yet.
    moved = [[1, 0], [10, 2], [0, 10]]
    taken, record = literal([[1, 0.5], [10, 5]], moved, record)
    assert (taken, record) == ([0, 2], [0.5, 2, 15])

    # From (1, 0.5), (10, 2), (10, 5). (1, 1) is 0.5 away from concept 0, not below its
    # record, and strays to concept 2, 13 away; there (10, 4), 12 away, overwrites it.
    moved = [[1, 0.5], [10, 2], [10, 5]]
    taken, record = literal([[1, 1], [10, 4]], moved, record)
    assert (taken, record) == ([-1, 2], [0.5, 2, 12])


def test_with_the_literal_rule_a_later_cluster_sees_what_an_earlier_wrote():
    # (4, 0) takes concept 0. (5, 0) would be 5 from both, but now is 1 from it.
    taken, record = literal([[4, 0], [5, 0]], [[0, 0], [10, 0]], [INF, INF])
    assert (taken, record) == ([-1, 0], [1, INF])

    # Further away it takes the other one, although (0, 0) was nearer.
    taken, record = literal([[-4, 0], [4, 0]], [[0, 0], [10, 0]], [INF, INF])
    assert (taken, record) == ([0, 1], [4, 6])


def test_with_the_literal_rule_a_cluster_without_candidate_writes_nothing():
    taken, record = literal([[5, 5]], CONCEPTS, [1, 2, 3])

    assert (taken, record) == ([-1], [1, 2, 3])


def test_the_literal_rule_has_the_nearest_concept_of_the_lowest_number():
    assert literal([[5, 5]], CONCEPTS, [10, 11, 11])[0] == [1]
    assert literal([[5, 5]], CONCEPTS, [11, 11, 11])[0] == [0]


points = st.lists(
    st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=1, max_size=5
)


@given(points, points, st.data())
def test_the_literal_rule_is_algorithm_1(clusters, concepts, data):
    limits = st.sampled_from([0.0, 3.0, 10.0, INF])
    size = len(concepts)
    record = data.draw(st.lists(limits, min_size=size, max_size=size))

    assert literal(clusters, concepts, record) == algorithm_1(
        clusters, concepts, record
    )


# ---- two clusters that want one concept


def test_two_clusters_that_want_one_concept_under_each_rule():
    distances = [[3, 50], [1, 9]]
    between = np.array([[0, 2], [2, 0]])

    # Cluster 1 overwrites cluster 0, since it is nearer to it than 3.
    assert matched("literal", distances, [INF, INF], between) == ([-1, 0], [2, INF])
    # The nearest pair first: cluster 0 is left with the far one.
    assert matched("relaxed", distances, [INF, INF]) == ([1, 0], [1, 50])
    # 3 + 9 is less than 50 + 1.
    assert matched("assignment", distances, [INF, INF]) == ([0, 1], [3, 9])


def test_the_records_limit_whom_the_two_get():
    distances = [[3, 50], [1, 9]]

    assert matched("relaxed", distances, [2, 20]) == ([-1, 0], [1, 20])
    # As many as possible come before as near as possible.
    assert matched("assignment", distances, [2, 4.5]) == ([0, 1], [3, 9])
    assert matched("assignment", distances, [2, 4]) == ([-1, 0], [1, 4])


@pytest.mark.parametrize("rule", ["relaxed", "assignment"])
def test_a_record_may_rise_by_the_slack_and_no_further(rule):
    assert matched(rule, [[6]], [2], slack=3) == ([0], [6])
    assert matched(rule, [[6.01]], [2], slack=3) == ([-1], [6])
    assert matched(rule, [[2.5]], [2], slack=1) == ([-1], [2])


@pytest.mark.parametrize("rule", ["relaxed", "assignment"])
def test_only_a_concept_that_refused_its_nearest_cluster_gives_way(rule):
    # Cluster 0 takes concept 0; cluster 1 is nearest to concept 2, which refuses it.
    distances = [[1, 50, 60], [70, 40, 30]]
    assert matched(rule, distances, [1, 9, 9]) == ([0, -1], [1, 9, 18])
    # Nearest to a concept that is taken: a second cluster of it, not a frozen one.
    assert matched(rule, [[1, 50], [2, 40]], [1, 9]) == ([0, -1], [1, 9])


@pytest.mark.parametrize("rule", ["relaxed", "assignment"])
def test_a_step_of_no_length_does_not_freeze_a_concept(rule):
    assert matched(rule, [[0]], [2]) == ([0], [2])


@pytest.mark.parametrize("rule", ["literal", "relaxed", "assignment"])
def test_clusters_beyond_the_concepts_are_refused(rule):
    distances = [[4, 9], [5, 2], [1, 8]]
    between = 1e3 * (1 - np.eye(3))
    taken, record = matched(rule, distances, [INF, INF], between)

    # The literal rule serves who comes first: 1 and 8 are above no record but theirs.
    if rule == "literal":
        assert (taken, record) == ([0, 1, -1], [4, 2])
    else:
        assert (taken, record) == ([-1, 1, 0], [1, 2])


@pytest.mark.parametrize("rule", ["literal", "relaxed", "assignment"])
def test_concepts_beyond_the_clusters_stay(rule):
    assert matched(rule, [[7, 3, 5]], [INF, INF, 1]) == ([1], [INF, 3, 1])
    assert matched(rule, np.zeros((0, 3)), [INF, 2, 1]) == ([], [INF, 2, 1])


def test_the_relaxed_rule_takes_equal_pairs_in_order():
    assert matched("relaxed", [[1, 1], [1, 1]], [INF, INF])[0] == [0, 1]


# ---- assignment against all that are possible


def best_by_trial(distances, admissible):
    """Return the largest number of admissible pairs, and their least total."""
    rows, columns = distances.shape
    size = max(rows, columns)
    best = (0, 0.0)
    for order in permutations(range(size)):
        pairs = [
            (j, k)
            for j, k in enumerate(order)
            if j < rows and k < columns and admissible[j, k]
        ]
        total = sum(distances[pair] for pair in pairs)
        best = min(best, (-len(pairs), total))
    return -best[0], best[1]


@settings(deadline=None)
@given(st.data())
def test_no_other_assignment_has_more_pairs_or_is_nearer(data):
    rows, columns = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    scale = data.draw(st.sampled_from([1e-12, 1.0, 1e9, 1e300]))
    lengths = st.integers(0, 1000)
    drawn = [
        data.draw(st.lists(lengths, min_size=columns, max_size=columns))
        for _ in range(rows)
    ]
    limits = st.one_of(lengths, st.just(INF))
    record = data.draw(st.lists(limits, min_size=columns, max_size=columns))
    whole, limit = np.array(drawn, float), np.array(record, float)

    taken, _ = matched("assignment", whole * scale, limit * scale, slack=1.0)

    pairs = [(j, k) for j, k in enumerate(taken) if k != -1]
    admissible = whole * scale <= limit * scale
    assert all(admissible[pair] for pair in pairs)
    assert len({k for _, k in pairs}) == len(pairs)
    count, total = best_by_trial(whole, admissible)
    assert len(pairs) == count
    assert sum(whole[pair] for pair in pairs) == pytest.approx(total)
