"""Distances, clusters and matchings of models by SciPy, scikit-learn and trial."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.spatial.distance import cdist, pdist
from sklearn.cluster import DBSCAN, OPTICS, AgglomerativeClustering, Birch, KMeans
from sklearn.metrics import adjusted_rand_score, silhouette_score

from strategies.concept_matching import ConceptMatchingParams, maths
from strategies.concept_matching.maths import (
    cluster,
    distances,
    embedding,
    gram,
    gram_of_directions,
    match,
    sketched,
)

INF = np.inf


def models_of(matrix, counter=0):
    """Make a model of each row: two tensors of weights and one of counts."""
    return [
        {
            "conv": np.float32(row[:6]).reshape(3, 2),
            "seen": np.array(i * counter),
            "half": np.float16(row[6:]),
        }
        for i, row in enumerate(matrix)
    ]


def weights(count, size=11, seed=0):
    drawn = np.random.default_rng(seed).normal(size=(count, size))
    drawn[:, 6:] = np.float16(drawn[:, 6:])
    return np.float32(drawn).astype(np.float64)


# ---- where models lie


@pytest.fixture(params=[2**21, 12], ids=["one block", "blocks of two or three"])
def cells(request, monkeypatch):
    monkeypatch.setattr(maths, "_CELLS", request.param)


@pytest.mark.usefixtures("cells")
@pytest.mark.parametrize("count", [1, 3, 20])
def test_points_have_the_distances_of_the_centred_models(count):
    matrix = weights(count)
    products = gram(models_of(matrix, counter=1000))
    centred = matrix - matrix.mean(axis=0)
    assert_allclose(products, centred @ centred.T, atol=1e-12)
    points = embedding(products)
    assert points.shape == (count, min(count - 1, 11))
    assert_allclose(cdist(points, points), cdist(matrix, matrix), atol=1e-10)


def test_close_equal_and_enormous_models_keep_their_distances():
    near = (1e4 + weights(6) * 1e-3).astype(np.float32)
    points = embedding(gram([{"w": row} for row in near]))
    assert_allclose(pdist(points), pdist(near.astype(np.float64)), rtol=1e-9)
    same = {"w": np.float32([0.1, 0.2, 0.7])}
    assert embedding(gram([same, same, same])).shape == (3, 0)
    # 3e38 is near the end of float32: its square is not, and neither is twice itself.
    models = [{"w": np.float32([x, 0])} for x in (3e38, -3e38, 0)]
    assert_allclose(pdist(embedding(gram(models))), [6e38, 3e38, 3e38], rtol=1e-6)


def test_coordinates_fall_in_width_and_have_a_fixed_sign():
    # A rectangle of 6 by 2 around (5, 5), and one more point.
    corners = np.float32([[2, 4], [2, 6], [8, 4], [8, 6], [9, 5]])
    points = embedding(gram([{"w": corner} for corner in corners]))
    spread = np.square(points).sum(axis=0)
    assert spread[0] > spread[1] > 0
    assert (points.max(axis=0) >= -points.min(axis=0) - 1e-9).all()


@pytest.mark.usefixtures("cells")
@pytest.mark.parametrize(
    ("metric", "scipys"),
    [("manhattan", "cityblock"), ("euclidean", "euclidean"), ("chebyshev",) * 2],
)
def test_distances_to_other_models_are_those_of_scipy(metric, scipys):
    here, there = weights(4), weights(3, seed=7)
    found = distances(models_of(here), models_of(there, counter=99), metric)
    assert_allclose(found, cdist(here, there, scipys), rtol=1e-12)
    assert distances([], models_of(there), metric).shape == (0, 3)


@pytest.mark.usefixtures("cells")
@pytest.mark.parametrize("scale", [1.0, 1e-4])
@pytest.mark.parametrize("count", [1, 5, 8])
def test_directions_are_unit_steps_from_starts_that_are_two_apart(count, scale):
    origin = np.arange(count) % 3
    origin[count // 2] = 1
    starts = np.float32(weights(3, seed=7) * [*[1] * 6, *[0] * 5])
    steps = np.float32(weights(count) * scale * [*[1] * 6, *[0] * 5])
    matrix = starts[origin] + steps
    matrix[count // 2] = starts[1]  # one of several does not move
    steps = matrix.astype(np.float64) - starts[origin]
    lengths = np.linalg.norm(steps, axis=1, keepdims=True)
    places = np.sqrt(2) * np.eye(3)[origin]
    points = np.hstack([steps / np.where(lengths > 0, lengths, 1), places])

    found = gram_of_directions(models_of(matrix), models_of(starts, 99), origin)

    centred = points - points.mean(axis=0)
    assert_allclose(found, centred @ centred.T, atol=1e-9)


def wide(matrix):
    return [{"a": np.float32(row[:10]), "b": np.float32(row[10:])} for row in matrix]


def test_a_sketch_is_a_signed_sum_of_weights_in_buckets_by_a_seed():
    unit = np.eye(30)
    rows = np.stack([s["sketch"] for s in sketched(wide(unit), 16, 5)])
    assert (np.abs(rows).sum(axis=1) == 1).all(), "one bucket each"
    assert set(rows[rows != 0]) == {1.0, -1.0}
    assert (rows != 0).any(axis=0).sum() > 8, "and not all the same"
    # Linear: the sketch of a sum is the sum of the sketches.
    (whole,) = sketched(wide(unit.sum(axis=0, keepdims=True)), 16, 5)
    assert_allclose(whole["sketch"], rows.sum(axis=0))
    (other,) = sketched(wide(unit.sum(axis=0, keepdims=True)), 16, 6)
    assert (whole["sketch"] != other["sketch"]).any()


def test_squared_distances_of_sketches_err_as_little_as_is_said():
    matrix = np.random.default_rng(2).normal(size=(2, 1000)).astype(np.float32)
    true = pdist(matrix)[0] ** 2
    ratios = []
    for seed in range(200):
        rows = np.stack([s["sketch"] for s in sketched(wide(matrix), 200, seed)])
        ratios.append(pdist(rows)[0] ** 2 / true)
    # sqrt(2 / 200) = 0.1; the mean of 200 has a standard error of 0.007.
    assert np.mean(ratios) == pytest.approx(1, abs=0.03)
    assert 0.075 < np.std(ratios) < 0.125


# ---- clusters

COUNTED = ["k-means", "agglomerative", "birch"]
ALL = [*COUNTED, "dbscan", "optics"]


def clustered(matrix, method="k-means", origin=None, **params):
    rows = np.asarray(matrix, np.float64)
    points = embedding(gram([{"w": row} for row in rows]))
    return clustered_points(points, method, origin, **params)


def clustered_points(points, method, origin=None, **params):
    origin = np.zeros(len(points), np.int64) if origin is None else np.array(origin)
    given = ConceptMatchingParams(**{"concepts": 6, "clustering": method, **params})
    return cluster(points, origin, given, seed=4)


def blobs(groups, each=6, size=40, apart=8.0, seed=0):
    """Draw models around centres, in mixed order, and the group of each."""
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.repeat(np.arange(groups), each))
    centres = rng.normal(scale=apart, size=(groups, size))
    return centres[truth] + rng.normal(size=(len(truth), size)), truth


def in_units_of_the_nearest(matrix):
    pairs = cdist(matrix, matrix)
    return matrix / np.median(np.sort(pairs, axis=1)[:, 1])


@pytest.mark.parametrize("scale", [1e-4, 1e4])
@pytest.mark.parametrize("groups", [1, 2, 5])
@pytest.mark.parametrize("method", COUNTED)
def test_planted_groups_are_found_with_their_number(method, groups, scale):
    matrix, truth = blobs(groups)
    labels, silhouette = clustered(matrix * scale, method)
    assert adjusted_rand_score(truth, labels) == 1
    assert labels.dtype == np.int64
    if groups == 1:
        assert np.isnan(silhouette)
    else:
        assert silhouette == pytest.approx(silhouette_score(matrix, truth))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("method", "plain"),
    [
        ("k-means", KMeans(4, n_init=10, random_state=4)),
        ("agglomerative", AgglomerativeClustering(4)),
        ("birch", Birch(threshold=0.5, n_clusters=4)),
        ("dbscan", DBSCAN(eps=1.5, min_samples=2)),
        ("optics", OPTICS(min_samples=2)),
    ],
)
def test_the_division_is_that_of_scikit_learn_on_all_weights(method, plain, seed):
    matrix, _ = blobs(4, size=300, seed=seed)
    labels, _ = clustered(matrix, method)
    expected = plain.fit_predict(in_units_of_the_nearest(matrix))
    assert adjusted_rand_score(expected, labels) == 1
    assert ((labels == -1) == (expected == -1)).all()


def test_the_number_with_the_largest_silhouette_wins():
    matrix, _ = blobs(5, apart=1.2, size=20, seed=3)
    labels, silhouette = clustered(
        matrix, "agglomerative", separation=-1, subdivision=99
    )
    scores = {
        count: silhouette_score(
            matrix, AgglomerativeClustering(count).fit_predict(matrix)
        )
        for count in range(2, 7)
    }
    assert silhouette == pytest.approx(max(scores.values()), abs=1e-6)
    assert labels.max() + 1 == max(scores, key=scores.get)


def test_clusters_are_numbered_as_they_appear_and_no_more_than_allowed():
    labels, _ = clustered([[9], [0], [9.1], [5], [0.1], [5.1]])
    assert labels.tolist() == [0, 1, 0, 2, 1, 2]
    matrix, _ = blobs(5)
    assert clustered(matrix, concepts=3)[0].max() == 2
    assert clustered(matrix, concepts=1)[0].max() == 0


def test_a_division_that_separates_too_little_is_none():
    matrix = [[0], [1], [2], [3]]
    best = silhouette_score(matrix, [0, 0, 1, 1])
    for separation, clusters in ((best - 0.01, 2), (best + 0.01, 1)):
        labels, silhouette = clustered(matrix, separation=separation)
        assert labels.max() + 1 == clusters
        assert np.isnan(silhouette) == (clusters == 1)


@pytest.mark.parametrize("method", ALL)
def test_few_equal_and_far_models(method):
    for rows in ([[3, 4]], [[0.1]] * 2, [[0.1, 0.7]] * 7):
        labels, silhouette = clustered(rows, method)
        assert not labels.any()
        assert np.isnan(silhouette)
    # Two models belong together if they started from one, or are the same.
    far, same = [[0.0, 0], [5, 5]], [[5.0, 5], [5, 5]]
    for rows, origin, expected in (
        (far, [2, 2], [0, 0]),
        (far, [4, 2], [0, 1]),
        (same, [4, 2], [0, 0]),
    ):
        assert clustered(rows, method, origin)[0].tolist() == expected
    groups = [[0.1, 0.3]] * 3 + [[5.0, 0]] * 3 + [[0.0, 7]] * 2
    labels, silhouette = clustered(groups, method)
    assert labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    assert silhouette == pytest.approx(1)
    # Rounding does not tell equal models apart.
    points = np.array([[0], [1e-20], [0], [0.01], [0.01], [0.01]])
    assert clustered_points(points, method)[0].tolist() == [0, 0, 0, 1, 1, 1]
    # Beside a monstrous one the others are all the same.
    labels, _ = clustered([[0.1], [0.2], [3e38], [5.0]], method)
    assert labels[0] == labels[1] == labels[3]
    if method != "optics":  # which sees one valley, of whatever depth
        assert labels[2] != labels[0]


def test_a_model_far_from_all_others_is_noise_to_dbscan():
    labels, silhouette = clustered([[0], [1], [50], [100], [101]], "dbscan")
    assert labels.tolist() == [0, 0, -1, 1, 1]
    among = silhouette_score([[0], [1], [100], [101]], [0, 0, 1, 1])
    assert silhouette == pytest.approx(among), "noise is no cluster"


def test_dbscans_largest_radius_is_in_distances_to_the_nearest():
    matrix = np.array([[0], [2], [4], [7.2], [9.2], [11.2]])  # gaps of 1 and of 1.6
    assert clustered(matrix, "dbscan", neighbourhood=1.0)[0].max() == 1
    assert (clustered(matrix, "dbscan", neighbourhood=0.9)[0] == -1).all()
    joined = {"neighbourhood": 1.7, "separation": 0.9}  # above the silhouette of two
    assert clustered(matrix, "dbscan", **joined)[0].max() == 0


def test_dbscans_radius_is_the_one_that_divides_best():
    # In 400 dimensions distances hardly differ: a radius of 1.5 joins all.
    matrix, truth = blobs(4, size=400, apart=0.8)
    scaled = in_units_of_the_nearest(matrix)
    joined = DBSCAN(eps=1.5, min_samples=2).fit_predict(scaled)
    assert adjusted_rand_score(truth, joined) == 0
    assert adjusted_rand_score(truth, clustered(matrix, "dbscan")[0]) == 1
    # At 1.1 two pairs are far apart, and six models noise; at 3 all have a cluster.
    matrix = [[0], [1], [40], [41], [43.2], [45.4], [2.9], [4.8], [6.7], [8.6]]
    labels, _ = clustered(matrix, "dbscan", neighbourhood=3.0)
    assert labels.tolist() == [0, 0, 1, 1, 1, 1, 0, 0, 0, 0]


# ---- clusters within clusters


def around(seed, *centres, each=4):
    """Draw coordinates around the centres, and which centre each belongs to."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(centres)), each)
    places = np.zeros((len(truth), 12))
    places[:, :3] = np.array(centres)[truth]
    return places + rng.normal(0, 0.05, (len(truth), 12)), truth


@pytest.mark.parametrize("method", [*COUNTED, "dbscan"])
def test_two_near_concepts_far_from_the_rest_are_told_apart(method):
    # As silhouettes go, the two near ones are one of three clusters.
    matrix, truth = around(0, (0, 0, 0), (1, 0, 0), (9, 9, 0), (0, 9, 9))
    # For DBSCAN a radius that joins the two.
    wide = {"neighbourhood": 9.0} if method == "dbscan" else {}
    whole, _ = clustered(matrix, method, subdivision=9.0, **wide)
    assert whole.max() == 2
    labels, silhouette = clustered(matrix, method, **wide)
    assert adjusted_rand_score(truth, labels) == 1
    assert silhouette == pytest.approx(silhouette_score(matrix, truth))


def test_what_a_division_leaves_out_is_noise():
    matrix = [[0], [1], [2], [6], [7], [8], [12], [100], [101], [102]]
    labels, silhouette = clustered(matrix, "dbscan", neighbourhood=6.0)
    assert labels.tolist() == [0, 0, 0, 1, 1, 1, -1, 2, 2, 2]
    kept = np.delete(matrix, 6, axis=0)
    expected = silhouette_score(kept, [0, 0, 0, 1, 1, 1, 2, 2, 2])
    assert silhouette == pytest.approx(expected)


def test_the_most_distinct_parts_are_divided_first_while_there_is_room():
    matrix, truth = around(2, (0, 0, 0), (2, 0, 0), (90, 0, 0), (90, 1, 0))
    for room, expected in ((2, truth // 2), (3, np.minimum(truth, 2)), (9, truth)):
        labels, _ = clustered(matrix, concepts=room)
        assert adjusted_rand_score(expected, labels) == 1
    # One of two clusters has three parts, but there is room for two of them.
    matrix, _ = around(3, (0, 0, 0), (2, 0, 0), (0, 2, 0), (900, 0, 0))
    assert clustered(matrix, concepts=3)[0].max() == 2


# ---- what a cluster replaces

ONE_TO_ONE = pytest.mark.parametrize("rule", ["relaxed", "assignment"])


def matched(rule, apart, record, between=None, slack=2.0):
    apart, record = np.array(apart, float), np.array(record, float)
    between = np.full((len(apart),) * 2, 1e9) if between is None else between
    before = apart.copy(), record.copy()
    taken, following = match(apart, lambda n: between[:, n], record, rule, slack)
    assert (apart == before[0]).all(), "changed in place"
    assert (record == before[1]).all(), "changed in place"
    assert taken.dtype == np.int64
    return taken.tolist(), following.tolist()


def algorithm_1(clusters, concepts, record):
    """The pseudo-code of the paper on vectors, but that it skips W[null]."""
    concepts, record = [np.array(w) for w in concepts], list(record)
    writer = [None] * len(concepts)
    for j, theta in enumerate(clusters):
        candidate, candidate_dist = None, INF
        for k, concept in enumerate(concepts):
            tmp_dist = float(np.abs(np.array(theta) - concept).sum())
            if tmp_dist < min(record[k], candidate_dist):
                candidate, candidate_dist = k, tmp_dist
        if candidate is not None:
            concepts[candidate] = np.array(theta)
            record[candidate] = candidate_dist
            writer[candidate] = j
    taken = [writer.index(j) if j in writer else -1 for j in range(len(clusters))]
    return taken, record


def literal(clusters, concepts, record):
    clusters, concepts = np.array(clusters, float), np.array(concepts, float)
    between = cdist(clusters, clusters, "cityblock")
    return matched("literal", cdist(clusters, concepts, "cityblock"), record, between)


PLANE = st.lists(st.tuples(*[st.integers(-9, 9)] * 2), min_size=1, max_size=5)


@given(PLANE, PLANE, st.data())
def test_the_literal_rule_is_algorithm_1(clusters, concepts, data):
    limits, size = st.sampled_from([0.0, 3.0, 10.0, INF]), len(concepts)
    record = data.draw(st.lists(limits, min_size=size, max_size=size))
    expected = algorithm_1(clusters, concepts, record)
    assert literal(clusters, concepts, record) == expected


@pytest.mark.parametrize(
    ("rule", "record", "expected"),
    [
        # Cluster 1 overwrites cluster 0, since it is nearer to it than 3.
        ("literal", [INF, INF], ([-1, 0], [2, INF])),
        # The nearest pair first: cluster 0 is left with the far one.
        ("relaxed", [INF, INF], ([1, 0], [1, 50])),
        # 3 + 9 is less than 50 + 1.
        ("assignment", [INF, INF], ([0, 1], [3, 9])),
        ("relaxed", [2, 20], ([-1, 0], [1, 20])),
        # As many as possible come before as near as possible.
        ("assignment", [2, 4.5], ([0, 1], [3, 9])),
        ("assignment", [2, 4], ([-1, 0], [1, 4])),
    ],
)
def test_two_clusters_that_want_one_concept(rule, record, expected):
    between = np.array([[0, 2], [2, 0]])
    assert matched(rule, [[3, 50], [1, 9]], record, between) == expected


def test_as_many_pairs_as_possible_come_before_the_nearest_one():
    assert matched("assignment", [[1, 9], [9, 50]], [9, 9]) == ([1, 0], [9, 9])


@ONE_TO_ONE
def test_a_record_may_rise_by_the_slack_and_no_further(rule):
    assert matched(rule, [[6]], [2], slack=3) == ([0], [6])
    assert matched(rule, [[6.01]], [2], slack=3) == ([-1], [6])
    assert matched(rule, [[0]], [2]) == ([0], [2]), "no step, no record"


@ONE_TO_ONE
def test_only_a_concept_that_refused_its_nearest_cluster_gives_way(rule):
    # Cluster 0 takes concept 0; cluster 1 is nearest to concept 2, which refuses it.
    apart = [[1, 50, 60], [70, 40, 30]]
    assert matched(rule, apart, [1, 9, 9]) == ([0, -1], [1, 9, 18])
    # Nearest to a concept that is taken: a second cluster of it, not a frozen one.
    assert matched(rule, [[1, 50], [2, 40]], [1, 9]) == ([0, -1], [1, 9])


@pytest.mark.parametrize("rule", ["literal", "relaxed", "assignment"])
def test_clusters_beyond_the_concepts_are_refused_and_concepts_beyond_stay(rule):
    between = 1e3 * (1 - np.eye(3))
    found = matched(rule, [[4, 9], [5, 2], [1, 8]], [INF, INF], between)
    # The literal rule serves who comes first: 1 and 8 are above no record but theirs.
    first = ([0, 1, -1], [4, 2])
    assert found == (first if rule == "literal" else ([-1, 1, 0], [1, 2]))
    assert matched(rule, [[7, 3, 5]], [INF, INF, 1]) == ([1], [INF, 3, 1])
    assert matched(rule, np.zeros((0, 3)), [INF, 2, 1]) == ([], [INF, 2, 1])


def best_by_trial(apart, admissible):
    """Find the largest number of admissible pairs, and their least total."""
    rows, columns = apart.shape
    best = (0, 0.0)
    for order in permutations(range(max(rows, columns))):
        pairs = [
            (j, k)
            for j, k in enumerate(order)
            if j < rows and k < columns and admissible[j, k]
        ]
        best = min(best, (-len(pairs), sum(apart[pair] for pair in pairs)))
    return -best[0], best[1]


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_no_other_assignment_has_more_pairs_or_is_nearer(data):
    rows, columns = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    scale = data.draw(st.sampled_from([1e-12, 1.0, 1e9, 1e300]))
    lengths = st.integers(0, 1000)

    def drawn(values):
        return data.draw(st.lists(values, min_size=columns, max_size=columns))

    whole = np.array([drawn(lengths) for _ in range(rows)], float)
    limit = np.array(drawn(st.one_of(lengths, st.just(INF))), float)

    taken, _ = matched("assignment", whole * scale, limit * scale, slack=1.0)

    pairs = [(j, k) for j, k in enumerate(taken) if k != -1]
    admissible = whole * scale <= limit * scale
    assert all(admissible[pair] for pair in pairs)
    assert len({k for _, k in pairs}) == len(pairs)
    count, total = best_by_trial(whole, admissible)
    assert len(pairs) == count
    assert sum(whole[pair] for pair in pairs) == pytest.approx(total)
