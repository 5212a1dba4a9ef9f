"""FedET, server half: which groups travel, and what several uploads make of one."""

import math

import numpy as np
import pytest
from sklearn.covariance import LedoitWolf
from sklearn.preprocessing import StandardScaler

from fcl_flower.aggregation.policy import Aggregation
from fcl_flower.algorithms.base import ServerContext
from fcl_flower.core.errors import ConfigError, WireError
from fcl_flower.core.types import TaskStage, Update
from strategies.fedet import FedEtParams
from strategies.fedet.maths import (
    auxiliary,
    discriminant,
    distillation_targets,
    domains,
    entropy_weights,
    nearest_mean,
    wanted_distribution,
)
from strategies.fedet.server import FedEt

CLASSES = 4


class FakeTrainer:
    """Logits are the public sample times the group's weight; training is noted."""

    def __init__(self, labels=(), classes=(), features=()):
        self.labels = np.array(labels, np.int64)
        self.classes = np.array(classes, np.int64)
        self._features = np.array(features, np.float32)
        self.lessons = []

    def features(self):
        return self._features

    def logits(self, tensors, chosen):
        return np.outer(np.arange(1, len(chosen) + 1), tensors["w"])

    def distill(self, start, chosen, targets, classes, epochs, label_weight=0.0):
        self.lessons.append((start, chosen, targets, classes, epochs, label_weight))
        return {name: np.full_like(tensor, 9) for name, tensor in start.items()}

    def train_router(self, groups, epochs):
        return {"groups": groups}


def model(*weights):
    return {
        "w": np.array(weights or [0] * CLASSES, np.float32),
        "heads.0.bias": np.zeros(CLASSES, np.float32),
    }


def strategy(trainer=None, **params):
    context = ServerContext(0, trainer=lambda: trainer or FakeTrainer())
    return FedEt(FedEtParams(**{"groups": 1, **params}), context)


def told(classes, distribution=None, entropy=1.0):
    shares = np.zeros(CLASSES) if distribution is None else np.array(distribution)
    if distribution is None:
        shares[classes] = 1 / len(classes)
    return {
        "classes": np.array(classes, np.int64),
        "distribution": shares.astype(np.float32),
        "entropy": np.asarray(entropy, np.float32),
    }


def update(tensors, meta, j=0):
    return Update({f"enhancers/{j}": tensors, f"meta/{j}": meta}, num_examples=1)


def stage(number):
    return TaskStage(number, 0, starts_task=True, ends_task=True)


# ---- what is sent


def test_a_client_is_sent_what_changed_since_it_took_part():
    trainer = FakeTrainer([0, 1], [0, 1], [[1, 0], [0, 1]])
    server = strategy(trainer, groups=2)
    state = server.init(model())
    one = server.combine(state, stage(1), {0: update(model(1, 1, 1, 1), told([0]))})
    two = server.combine(one, stage(2), {1: update(model(2, 2, 2, 2), told([1]), j=1)})

    groups = {
        client: {g for g in server.send(two, stage(3), client) if g[0] == "e"}
        for client in (0, 1, 2)
    }
    # Client 0 returned group 0 in round 1, and another may have joined in it.
    assert groups[0] == {"enhancers/0", "enhancers/1"}
    assert groups[1] == {"enhancers/1"}
    assert groups[2] == {"enhancers/0", "enhancers/1"}


def test_the_router_is_sent_once_and_again_to_a_client_that_lost_its_memory():
    trainer = FakeTrainer([0, 1], [0, 1], [[1, 0], [0, 1]])
    server = strategy(trainer, groups=2)
    state = server.init(model())
    assert "router" in server.send(state, stage(1), client=0)

    state = server.combine(state, stage(1), {0: update(model(), told([0]))})
    assert "router" not in server.send(state, stage(2), client=0)
    assert "router" in server.send(state, stage(2), client=1)

    state = server.on_state_lost(state, client=0)
    assert "router" in server.send(state, stage(2), client=0)


# ---- consolidation


def test_a_lone_upload_replaces_the_group():
    trainer = FakeTrainer([0, 1], [0, 1])
    server = strategy(trainer)
    state = server.init(model())
    sent = model(1, 2, 3, 4)

    new = server.combine(state, stage(1), {3: update(sent, told([1, 2]))})

    np.testing.assert_array_equal(new["enhancers/0"]["w"], sent["w"])
    np.testing.assert_array_equal(new["meta/known"]["classes"], [[0, 1, 1, 0]])
    assert not trainer.lessons


def test_a_lone_upload_is_distilled_too_if_asked_for():
    trainer = FakeTrainer([0, 1], [0, 1])
    server = strategy(trainer, least_uploads=1)
    uploads = {3: update(model(1, 2, 3, 4), told([1, 2]))}

    new = server.combine(server.init(model()), stage(1), uploads)

    np.testing.assert_array_equal(new["enhancers/0"]["w"], [9, 9, 9, 9])
    assert len(trainer.lessons) == 1


def test_several_uploads_are_distilled_on_public_data():
    trainer = FakeTrainer([0, 1, 2, 3] * 5, [0, 1, 2, 3] * 5)
    server = strategy(trainer, auxiliary=8, server_epochs=7, label_weight=0.5)
    state = server.init(model())
    state = server.combine(
        state, stage(1), {0: update(model(5, 3, 0, 0), told([0, 1]))}
    )
    uploads = {
        0: update(model(0, 0, 2, 4), told([2, 3], entropy=3.0)),
        1: update(model(0, 0, 6, 0), told([2, 3], entropy=1.0)),
    }

    new = server.combine(state, stage(2), uploads)

    ((start, chosen, targets, classes, epochs, weight),) = trainer.lessons
    np.testing.assert_allclose(start["w"], [0, 0, 3, 3])  # 3/4 of one, 1/4 of the other
    assert len(chosen) == 8
    assert (epochs, weight) == (7, 0.5)
    np.testing.assert_array_equal(classes, [0, 1, 2, 3])
    # Old: 5 and 3 about their mean 4; new: 3 and 3 about 3; times the sample's number.
    np.testing.assert_allclose(targets[0], [1, -1, 0, 0])
    np.testing.assert_allclose(targets[2], [3, -3, 0, 0])
    np.testing.assert_array_equal(new["enhancers/0"]["w"], [9, 9, 9, 9])


def test_of_a_class_that_is_learned_again_the_uploads_speak():
    trainer = FakeTrainer([0, 1, 2, 3] * 5, [0, 1, 2, 3] * 5)
    server = strategy(trainer, auxiliary=8)
    first = {0: update(model(5, 3, 0, 0), told([0, 1]))}
    state = server.combine(server.init(model()), stage(1), first)
    uploads = {
        0: update(model(0, 2, 4, 0), told([1, 2])),
        1: update(model(0, 0, 0, 6), told([2, 3])),
    }

    new = server.combine(state, stage(2), uploads)

    ((_, _, targets, classes, _, _),) = trainer.lessons
    np.testing.assert_array_equal(classes, [0, 1, 2, 3])
    # Old: class 0 alone, less itself. Learned: 1, 2 and 3, less 2.
    np.testing.assert_allclose(targets[0], [0, -1, 0, 1])
    np.testing.assert_array_equal(new["meta/known"]["classes"], [[1, 1, 1, 1]])


@pytest.mark.parametrize("params", [{"consolidation": "mean"}, {}])
def test_without_public_data_or_by_setting_tensors_are_averaged_by_entropy(params):
    trainer = FakeTrainer([0] if params else [], [0] if params else [])
    server = strategy(trainer, **params)
    uploads = {
        0: update(model(4, 0, 0, 0), told([0], entropy=3.0)),
        1: update(model(0, 8, 0, 0), told([1], entropy=1.0)),
    }

    new = server.combine(server.init(model()), stage(1), uploads)

    np.testing.assert_allclose(new["enhancers/0"]["w"], [3, 2, 0, 0])
    assert new["enhancers/0"]["w"].dtype == np.float32
    assert "mean" in server.remarks()["consolidation"]
    assert not trainer.lessons


# ---- auxiliary data


def test_auxiliary_samples_follow_the_distribution():
    labels = np.repeat([0, 1, 2, -1], 50)
    chosen = auxiliary(labels, np.array([0.75, 0.25, 0.0]), 40, seed=1)

    counts = np.bincount(labels[chosen], minlength=3)
    assert counts.sum() == 40
    assert counts[2] == 0
    assert 22 <= counts[0] <= 38  # 30, and three standard deviations either way
    assert len(set(chosen.tolist())) == 40


def test_a_class_without_public_samples_is_passed_over():
    chosen = auxiliary(np.array([0, 0, 1]), np.array([0.5, 0.0, 0.5]), 4, seed=0)
    np.testing.assert_array_equal(np.sort(chosen), [0, 0, 1, 1])


def test_public_samples_of_other_classes_are_drawn_evenly():
    chosen = auxiliary(np.full(6, -1), np.array([0.5, 0.5]), 6, seed=0)
    assert sorted(chosen.tolist()) == [0, 1, 2, 3, 4, 5]


def test_old_classes_get_their_share_of_the_auxiliary_data():
    kept, new = np.array([1, 1, 1, 0], bool), np.array([0, 0, 0, 1], bool)
    found = wanted_distribution(
        [np.array([0, 0, 0, 1.0]), np.array([0, 0, 0.5, 0.5])],
        kept,
        new,
    )
    # Three of four classes are old: 3/4 for them, 1/4 as told (1/4 and 3/4 of it).
    np.testing.assert_allclose(found, [1 / 4, 1 / 4, 1 / 4 + 1 / 16, 3 / 16])
    assert math.isclose(found.sum(), 1)


def test_a_withheld_distribution_is_even():
    kept, new = np.array([1, 0, 0, 0], bool), np.array([0, 1, 1, 0], bool)
    found = wanted_distribution([], kept, new)
    np.testing.assert_allclose(found, [1 / 3, 1 / 3, 1 / 3, 0])


# ---- domains


def test_classes_whose_features_point_the_same_way_are_one_domain():
    features = np.array([[1, 0], [9, 1], [0, 1], [1, 9], [2, 0], [0, 3]], float)
    classes = np.array([0, 1, 2, 3, 0, 2])

    found = domains(features, classes, 2, seed=0)

    assert found[0] == found[1] != found[2] == found[3]


def test_a_prototype_is_the_mean_of_what_a_class_points_at():
    features = np.array([[5, 0], [0, 0.1], [-3, 4]])

    found = nearest_mean(features, np.array([0, 0, 1]))

    expected = [[0.5**0.5] * 2, [-0.6, 0.8]]
    np.testing.assert_allclose(found["weights"], expected, atol=1e-6)
    assert found["offsets"].tolist() == [0, 0]
    assert found["weights"].dtype == found["offsets"].dtype == np.float32


def elongated(count, classes, seed):
    """Return features that vary much where classes do not differ, and their classes."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % classes
    x = rng.normal(size=(count, 6)) * [3, 2, 0.1, 0.1, 0.1, 0.1]
    x[:, 2:5] += np.eye(3)[y]
    return x / np.linalg.norm(x, axis=1, keepdims=True), y


def test_a_discriminant_is_the_nearest_mean_by_mahalanobis_distance():
    """Scikit-learn's own analysis, given the covariance that is documented."""
    x, y = elongated(60, 3, seed=0)
    means = np.stack([x[y == c].mean(0) for c in range(3)])
    scale = StandardScaler(with_mean=False).fit(x - means[y])
    inner = LedoitWolf(assume_centered=True).fit(scale.transform(x - means[y]))
    spread = np.diag(scale.scale_)
    inverse = np.linalg.inv(spread @ inner.covariance_ @ spread)
    away = x[:, None] - means
    expected = -0.5 * np.einsum("ncd,de,nce->nc", away, inverse, away)

    found = discriminant(7 * x, y)

    scores = x @ found["weights"].T + found["offsets"]
    # But for what all classes of a sample share; the least share is small.
    shared = (scores - expected).mean(1, keepdims=True)
    np.testing.assert_allclose(scores - shared, expected, rtol=0.01, atol=0.05)


@pytest.mark.parametrize("router", ["prototype", "discriminant"])
def test_the_router_that_travels_is_linear(router):
    x, y = elongated(30, 3, seed=0)
    server = strategy(FakeTrainer(y, y, x), groups=2, router=router)

    found = server.init(model())["router"]

    expected = (nearest_mean if router == "prototype" else discriminant)(
        x.astype(np.float32), y
    )
    np.testing.assert_array_equal(found["weights"], expected["weights"])
    np.testing.assert_array_equal(found["offsets"], expected["offsets"])
    assert sorted(set(found["groups"].tolist())) == [0, 1]


def test_more_groups_than_public_classes_are_refused():
    with pytest.raises(
        ConfigError, match=r"strategy\.groups: got 3, expected 1, or at"
    ):
        strategy(FakeTrainer([0, 1], [0, 1], [[1, 0], [0, 1]]), groups=3).init(model())


def test_the_router_may_be_a_network_trained_on_the_public_data():
    trainer = FakeTrainer([0, 1, 1], [0, 1, 1], [[1, 0], [0, 1], [0, 1]])
    state = strategy(trainer, groups=2, router="network").init(model())
    groups = state["router"]["groups"]
    assert len(groups) == 3
    assert groups[0] != groups[1] == groups[2]


# ---- what a run says of itself, and what it refuses


def test_notes_say_what_the_server_does_without_what_is_withheld():
    trainer = FakeTrainer([0, 1], [0, 1])
    server = strategy(trainer, distribution="withheld", entropy="withheld")
    assert server.remarks() == {
        "consolidation": "distillation on 2 public samples and their labels",
        "distribution": "withheld: auxiliary data are drawn evenly",
        "entropy": "withheld: all clients weigh the same",
    }
    noised = strategy(trainer, distribution="noised", entropy="noised").remarks()
    assert noised["distribution"] == noised["entropy"] == "noised"


def test_withheld_values_are_neither_needed_nor_taken():
    server = strategy(distribution="withheld", entropy="withheld")
    state = server.init(model())
    bare = {"classes": np.array([1])}
    server.check_update(state, update(model(), bare))
    with pytest.raises(
        WireError, match=r"meta/0: tensors \['distribution', 'entropy'\]"
    ):
        server.check_update(state, update(model(), told([1])))


def spoiled(**changes):
    return {**told([1, 2]), **changes}


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        (update(model(), told([1]), j=1), "unknown group"),
        (update(model(), spoiled(classes=np.array([2, 1]))), "ascending places"),
        (update(model(), spoiled(classes=np.array([1, 1]))), "ascending places"),
        (update(model(), spoiled(classes=np.array([-1]))), "ascending places"),
        (update(model(), spoiled(classes=np.array([4]))), "ascending places"),
        (update(model(), spoiled(classes=np.zeros(0, np.int64))), "1 to 4 integers"),
        (
            update(model(), spoiled(classes=np.zeros((1, 1), np.int64))),
            "1 to 4 integers",
        ),
        (update(model(), spoiled(classes=np.array([1.0]))), "1 to 4 integers"),
        (
            update(model(), spoiled(distribution=np.ones(4, np.float32))),
            "shares that sum to 1",
        ),
        (
            update(model(), spoiled(distribution=np.float32([2, -1, 0, 0]))),
            "shares that sum to 1",
        ),
        (
            update(model(), spoiled(distribution=np.full(4, np.nan, np.float32))),
            "shares that sum to 1",
        ),
    ],
)
def test_an_update_that_does_not_fit_is_refused(sent, complaint):
    server = strategy()
    with pytest.raises(WireError, match=complaint):
        server.check_update(server.init(model()), sent)


@pytest.mark.parametrize(
    ("how", "classes", "most"),
    [("exact", [1], 0.0), ("exact", [0, 2, 3], 1.0986), ("noised", [1, 3], 1.6931)],
)
def test_an_entropy_beyond_that_of_the_classes_is_refused(how, classes, most):
    server = strategy(entropy=how)
    state = server.init(model())

    for fine in (0.0, most):
        server.check_update(state, update(model(), told(classes, entropy=fine)))
    for wrong in (-0.001, most + 0.001, 100.0, np.nan, np.inf):
        with pytest.raises(
            WireError, match=r"^meta/0/entropy: expected 0 to [\d.e-]+ f"
        ):
            server.check_update(state, update(model(), told(classes, entropy=wrong)))


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "geometric-median", "krum"])
def test_one_hostile_upload_moves_neither_tensors_nor_targets(rule):
    trainer = FakeTrainer([0, 1, 2, 3] * 5, [0, 1, 2, 3] * 5)
    server = strategy(trainer)
    server.aggregation = Aggregation(rule)
    sent = [
        model(2, 2, 2, 4),
        model(2, 2, 2, 4),
        model(2, 2, 2, 4.5),
        model(999, 0, 0, 0),
    ]
    uploads = {c: update(one, told([0, 1, 2, 3])) for c, one in enumerate(sent)}

    server.combine(server.init(model()), stage(1), uploads)

    ((start, _, targets, _, _, _),) = trainer.lessons
    np.testing.assert_allclose(start["w"], [2, 2, 2, 4], atol=0.5)
    # Of the first sample: less the mean, which is 2.5.
    np.testing.assert_allclose(targets[0], [-0.5, -0.5, -0.5, 1.5], atol=0.5)


def test_a_group_that_nobody_changed_is_never_sent():
    server = strategy(groups=1)
    sent = server.send(server.init(model()), stage(1), client=0)

    assert set(sent) == {"meta/known"}


def test_uploads_weigh_by_entropy_and_alike_where_there_is_none():
    np.testing.assert_array_equal(entropy_weights([3.0, 1.0, 0.0]), [3, 1, 0])
    np.testing.assert_array_equal(entropy_weights([0.0, 0.0]), [1, 1])
    np.testing.assert_array_equal(entropy_weights([None, None]), [1, 1])


def test_equation_8_by_hand():
    f_old = np.array([[4.0, 2.0, 100.0, 100.0]])
    f_new = np.array([[50.0, 50.0, 7.0, 2.0]])
    learned = np.array([0, 0, 1, 1], bool)
    kept = np.array([1, 1, 0, 0], bool)

    targets = distillation_targets(f_old, f_new, kept, learned)

    # Old: 4 and 2 less 3. New: 7 and 2 less 4.5.
    np.testing.assert_allclose(targets, [[1, -1, 2.5, -2.5]])


@pytest.mark.parametrize("classes", [2, 3])
def test_a_discriminant_knows_which_differences_count(classes):
    train, test = (elongated(60, classes, seed) for seed in range(2))

    def right(scores):
        found = test[0] @ scores["weights"].T + scores["offsets"]
        return (found.argmax(1) == test[1]).mean()

    found = discriminant(7 * train[0], train[1])

    assert right(found) > 0.9
    assert right(nearest_mean(*train)) < 0.8
    assert found["weights"].shape == (classes, 6)
    assert found["weights"].dtype == found["offsets"].dtype == np.float32


@pytest.mark.parametrize("each", [1, 2])
def test_a_discriminant_of_very_few_samples_is_no_worse_than_the_means(each):
    x, y = elongated(3 * each, 3, seed=0)

    found = discriminant(x, y)

    assert np.isfinite(found["weights"]).all()
    assert ((x @ found["weights"].T + found["offsets"]).argmax(1) == y).all()


def test_what_uploads_answer_counts_by_their_entropy():
    trainer = FakeTrainer([0, 1, 2, 3] * 5, [0, 1, 2, 3] * 5)
    server = strategy(trainer)
    uploads = {
        0: update(model(8, 0, 0, 0), told([0, 1, 2, 3], entropy=0.9)),
        1: update(model(0, 8, 0, 0), told([0, 1, 2, 3], entropy=0.3)),
    }

    server.combine(server.init(model()), stage(1), uploads)

    ((_, _, targets, _, _, _),) = trainer.lessons
    np.testing.assert_allclose(targets[0], [4, 0, -2, -2], atol=1e-6)
