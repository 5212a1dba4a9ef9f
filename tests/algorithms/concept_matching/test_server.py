"""Concept Matching's server half: whole rounds on small models, by hand."""

import numpy as np
import pytest
from fakes import exact
from numpy.testing import assert_allclose
from pydantic import ValidationError
from scipy.spatial.distance import pdist

from fcl_flower.algorithms.base import ServerContext
from fcl_flower.core.errors import WireError
from fcl_flower.core.types import TaskStage, Update
from fcl_flower.federation import messages
from strategies.concept_matching import ConceptMatchingParams
from strategies.concept_matching import server as concept_server
from strategies.concept_matching.maths import gram, gram_of_directions
from strategies.concept_matching.server import ConceptMatching
from strategies.fedavg import FedAvg

RECORD, ROUND = "meta/record", "meta/round"


def stage(number):
    return TaskStage(round=number, task=0, starts_task=False, ends_task=False)


def server(seed=3, **params):
    return ConceptMatching(ConceptMatchingParams(**params), ServerContext(seed))


def model(*weights, seen=0):
    """Return a model of two weights and more, with a counter like BatchNorm's."""
    return {
        "fc.weight": np.float32(weights[:2]).reshape(2, 1),
        "fc.bias": np.float32(weights[2:]),
        "norm.seen": np.array(seen),
    }


def update(*weights, examples=10, seen=0, **metrics):
    return Update({"base": model(*weights, seen=seen)}, examples, metrics)


def state_of(*concepts, record=None, longest=0.0):
    """Return the server's state with these concept models."""
    state = server(concepts=len(concepts)).init(model(*concepts[0]))
    groups = {f"base/{k}": model(*weights) for k, weights in enumerate(concepts)}
    limits = np.full(len(concepts), np.inf) if record is None else np.array(record)
    kept = {"distance": limits, "longest": np.asarray(longest)}
    return {**state, **groups, RECORD: kept}


def concepts_of(state):
    return [
        [*np.ravel(state[group]["fc.weight"]), *state[group]["fc.bias"]]
        for group in sorted(state)
        if group.startswith("base/")
    ]


def told(state, name):
    return state[ROUND][name].tolist()


def travelled(payload):
    return messages.decode_payload(messages.MessageEncoder().payload(payload))


# ---- the beginning


def test_all_concept_models_start_as_the_same_network():
    state = server(concepts=3).init(model(1, 2, 3))

    assert concepts_of(state) == [[1, 2, 3]] * 3
    assert state[RECORD]["distance"].tolist() == [np.inf] * 3
    assert state[RECORD]["longest"] == 0
    assert {name: array.shape for name, array in state[ROUND].items()} == {
        **dict.fromkeys(("client", "cluster", "origin", "reached"), (0,)),
        "map": (0, 2),
        "silhouette": (),
    }


def test_independent_concept_models_are_shuffled_within_each_tensor():
    rng = np.random.default_rng(0)
    first = {"w": rng.normal(size=(7, 9)).astype(np.float32), "n": np.arange(50)}
    state = server(concepts=3, initial="independent").init(first)
    weights = [state[f"base/{k}"]["w"] for k in range(3)]

    assert (weights[0] == first["w"]).all()
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (weights[one] != weights[other]).mean() > 0.9
        assert sorted(weights[one].ravel()) == sorted(weights[other].ravel())
    assert all((state[f"base/{k}"]["n"] == first["n"]).all() for k in range(3))
    again = server(concepts=3, initial="independent").init(first)
    other = server(concepts=3, initial="independent", seed=4).init(first)
    assert exact(again) == exact(state)
    assert exact(other) != exact(state)


def test_every_client_receives_all_concept_models_and_nothing_else():
    strategy = server(concepts=3)
    state = strategy.init(model(1, 2, 3))

    assert strategy.configure_train(state, stage(1), 7) == {
        group: state[group] for group in ("base/0", "base/1", "base/2")
    }


@pytest.mark.parametrize(
    "params",
    [
        {"concepts": 0},
        {"clustering": "kmeans"},
        {"distance": "cosine"},
        {"slack": 0.9},
        {"separation": 1.1},
        {"neighbourhood": 0.0},
        {"exact_clients": 1},
        {"sketch": 15},
        {"clusters": 3},
    ],
)
def test_settings_that_mean_nothing_are_refused(params):
    with pytest.raises(ValidationError, match=next(iter(params))):
        ConceptMatchingParams(**params)


# ---- a round


def five_clients():
    """Three near (0, 0, 0), two near (10, 10, 10)."""
    return {
        3: update(1, 0, 0, examples=10, seen=4),
        4: update(10, 10, 8, examples=10, seen=9),
        9: update(0, 1, 0, examples=30, seen=5),
        17: update(10, 10, 11, examples=20, seen=9),
        40: update(0, 0, 0, examples=0, seen=99),
    }


def test_each_cluster_becomes_the_weighted_mean_of_its_clients():
    strategy = server(concepts=3, steps="length")
    before = state_of((9, 9, 9), (0, 0, 0), (5, 5, 5))
    after = strategy.aggregate_train(before, stage(1), five_clients())

    # (10 (1, 0, 0) + 30 (0, 1, 0)) / 40; (10, 10, (10 * 8 + 20 * 11) / 30).
    assert concepts_of(after) == [[10, 10, 10], [0.25, 0.75, 0], [5, 5, 5]]
    # 4.75 is rounded, and the counter keeps its type.
    assert [after[f"base/{k}"]["norm.seen"].item() for k in range(3)] == [9, 5, 0]
    assert after["base/1"]["norm.seen"].dtype == np.int64
    assert after["base/1"]["fc.weight"].dtype == np.float32
    assert after[RECORD]["distance"].tolist() == [3, 1, np.inf]
    assert told(after, "client") == [3, 4, 9, 17, 40]
    assert told(after, "cluster") == [0, 1, 0, 1, 0]
    assert told(after, "origin") == [1, 0, 1, 0, 1]
    assert told(after, "reached") == [1, 0, 1, 0, 1]
    assert 0.8 < after[ROUND]["silhouette"] < 1


def test_the_median_ignores_examples_and_outliers():
    strategy = server(concepts=1, aggregation="median")
    sent = {
        0: update(1, 5, 0, examples=1, seen=1),
        1: update(2, 4, 0, examples=999, seen=2),
        2: update(90, 6, 0, examples=1, seen=7),
    }
    after = strategy.aggregate_train(state_of((0, 0, 0)), stage(1), sent)

    assert concepts_of(after) == [[2, 5, 0]]
    assert after["base/0"]["norm.seen"].item() == 2
    assert after["base/0"]["fc.weight"].dtype == np.float32


def test_a_median_of_many_pieces_is_numpys(monkeypatch):
    monkeypatch.setattr("fcl_flower.aggregation.robust._CELLS", 9)
    weights = np.random.default_rng(0).normal(size=(4, 11)).astype(np.float32)
    strategy = server(concepts=1, aggregation="median")
    sent = {i: Update({"base": {"w": row}}, 1) for i, row in enumerate(weights)}
    after = strategy.aggregate_train(strategy.init({"w": weights[0]}), stage(1), sent)

    assert_allclose(after["base/0"]["w"], np.median(weights, axis=0), rtol=1e-6)


@pytest.mark.parametrize("aggregation", ["mean", "median"])
def test_where_nobody_has_examples_the_plain_mean_is_taken(aggregation):
    strategy = server(concepts=1, aggregation=aggregation)
    sent = {0: update(1, 2, 3, examples=0), 1: update(3, 2, 1, examples=0)}
    after = strategy.aggregate_train(state_of((0, 0, 0)), stage(1), sent)

    assert concepts_of(after) == [[2, 2, 2]]


def test_with_one_concept_it_is_fedavg():
    strategy, plain = (
        server(concepts=1),
        FedAvg(ConceptMatchingParams(), ServerContext(3)),
    )
    sent = five_clients()
    after = strategy.aggregate_train(state_of((9, 9, 9)), stage(1), sent)
    expected = plain.aggregate_train({"base": model(9, 9, 9)}, stage(1), sent)

    assert after["base/0"].keys() == expected["base"].keys()
    for name, values in expected["base"].items():
        assert_allclose(after["base/0"][name], values, rtol=1e-6)


def test_in_the_first_round_each_cluster_takes_a_model_of_its_own():
    strategy = server(concepts=4)
    state = strategy.init(model(5, 5, 5))
    after = strategy.aggregate_train(state, stage(1), five_clients())

    reached = told(after, "reached")
    assert reached[0] == reached[2] == reached[4] != reached[1] == reached[3]
    assert sorted(concepts_of(after))[1:3] == [[5, 5, 5]] * 2


def test_the_records_of_one_round_limit_the_next():
    strategy = server(concepts=1, slack=2.0)
    state = state_of((0, 0, 0))
    lengths = []
    for number, place in enumerate([1, 3, 8, 4, 4.5], start=1):
        state = strategy.aggregate_train(state, stage(number), {0: update(place, 0, 0)})
        lengths.append((concepts_of(state)[0][0], state[RECORD]["distance"].item()))

    # Steps of 1, 2 (twice the last: just allowed), 5 (refused: the next may be of 4 x
    # 2), 1, 0.5.
    assert lengths == [(1, 1), (3, 2), (3, 4), (4, 1), (4.5, 0.5)]


def test_with_the_literal_rule_records_only_fall():
    strategy = server(concepts=1, matching="literal")
    state = state_of((0, 0, 0))
    lengths = []
    for number, place in enumerate([2, 3, 4, 3.5], start=1):
        state = strategy.aggregate_train(state, stage(number), {0: update(place, 0, 0)})
        lengths.append((concepts_of(state)[0][0], state[RECORD]["distance"].item()))

    assert lengths == [(2, 2), (3, 1), (3, 1), (3.5, 0.5)]


def test_with_the_literal_rule_an_overwritten_cluster_reaches_nothing():
    # Around 4 and around 5; the other concept model is far. See test_server_match.
    places = {0: 3.9, 1: 4.1, 2: 4.9, 3: 5.1}
    sent = {client: update(place, 0, 0) for client, place in places.items()}
    strategy = server(
        concepts=2, matching="literal", clustering="agglomerative", steps="length"
    )
    after = strategy.aggregate_train(state_of((0, 0, 0), (90, 0, 0)), stage(1), sent)

    assert told(after, "reached") == [-1, -1, 0, 0]
    assert_allclose(concepts_of(after), [[5, 0, 0], [90, 0, 0]], rtol=1e-6)
    assert_allclose(after[RECORD]["distance"], [1, np.inf], rtol=1e-6)


@pytest.mark.parametrize(
    ("distance", "reached"), [("manhattan", 0), ("euclidean", 1), ("chebyshev", 2)]
)
def test_the_distance_decides_who_is_nearest(distance, reached):
    # From (0, 0, 0): sums 5, 5.5, 6; lengths 5, 4, 4.2; largest 5, 3.9, 2.6.
    concepts = (5, 0, 0), (3.8, 1.5, 0), (2.4, 2.4, 2.4)
    strategy = server(concepts=3, distance=distance)
    after = strategy.aggregate_train(
        state_of(*concepts), stage(1), {0: update(0, 0, 0)}
    )

    assert told(after, "origin") == told(after, "reached") == [reached]


# ---- who takes part


def test_a_single_client_updates_the_concept_model_it_is_nearest_to():
    strategy = server(concepts=2)
    after = strategy.aggregate_train(
        state_of((0, 0, 0), (9, 9, 9)), stage(1), {17: update(8, 9, 9)}
    )

    assert concepts_of(after) == [[0, 0, 0], [8, 9, 9]]
    assert told(after, "client") == [17]
    assert told(after, "map") == [[0, 0]]
    assert np.isnan(after[ROUND]["silhouette"])


def test_two_clients_are_told_apart_by_where_they_started():
    strategy = server(concepts=2)
    state = state_of((0, 0, 0), (9, 9, 9))
    apart = strategy.aggregate_train(
        state, stage(1), {3: update(1, 0, 0), 5: update(9, 9, 8)}
    )
    together = strategy.aggregate_train(
        state, stage(1), {3: update(1, 0, 0), 5: update(3, 0, 0)}
    )

    assert concepts_of(apart) == [[1, 0, 0], [9, 9, 8]]
    assert concepts_of(together) == [[2, 0, 0], [9, 9, 9]]


def test_clients_may_come_and_go():
    strategy = server(concepts=2)
    state = state_of((0, 0, 0), (9, 9, 9))
    everyone = five_clients()
    for number, present in enumerate([[3, 4, 9], [17], [4, 40, 9, 17], [3, 17]]):
        sent = {client: everyone[client] for client in sorted(present)}
        state = strategy.aggregate_train(state, stage(number + 1), sent)
        assert told(state, "client") == sorted(present)
        near = {client: 1 if client in {4, 17} else 0 for client in present}
        assert told(state, "origin") == [near[client] for client in sorted(present)]


def test_where_all_is_noise_nothing_is_updated():
    strategy = server(concepts=2, clustering="dbscan", neighbourhood=0.5)
    before = state_of((0, 0, 0), (9, 9, 9), record=[3.0, 4.0])
    after = strategy.aggregate_train(before, stage(1), five_clients())

    assert exact({**after, ROUND: {}}) == exact({**before, ROUND: {}})
    assert told(after, "cluster") == told(after, "reached") == [-1] * 5
    assert "kept" not in strategy.diagnostics(after, stage(1), {})


def test_noise_is_left_out_of_the_mean():
    strategy = server(concepts=2, clustering="dbscan", neighbourhood=2)
    sent = {0: update(1, 0, 0), 1: update(2, 0, 0), 2: update(90, 0, 0)}
    sent |= {7: update(500, 0, 0), 8: update(501, 0, 0)}
    after = strategy.aggregate_train(state_of((0, 0, 0), (505, 0, 0)), stage(1), sent)

    assert told(after, "cluster") == [0, 0, -1, 1, 1]
    assert told(after, "reached") == [0, 0, -1, 1, 1]
    assert concepts_of(after) == [[1.5, 0, 0], [500.5, 0, 0]]
    assert strategy.diagnostics(after, stage(1), {})["kept"] == 1, (
        "noise is not counted"
    )


# ---- what the server looks at


def test_metrics_change_nothing():
    strategy = server(concepts=3)
    before = state_of((9, 9, 9), (0, 0, 0), (5, 5, 5))
    plain = five_clients()
    loud = {
        client: Update(u.payload, u.num_examples, {"loss": client, "concept": 2.0})
        for client, u in plain.items()
    }

    assert exact(strategy.aggregate_train(before, stage(1), plain)) == exact(
        strategy.aggregate_train(before, stage(1), loud)
    )


def test_the_map_keeps_distances_in_the_plane():
    corners = {0: (0, 0, 0), 1: (3, 0, 0), 2: (3, 4, 0), 3: (0, 4, 0), 5: (9, 9, 0)}
    sent = {client: update(*place) for client, place in corners.items()}
    strategy = server(steps="length")
    after = strategy.aggregate_train(state_of(*[(1, 1, 1)] * 5), stage(1), sent)

    assert_allclose(pdist(after[ROUND]["map"]), pdist(list(corners.values())))


def test_with_directions_the_map_has_unit_steps_from_starts_that_are_two_apart():
    state = state_of((0, 0, 0), (50, 0, 0))
    places = [(1, 0, 0), (-4, 0, 0), (59, 0, 0), (49.5, 0, 0)]
    sent = {client: update(*place) for client, place in enumerate(places)}
    after = server(concepts=2).aggregate_train(state, stage(1), sent)

    square = [(1, 0), (-1, 0), (1, 2), (-1, 2)]
    assert_allclose(pdist(after[ROUND]["map"]), pdist(square))


def steps_of_two_concepts():
    """Return three short steps that way and three long ones across, from (5, 5, 5)."""
    near = [(5.1, 5.02, 5), (5.1, 5, 5.02), (5.1, 4.98, 5)]
    far = [(5.01, 5, 9), (4.99, 5, 13), (5, 5, 21)]
    return {client: update(*place) for client, place in enumerate(near + far)}


@pytest.mark.parametrize(
    ("steps", "clusters"),
    [("direction", [0, 0, 0, 1, 1, 1]), ("length", [0, 0, 0, 0, 0, 1])],
)
def test_steps_in_one_direction_are_one_concept_however_long(steps, clusters):
    strategy = server(concepts=2, steps=steps, clustering="agglomerative", outlier=999)
    state = strategy.init(model(5, 5, 5))
    after = strategy.aggregate_train(state, stage(1), steps_of_two_concepts())

    assert told(after, "cluster") == clusters


@pytest.mark.parametrize("steps", ["direction", "length"])
def test_a_round_of_many_clients_goes_through_sketches(monkeypatch, steps):
    rng = np.random.default_rng(0)
    truth = rng.permutation(np.repeat(np.arange(4), 6))
    centres = rng.normal(size=(4, 5000))
    noise = rng.normal(scale=0.2, size=(24, 5000))
    lengths_of = rng.choice([1, 9], (24, 1)) if steps == "direction" else 1
    weights = (20 + lengths_of * (centres[truth] + noise)).astype(np.float32)
    sent = {i: Update({"base": {"w": row}}, 1) for i, row in enumerate(weights)}
    first = {"w": np.full(5000, 20, np.float32)}
    lengths = []

    def watched(inner):
        def gram(models, *others):
            (values,) = models[0].values()
            lengths.append(len(values))
            return inner(models, *others)

        return gram

    for name, inner in (("gram", gram), ("gram_of_directions", gram_of_directions)):
        monkeypatch.setattr(concept_server, name, watched(inner))
    for limit in (24, 23):
        strategy = server(exact_clients=limit, sketch=256, steps=steps)
        after = strategy.aggregate_train(strategy.init(first), stage(1), sent)
        groups = np.array(told(after, "cluster"))
        for group in range(4):
            assert len(set(groups[truth == group])) == 1
        assert len(set(groups)) == 4

    assert lengths == [5000, 256]


# ---- what is refused, and what stays as it is


def test_an_honest_update_is_accepted():
    server(concepts=2).check_update(state_of((0, 0, 0), (9, 9, 9)), update(1, 2, 3))


def test_float64_values_whose_squares_overflow_are_refused():
    strategy = server()
    state = strategy.init({"w": np.zeros(2)})

    strategy.check_update(state, Update({"base": {"w": np.array([3e38, 0])}}, 1))
    with pytest.raises(WireError, match="base/w: holds values beyond"):
        strategy.check_update(state, Update({"base": {"w": np.array([0, -1e200])}}, 1))


@pytest.mark.parametrize("aggregation", ["mean", "median"])
def test_equal_models_merge_to_that_model_up_to_the_end_of_float32(aggregation):
    most = float(np.finfo(np.float32).max)
    strategy = server(concepts=1, aggregation=aggregation)
    sent = {client: update(most, -most, 0.1) for client in range(4)}
    after = strategy.aggregate_train(state_of((0, 0, 0)), stage(1), sent)

    assert exact({"": after["base/0"]}) == exact({"": model(most, -most, 0.1)})


@pytest.mark.parametrize("matching", ["literal", "relaxed", "assignment"])
@pytest.mark.parametrize("aggregation", ["mean", "median"])
def test_enormous_updates_stop_nothing(matching, aggregation):
    strategy = server(concepts=3, matching=matching, aggregation=aggregation)
    huge = {50: update(3.4e38, -3.4e38, 3.4e38), 51: update(*[3.4e38] * 3)}
    state = strategy.init(model(0, 0, 0))
    for number in range(1, 4):
        state = strategy.aggregate_train(
            state, stage(number), {**five_clients(), **huge}
        )

    assert np.isfinite(concepts_of(state)).all()


def test_one_model_far_off_does_not_hide_the_concepts_of_the_others():
    state = state_of((9, 9, 9), (0, 0, 0), (5, 5, 5))
    honest = server(concepts=3).aggregate_train(state, stage(1), five_clients())
    sent = {**five_clients(), 50: update(1e30, -1e30, 1e30)}
    after = server(concepts=3).aggregate_train(state, stage(1), sent)

    assert concepts_of(after) == concepts_of(honest)
    assert told(after, "cluster") == [*told(honest, "cluster"), -1]
    assert told(after, "reached") == [*told(honest, "reached"), -1]
    assert after[ROUND]["map"][-1].tolist() == [0, 0]
    found = server(concepts=3).diagnostics(after, stage(1), {})
    assert found["kept"] == server(concepts=3).diagnostics(honest, stage(1), {})["kept"]
    # With room enough it counts like any other.
    patient = server(concepts=3, outlier=1e31).aggregate_train(state, stage(1), sent)
    assert told(patient, "cluster")[-1] != -1


def test_what_a_concept_still_learns_is_no_noise_where_the_others_have_converged():
    state = state_of((0, 0, 0), (9, 9, 9), longest=0.5)
    sent = {client: update(0.001, 0, 0) for client in range(3)}
    sent |= {3: update(9, 9, 10), 4: update(9, 9, 30)}
    after = server(concepts=2).aggregate_train(state, stage(2), sent)

    # 20 times the median step is 0.02; 20 times the longest one before is 10.
    assert told(after, "cluster") == [0, 0, 0, 1, -1]
    assert concepts_of(after)[1] == [9, 9, 10]


@pytest.mark.parametrize("matching", ["literal", "assignment"])
def test_the_longest_step_that_a_concept_model_made_is_remembered(matching):
    strategy = server(concepts=1, slack=2.0, matching=matching)
    state = state_of((0, 0, 0))
    longest = []
    for number, place in enumerate([2, 3, 11, 11, 11, 10.5], start=1):
        state = strategy.aggregate_train(state, stage(number), {0: update(place, 0, 0)})
        longest.append(state[RECORD]["longest"].item())

    # A step of 8 is refused twice, and each time the record doubles: nothing moved.
    expected = [2, 2, 2, 2, 8, 8] if matching == "assignment" else [2] * 6
    assert longest == expected


def test_where_most_models_did_not_move_nobody_is_far_off():
    state = state_of((0, 0, 0))
    sent = {0: update(0, 0, 0), 1: update(0, 0, 0), 2: update(3, 0, 0)}
    after = server(concepts=1).aggregate_train(state, stage(1), sent)
    assert told(after, "cluster") == [0, 0, 0]


@pytest.mark.parametrize("matching", ["literal", "relaxed", "assignment"])
@pytest.mark.parametrize(
    "clustering", ["k-means", "agglomerative", "birch", "dbscan", "optics"]
)
def test_nothing_changes_in_place_and_the_state_travels(clustering, matching):
    strategy = server(concepts=3, clustering=clustering, matching=matching)
    state = strategy.init(model(5, 5, 5))
    assert exact(travelled(state)) == exact(state)
    for number in (1, 2):
        sent = five_clients()
        before = exact(state), {c: exact(u.payload) for c, u in sent.items()}
        after = strategy.aggregate_train(travelled(state), stage(number), sent)

        assert exact(strategy.aggregate_train(state, stage(number), sent)) == exact(
            after
        )
        assert exact(state) == before[0]
        assert {c: exact(u.payload) for c, u in sent.items()} == before[1]
        assert exact(travelled(after)) == exact(after)
        state = after


# ---- what is told of a round


def test_insights_say_who_went_where():
    strategy = server(concepts=3, slack=2.0)
    before = state_of((9, 9, 9), (0, 0, 0), (5, 5, 5), record=[1.0, 9.0, 0.1])
    after = strategy.aggregate_train(before, stage(1), five_clients())
    found = strategy.diagnostics(travelled(after), stage(1), {})

    # Concept 0 may move by 2, but the cluster of 4 and 17 is 3 away: it is refused.
    assert {name: found[name] for name in ("clusters", "updated", "refused")} == {
        "clusters": 2,
        "updated": 1,
        "refused": 1,
    }
    assert found["kept"] == pytest.approx(3 / 5)
    assert found["silhouette"] == after[ROUND]["silhouette"]
    (frame,) = found.pop("map").frames
    where = dict(
        zip(
            frame.clients,
            zip(frame.cluster, frame.origin, frame.reached, strict=True),
            strict=True,
        )
    )
    assert where[17] == (1, 0, -1)
    assert where[40] == (0, 1, 1)
    assert np.array_equal(frame.map, after[ROUND]["map"])
    assert len(where) == len(found) == 5
    assert all(type(value) is float for value in found.values())
    assert np.isfinite(list(found.values())).all()


def test_insights_without_a_silhouette_leave_it_out():
    strategy = server(concepts=2)
    state = state_of((0, 0, 0), (9, 9, 9))
    found = strategy.diagnostics(
        strategy.aggregate_train(state, stage(1), {8: update(8, 9, 9)}), stage(1), {}
    )

    assert "silhouette" not in found
    assert (found["clusters"], found["kept"]) == (1, 1)
    assert strategy.diagnostics(state, stage(1), {}) == {
        "clusters": 0,
        "updated": 0,
        "refused": 0,
    }
