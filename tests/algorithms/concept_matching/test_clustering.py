"""Clusters of models against scikit-learn on the matrix of all weights."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.cluster import DBSCAN, OPTICS, AgglomerativeClustering, Birch, KMeans
from sklearn.metrics import adjusted_rand_score, silhouette_score

from strategies.concept_matching.maths import cluster, embedding, gram

COUNTED = ["k-means", "agglomerative", "birch"]
DENSE = ["dbscan", "optics"]


def clustered(matrix, method="k-means", **settings):
    rows = np.asarray(matrix, np.float64)
    return clustered_points(
        embedding(gram([{"w": row} for row in rows])), method, **settings
    )


def clustered_points(points, method, origin=None, **settings):
    origin = np.zeros(len(points), np.int64) if origin is None else np.array(origin)
    given = {
        "at_most": 6,
        "separation": 0.1,
        "subdivision": 0.4,
        "neighbourhood": 3.0,
        "seed": 4,
    }
    return cluster(points, origin, method, **(given | settings))


def blobs(groups, each=6, size=40, apart=8.0, seed=0):
    """Return models around centres, in mixed order, and the group of each."""
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.repeat(np.arange(groups), each))
    centres = rng.normal(scale=apart, size=(groups, size))
    return centres[truth] + rng.normal(size=(len(truth), size)), truth


def in_order(labels):
    """Return labels numbered from 0 by first appearance."""
    numbers = {}
    return [numbers.setdefault(int(label), len(numbers)) for label in labels]


def in_units_of_the_nearest(matrix):
    pairs = cdist(matrix, matrix)
    return matrix / np.median(np.sort(pairs, axis=1)[:, 1])


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("groups", [1, 2, 3, 4, 5])
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


@pytest.mark.parametrize("groups", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("method", DENSE)
def test_methods_that_look_for_density_find_the_number_too(method, groups):
    # Ten models on a line, at equal distances: no place is less dense than another.
    line = np.linspace(0, 1, 10)
    matrix = np.concatenate([line + 1000 * group for group in range(groups)])[:, None]
    labels, silhouette = clustered(matrix, method)

    assert labels.tolist() == np.repeat(np.arange(groups), 10).tolist()
    assert np.isnan(silhouette) if groups == 1 else silhouette > 0.9


@pytest.mark.parametrize("seed", range(4))
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


@pytest.mark.parametrize("method", ["k-means", "agglomerative"])
def test_the_number_with_the_largest_silhouette_wins(method):
    matrix, _ = blobs(5, apart=1.2, size=20, seed=3)
    labels, silhouette = clustered(matrix, method, separation=-1, subdivision=99)
    scaled = in_units_of_the_nearest(matrix)
    scores = {}
    for count in range(2, 7):
        plain = (
            KMeans(count, n_init=10, random_state=4)
            if method == "k-means"
            else AgglomerativeClustering(count)
        )
        scores[count] = silhouette_score(scaled, plain.fit_predict(scaled))

    assert silhouette == pytest.approx(max(scores.values()), abs=1e-6)
    assert labels.max() + 1 == max(scores, key=scores.get)


def test_clusters_are_numbered_as_they_appear():
    labels, _ = clustered([[9], [0], [9.1], [5], [0.1], [5.1]])

    assert labels.tolist() == [0, 1, 0, 2, 1, 2]


def test_there_are_no_more_clusters_than_allowed():
    matrix, _ = blobs(5)

    assert clustered(matrix, at_most=3)[0].max() == 2
    assert clustered(matrix, at_most=1)[0].max() == 0


def test_a_division_that_separates_too_little_is_none():
    matrix = [[0], [1], [2], [3]]
    best = silhouette_score(matrix, [0, 0, 1, 1])

    for separation, clusters in ((best - 0.01, 2), (best + 0.01, 1)):
        labels, silhouette = clustered(matrix, separation=separation)
        assert labels.max() + 1 == clusters
        assert np.isnan(silhouette) == (clusters == 1)


@pytest.mark.parametrize("method", COUNTED + DENSE)
def test_one_model_is_one_cluster(method):
    labels, silhouette = clustered([[3, 4]], method)

    assert labels.tolist() == [0]
    assert np.isnan(silhouette)


@pytest.mark.parametrize("method", COUNTED + DENSE)
def test_two_models_belong_together_if_they_started_from_one(method):
    far = [[0.0, 0], [5, 5]]

    assert clustered(far, method, origin=[2, 2])[0].tolist() == [0, 0]
    assert clustered(far, method, origin=[4, 2])[0].tolist() == [0, 1]
    same = [[5.0, 5], [5, 5]]
    assert clustered(same, method, origin=[4, 2])[0].tolist() == [0, 0]


@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize("method", COUNTED + DENSE)
def test_equal_models_are_one_cluster(method, count):
    labels, silhouette = clustered(np.full((count, 4), 0.1), method)

    assert labels.tolist() == [0] * count
    assert np.isnan(silhouette)


@pytest.mark.parametrize("method", COUNTED + DENSE)
def test_groups_of_equal_models_are_clusters(method):
    pair, other, third = [[0.1, 0.3]] * 3, [[5.0, 0]] * 3, [[0.0, 7]] * 2
    labels, silhouette = clustered([*pair, *other, *third], method)

    assert labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    assert silhouette == pytest.approx(1)


@pytest.mark.parametrize("rounding", [0.0, 1e-20])
@pytest.mark.parametrize("method", COUNTED + DENSE)
def test_rounding_does_not_tell_equal_models_apart(method, rounding):
    points = np.array([[0], [rounding], [0], [0.01], [0.01], [0.01]])
    labels, _ = clustered_points(points, method)

    assert labels.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("count", range(3, 8))
@pytest.mark.parametrize("method", COUNTED + DENSE)
def test_few_models_of_any_kind_are_clustered_without_a_warning(method, count):
    for seed in range(3):
        drawn = np.random.default_rng(seed).normal(size=(count, 3))
        labels, _ = clustered(drawn, method)
        assert len(labels) == count
        drawn[1] = drawn[0]
        assert len(set(clustered(drawn, method)[0][:2])) == 1


def test_a_model_far_from_all_others_is_noise():
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


@pytest.mark.parametrize("seed", range(3))
def test_dbscans_radius_is_the_one_that_divides_best(seed):
    # In 400 dimensions distances hardly differ: a radius of 1.5 joins all.
    matrix, truth = blobs(4, size=400, apart=0.8, seed=seed)
    scaled = in_units_of_the_nearest(matrix)
    plain = {r: DBSCAN(eps=r, min_samples=2).fit_predict(scaled) for r in (1.15, 1.5)}
    labels, silhouette = clustered(matrix, "dbscan")

    assert adjusted_rand_score(truth, plain[1.5]) == 0
    assert labels.tolist() == in_order(plain[1.15])
    assert adjusted_rand_score(truth, labels) == 1
    assert silhouette == pytest.approx(silhouette_score(scaled, truth), abs=1e-6)


def test_a_radius_that_leaves_models_out_counts_for_less():
    # At 1.1 two pairs are far apart, and six models noise; at 3 all have a cluster.
    matrix = [[0], [1], [40], [41], [43.2], [45.4], [2.9], [4.8], [6.7], [8.6]]
    labels, _ = clustered(matrix, "dbscan", neighbourhood=3.0)

    assert labels.tolist() == [0, 0, 1, 1, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("method", COUNTED + DENSE)
def test_a_monstrous_model_stops_nothing(method):
    # Beside it the others are all the same.
    labels, _ = clustered([[0.1], [0.2], [3e38], [5.0]], method)

    assert labels[0] == labels[1] == labels[3]
    if method != "optics":  # which sees one valley, of whatever depth
        assert labels[2] != labels[0]


# ---- clusters within clusters


def around(rng, *centres, each=4):
    """Return coordinates around the centres, and which centre each belongs to."""
    truth = np.repeat(np.arange(len(centres)), each)
    noise = rng.normal(0, 0.05, (len(truth), 12))
    places = np.zeros((len(truth), 12))
    places[:, :3] = np.array(centres)[truth]
    return places + noise, truth


@pytest.mark.parametrize("method", [*COUNTED, "dbscan"])
def test_two_near_concepts_far_from_the_rest_are_told_apart(method):
    # As silhouettes go, the two near ones are one of three clusters.
    matrix, truth = around(
        np.random.default_rng(0), (0, 0, 0), (1, 0, 0), (9, 9, 0), (0, 9, 9)
    )
    wide = {"neighbourhood": 9.0}  # for DBSCAN a radius that joins the two
    whole, _ = clustered(matrix, method, subdivision=9.0, **wide)
    assert whole.max() == 2
    labels, silhouette = clustered(matrix, method, **wide)
    assert adjusted_rand_score(truth, labels) == 1
    expected = silhouette_score(matrix, truth)
    assert silhouette == pytest.approx(expected)
    assert expected < clustered(matrix, method, subdivision=9.0, **wide)[1]


def test_what_a_division_leaves_out_is_noise():
    matrix = [[0], [1], [2], [6], [7], [8], [12], [100], [101], [102]]
    wide = {"neighbourhood": 6.0}
    whole, _ = clustered(matrix, "dbscan", subdivision=9.0, **wide)
    labels, silhouette = clustered(matrix, "dbscan", **wide)

    assert whole.tolist() == [0] * 7 + [1] * 3
    assert labels.tolist() == [0, 0, 0, 1, 1, 1, -1, 2, 2, 2]
    kept = np.delete(matrix, 6, axis=0)
    expected = silhouette_score(kept, [0, 0, 0, 1, 1, 1, 2, 2, 2])
    assert silhouette == pytest.approx(expected)


def test_a_cluster_of_one_concept_is_not_divided_again():
    matrix, truth = around(np.random.default_rng(1), (0, 0, 0), (9, 0, 0), each=6)
    labels, _ = clustered(matrix, at_most=10)
    assert adjusted_rand_score(truth, labels) == 1


def test_the_most_distinct_parts_are_divided_first_while_there_is_room():
    matrix, truth = around(
        np.random.default_rng(2), (0, 0, 0), (2, 0, 0), (90, 0, 0), (90, 1, 0)
    )
    assert clustered(matrix, at_most=2)[0].max() == 1
    labels, _ = clustered(matrix, at_most=3)
    assert adjusted_rand_score(np.minimum(truth, 2), labels) == 1
    labels, _ = clustered(matrix, at_most=4)
    assert adjusted_rand_score(truth, labels) == 1
