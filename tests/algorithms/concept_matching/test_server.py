"""Concept Matching's server half: whole rounds on small models, by hand."""

import numpy as np
import pytest
from fakes import exact
from numpy.testing import assert_allclose
from scipy.spatial.distance import pdist

from fcl_flower.algorithms.base import ServerContext
from fcl_flower.core.errors import WireError
from fcl_flower.core.types import TaskStage, Update
from strategies.concept_matching import ConceptMatchingParams
from strategies.concept_matching import server as concept_server
from strategies.concept_matching.maths import gram, gram_of_directions
from strategies.concept_matching.server import ConceptMatching
from strategies.fedavg import FedAvg

RECORD, ROUND = "meta/record", "meta/round"
NOW = TaskStage(round=1, task=0, starts_task=False, ends_task=False)
APART = [(9, 9, 9), (0, 0, 0), (5, 5, 5)]
"""Concept models, of which `five_clients` are near to two."""


def server(seed=3, **params):
    if params.get("matching") == "literal":
        params.pop("slack", None)  # it limits no move there
    return ConceptMatching(ConceptMatchingParams(**params), ServerContext(seed))


def model(*weights, seen=0):
    """Make a model of two weights and more, with a counter like BatchNorm's."""
    return {
        "fc.weight": np.float32(weights[:2]).reshape(2, 1),
        "fc.bias": np.float32(weights[2:]),
        "norm.seen": np.array(seen),
    }


def update(*weights, examples=10, seen=0):
    return Update({"base": model(*weights, seen=seen)}, examples)


def updates(*places):
    return {client: update(*place) for client, place in enumerate(places)}


def state_of(*concepts, record=None, longest=0.0):
    state = server(concepts=len(concepts)).init(model(*concepts[0]))
    groups = {f"base/{k}": model(*weights) for k, weights in enumerate(concepts)}
    limits = np.full(len(concepts), np.inf) if record is None else np.array(record)
    kept = {"distance": limits, "longest": np.asarray(longest)}
    return {**state, **groups, RECORD: kept}


def after(sent, *concepts, record=None, longest=0.0, **params):
    """Run a round from concept models."""
    strategy = server(concepts=len(concepts), **params)
    state = state_of(*concepts, record=record, longest=longest)
    return strategy.combine(state, NOW, sent)


def concepts_of(state):
    return [
        [*np.ravel(state[group]["fc.weight"]), *state[group]["fc.bias"]]
        for group in sorted(state)
        if group.startswith("base/")
    ]


def told(state, name):
    return state[ROUND][name].tolist()


def five_clients():
    """Three near (0, 0, 0), two near (10, 10, 10)."""
    return {
        3: update(1, 0, 0, examples=10, seen=4),
        4: update(10, 10, 8, examples=10, seen=9),
        9: update(0, 1, 0, examples=30, seen=5),
        17: update(10, 10, 11, examples=20, seen=9),
        40: update(0, 0, 0, examples=0, seen=99),
    }


# ---- the beginning


def test_all_concept_models_start_as_the_same_network_and_all_are_sent():
    strategy = server(concepts=3)
    state = strategy.init(model(1, 2, 3))
    assert concepts_of(state) == [[1, 2, 3]] * 3
    assert state[RECORD]["distance"].tolist() == [np.inf] * 3
    assert strategy.send(state, NOW, 7) == {
        group: state[group] for group in ("base/0", "base/1", "base/2")
    }
    assert strategy.report(state, NOW, {}) == {
        "clusters": 0,
        "updated": 0,
        "refused": 0,
    }


def test_independent_concept_models_are_shuffled_within_each_tensor():
    drawn = np.random.default_rng(0).normal(size=(7, 9)).astype(np.float32)
    first = {"w": drawn, "n": np.arange(50)}
    state = server(concepts=3, initial="independent").init(first)
    weights = [state[f"base/{k}"]["w"] for k in range(3)]
    assert (weights[0] == first["w"]).all()
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (weights[one] != weights[other]).mean() > 0.9
        assert sorted(weights[one].ravel()) == sorted(weights[other].ravel())
    assert all((state[f"base/{k}"]["n"] == first["n"]).all() for k in range(3))
    again = server(concepts=3, initial="independent").init(first)
    other = server(concepts=3, initial="independent", seed=4).init(first)
    assert exact(again) == exact(state) != exact(other)


# ---- a round


def test_each_cluster_becomes_the_weighted_mean_of_its_clients():
    state = after(five_clients(), *APART, steps="length")
    # (10 (1, 0, 0) + 30 (0, 1, 0)) / 40; (10, 10, (10 * 8 + 20 * 11) / 30).
    assert concepts_of(state) == [[10, 10, 10], [0.25, 0.75, 0], [5, 5, 5]]
    # 4.75 is rounded, and the counter keeps its type.
    assert [state[f"base/{k}"]["norm.seen"].item() for k in range(3)] == [9, 5, 0]
    assert state["base/1"]["norm.seen"].dtype == np.int64
    assert state["base/1"]["fc.weight"].dtype == np.float32
    assert state[RECORD]["distance"].tolist() == [3, 1, np.inf]
    assert told(state, "client") == [3, 4, 9, 17, 40]
    assert told(state, "cluster") == [0, 1, 0, 1, 0]
    assert told(state, "origin") == told(state, "reached") == [1, 0, 1, 0, 1]
    assert 0.8 < state[ROUND]["silhouette"] < 1


def test_the_median_ignores_examples_and_outliers():
    sent = {
        0: update(1, 5, 0, examples=1, seen=1),
        1: update(2, 4, 0, examples=999, seen=2),
        2: update(90, 6, 0, examples=1, seen=7),
    }
    state = after(sent, (0, 0, 0), aggregation="median")
    assert concepts_of(state) == [[2, 5, 0]]
    assert state["base/0"]["norm.seen"].item() == 2
    assert state["base/0"]["fc.weight"].dtype == np.float32


@pytest.mark.parametrize("aggregation", ["mean", "median"])
def test_where_nobody_has_examples_the_plain_mean_is_taken(aggregation):
    sent = {0: update(1, 2, 3, examples=0), 1: update(3, 2, 1, examples=0)}
    assert concepts_of(after(sent, (0, 0, 0), aggregation=aggregation)) == [[2, 2, 2]]


def test_with_one_concept_it_is_fedavg():
    plain = FedAvg(ConceptMatchingParams(), ServerContext(3))
    expected = plain.combine({"base": model(9, 9, 9)}, NOW, five_clients())
    found = after(five_clients(), (9, 9, 9))["base/0"]
    assert found.keys() == expected["base"].keys()
    for name, values in expected["base"].items():
        assert_allclose(found[name], values, rtol=1e-6)


def test_in_the_first_round_each_cluster_takes_a_model_of_its_own():
    state = after(five_clients(), *[(5, 5, 5)] * 4)
    reached = told(state, "reached")
    assert reached[0] == reached[2] == reached[4] != reached[1] == reached[3]
    assert sorted(concepts_of(state))[1:3] == [[5, 5, 5]] * 2


@pytest.mark.parametrize(
    ("matching", "places", "expected"),
    [
        # Steps of 1, 2 (twice the last: just allowed), 5 (refused: the next may be of
        # 4 x 2), 1, 0.5: place, record and the longest step so far.
        (
            "assignment",
            [1, 3, 8, 4, 4.5],
            [(1, 1, 1), (3, 2, 2), (3, 4, 2), (4, 1, 2), (4.5, 0.5, 2)],
        ),
        # A step of 8 is refused twice, and each time the record doubles.
        (
            "assignment",
            [2, 3, 11, 11, 11],
            [(2, 2, 2), (3, 1, 2), (3, 2, 2), (3, 4, 2), (11, 8, 8)],
        ),
        ("literal", [2, 3, 4, 3.5], [(2, 2, 2), (3, 1, 2), (3, 1, 2), (3.5, 0.5, 2)]),
    ],
)
def test_the_records_of_one_round_limit_the_next(matching, places, expected):
    strategy = server(concepts=1, slack=2.0, matching=matching)
    state, seen = state_of((0, 0, 0)), []
    for place in places:
        state = strategy.combine(state, NOW, {0: update(place, 0, 0)})
        record = state[RECORD]
        limits = record["distance"].item(), record["longest"].item()
        seen.append((concepts_of(state)[0][0], *limits))
    assert seen == expected


def test_with_the_literal_rule_an_overwritten_cluster_reaches_nothing():
    # Around 4 and around 5; the other concept model is far.
    sent = updates(*((place, 0, 0) for place in (3.9, 4.1, 4.9, 5.1)))
    own = {"matching": "literal", "clustering": "agglomerative", "steps": "length"}
    state = after(sent, (0, 0, 0), (90, 0, 0), **own)
    assert told(state, "reached") == [-1, -1, 0, 0]
    assert_allclose(concepts_of(state), [[5, 0, 0], [90, 0, 0]], rtol=1e-6)
    assert_allclose(state[RECORD]["distance"], [1, np.inf], rtol=1e-6)


@pytest.mark.parametrize(
    ("distance", "reached"), [("manhattan", 0), ("euclidean", 1), ("chebyshev", 2)]
)
def test_the_distance_decides_who_is_nearest(distance, reached):
    # From (0, 0, 0): sums 5, 5.5, 6; lengths 5, 4, 4.2; largest 5, 3.9, 2.6.
    concepts = (5, 0, 0), (3.8, 1.5, 0), (2.4, 2.4, 2.4)
    state = after(updates((0, 0, 0)), *concepts, distance=distance)
    assert told(state, "origin") == told(state, "reached") == [reached]


# ---- who takes part


def test_one_or_two_clients_are_told_apart_by_where_they_started():
    ends = (0, 0, 0), (9, 9, 9)
    alone = after({17: update(8, 9, 9)}, *ends)
    assert concepts_of(alone) == [[0, 0, 0], [8, 9, 9]]
    assert told(alone, "client") == [17]
    assert told(alone, "map") == [[0, 0]]
    found = server(concepts=2).report(alone, NOW, {})
    assert "silhouette" not in found, "there is none"
    apart = after(updates((1, 0, 0), (9, 9, 8)), *ends)
    assert concepts_of(apart) == [[1, 0, 0], [9, 9, 8]]
    together = after(updates((1, 0, 0), (3, 0, 0)), *ends)
    assert concepts_of(together) == [[2, 0, 0], [9, 9, 9]]


def test_where_all_is_noise_nothing_is_updated():
    own = {"clustering": "dbscan", "neighbourhood": 0.5}
    ends = (0, 0, 0), (9, 9, 9)
    state = after(five_clients(), *ends, record=[3.0, 4.0], **own)
    before = state_of(*ends, record=[3.0, 4.0])
    assert exact({**state, ROUND: {}}) == exact({**before, ROUND: {}})
    assert told(state, "cluster") == told(state, "reached") == [-1] * 5
    assert "kept" not in server(concepts=2).report(state, NOW, {})


def test_noise_is_left_out_of_the_mean():
    places = [(place, 0, 0) for place in (1, 2, 90, 500, 501)]
    own = {"clustering": "dbscan", "neighbourhood": 2}
    state = after(updates(*places), (0, 0, 0), (505, 0, 0), **own)
    assert told(state, "cluster") == told(state, "reached") == [0, 0, -1, 1, 1]
    assert concepts_of(state) == [[1.5, 0, 0], [500.5, 0, 0]]
    assert server(concepts=2).report(state, NOW, {})["kept"] == 1


# ---- what the server looks at


def test_the_map_keeps_distances_in_the_plane():
    corners = [(0, 0, 0), (3, 0, 0), (3, 4, 0), (0, 4, 0), (9, 9, 0)]
    state = after(updates(*corners), *[(1, 1, 1)] * 5, steps="length")
    assert_allclose(pdist(state[ROUND]["map"]), pdist(corners))
    # By directions: unit steps from starts that are two apart.
    places = [(1, 0, 0), (-4, 0, 0), (59, 0, 0), (49.5, 0, 0)]
    state = after(updates(*places), (0, 0, 0), (50, 0, 0))
    square = [(1, 0), (-1, 0), (1, 2), (-1, 2)]
    assert_allclose(pdist(state[ROUND]["map"]), pdist(square))


@pytest.mark.parametrize(
    ("steps", "clusters"),
    [("direction", [0, 0, 0, 1, 1, 1]), ("length", [0, 0, 0, 0, 0, 1])],
)
def test_steps_in_one_direction_are_one_concept_however_long(steps, clusters):
    # Three short steps that way and three long ones across, from (5, 5, 5).
    near = [(5.1, 5.02, 5), (5.1, 5, 5.02), (5.1, 4.98, 5)]
    far = [(5.01, 5, 9), (4.99, 5, 13), (5, 5, 21)]
    own = {"steps": steps, "clustering": "agglomerative", "outlier": 999}
    state = after(updates(*near, *far), *[(5, 5, 5)] * 2, **own)
    assert told(state, "cluster") == clusters


@pytest.mark.parametrize("steps", ["direction", "length"])
def test_a_round_of_many_clients_goes_through_sketches(monkeypatch, steps):
    rng = np.random.default_rng(0)
    truth = rng.permutation(np.repeat(np.arange(4), 6))
    centres, noise = rng.normal(size=(4, 2000)), rng.normal(scale=0.2, size=(24, 2000))
    factors = rng.choice([1, 9], (24, 1)) if steps == "direction" else 1
    weights = (20 + factors * (centres[truth] + noise)).astype(np.float32)
    sent = {i: Update({"base": {"w": row}}, 1) for i, row in enumerate(weights)}
    lengths = []

    def watched(inner):
        def gram(models, *others):
            (values,) = models[0].values()
            lengths.append(len(values))
            return inner(models, *others)

        return gram

    for inner in (gram, gram_of_directions):
        monkeypatch.setattr(concept_server.maths, inner.__name__, watched(inner))
    for limit in (24, 23):
        strategy = server(exact_clients=limit, sketch=256, steps=steps)
        state = strategy.init({"w": np.full(2000, 20, np.float32)})
        groups = np.array(told(strategy.combine(state, NOW, sent), "cluster"))
        assert len(set(groups)) == len(set(zip(truth, groups, strict=True))) == 4
    assert lengths == [2000, 256]


# ---- values that are far off


def test_float64_values_whose_squares_overflow_are_refused():
    strategy = server()
    state = strategy.init({"w": np.zeros(2)})
    strategy.check_update(state, Update({"base": {"w": np.array([3e38, 0])}}, 1))
    with pytest.raises(WireError, match="base/w: holds values beyond"):
        strategy.check_update(state, Update({"base": {"w": np.array([0, -1e200])}}, 1))


@pytest.mark.parametrize("matching", ["literal", "relaxed", "assignment"])
@pytest.mark.parametrize("aggregation", ["mean", "median"])
def test_enormous_updates_stop_nothing(matching, aggregation):
    strategy = server(concepts=3, matching=matching, aggregation=aggregation)
    most = float(np.finfo(np.float32).max)
    huge = {50: update(most, -most, most), 51: update(most, most, most)}
    state = strategy.init(model(0, 0, 0))
    for _ in range(3):
        state = strategy.combine(state, NOW, {**five_clients(), **huge})
    assert np.isfinite(concepts_of(state)).all()
    same = updates(*[(most, -most, 0.1)] * 4)
    state = after(same, (0, 0, 0), aggregation=aggregation)
    assert exact({"": state["base/0"]}) == exact({"": model(most, -most, 0.1)})


def test_one_model_far_off_does_not_hide_the_concepts_of_the_others():
    honest = after(five_clients(), *APART)
    sent = {**five_clients(), 50: update(1e30, -1e30, 1e30)}
    state = after(sent, *APART)
    assert concepts_of(state) == concepts_of(honest)
    for name in ("cluster", "reached"):
        assert told(state, name) == [*told(honest, name), -1]
    assert state[ROUND]["map"][-1].tolist() == [0, 0]
    # With room enough it counts like any other.
    assert told(after(sent, *APART, outlier=1e31), "cluster")[-1] != -1


def test_what_a_concept_still_learns_is_no_noise_where_the_others_have_converged():
    sent = updates(*[(0.001, 0, 0)] * 3, (9, 9, 10), (9, 9, 30))
    state = after(sent, (0, 0, 0), (9, 9, 9), longest=0.5)
    # 20 times the median step is 0.02; 20 times the longest one before is 10.
    assert told(state, "cluster") == [0, 0, 0, 1, -1]
    assert concepts_of(state)[1] == [9, 9, 10]
    still = after(updates((0, 0, 0), (0, 0, 0), (3, 0, 0)), (0, 0, 0))
    assert told(still, "cluster") == [0, 0, 0], "most did not move at all"


# ---- what is told of a round


def test_diagnostics_say_who_went_where():
    strategy = server(concepts=3, slack=2.0)
    state = after(five_clients(), *APART, record=[1.0, 9.0, 0.1], slack=2.0)
    found = dict(strategy.report(state, NOW, {}))
    (frame,) = found.pop("map").frames
    # Concept 0 may move by 2, but the cluster of 4 and 17 is 3 away: it is refused.
    assert found == {
        "clusters": 2,
        "updated": 1,
        "refused": 1,
        "kept": pytest.approx(3 / 5),
        "silhouette": state[ROUND]["silhouette"],
    }
    assert frame.clients == [3, 4, 9, 17, 40]
    assert frame.cluster == [0, 1, 0, 1, 0]
    assert frame.origin == [1, 0, 1, 0, 1]
    assert frame.reached == [1, -1, 1, -1, 1]
    assert np.array_equal(frame.map, state[ROUND]["map"])
