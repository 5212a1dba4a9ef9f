"""The mechanism on an update: what one client can change, and what noise is on it."""

import logging
import math
import os

import numpy as np
import pytest
from scipy import stats

from fcl_flower.core.schedule import derive
from fcl_flower.core.types import SparseArray, TaskStage, Update
from fcl_flower.privacy.mechanism import (
    SIMULATION,
    is_simulated,
    privatize,
    secret_generator,
    simulated,
)

CLIP, Z = 0.5, 2.0


class Constant:
    """A generator whose noise is so many standard deviations everywhere."""

    def __init__(self, deviations=0):
        self.deviations = deviations

    def normal(self, mean, deviation, shape):
        return np.full(shape, mean + self.deviations * deviation)


def f32(*values):
    return np.array(values, np.float32)


def sparse(size, **entries):
    index = np.array(sorted(int(key[1:]) for key in entries), np.int64)
    return SparseArray((size,), index, f32(*(entries[f"i{i}"] for i in index)))


def sent(payload, received, rng=None, clip=CLIP, z=Z):
    update = Update(payload, num_examples=17, metrics={"loss": 0.25})
    return privatize(update, received, clip, z, rng or Constant()).payload


def flat(payload):
    return np.concatenate(
        [
            np.asarray(t.to_dense() if isinstance(t, SparseArray) else t).reshape(-1)
            for arrays in payload.values()
            for t in arrays.values()
        ]
    )


# ---- what one client can change


@pytest.mark.parametrize(
    ("learned", "expected"),
    [((1, 4, 4), (1, 1.3, 0.4)), ((1.03, 1, 0.04), (1.03, 1, 0.04))],
    ids=["long", "short"],
)
def test_a_difference_is_clipped_over_all_tensors_together(learned, expected):
    received = {"base": {"a": f32(1, 1), "b": f32(0)}}
    *a, b = learned
    found = sent({"base": {"a": f32(*a), "b": f32(b)}}, received)
    np.testing.assert_allclose(flat(found), expected, rtol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_neighbours_are_at_most_twice_the_clip_apart_whatever_they_learned(seed):
    draw = np.random.default_rng(seed)
    received = {"base": {"w": draw.normal(size=40).astype("f4")}}

    def client(scale):
        learned = received["base"]["w"] + scale * draw.normal(size=40).astype("f4")
        adapter = sparse(30, i3=draw.normal(), i8=scale * draw.normal())
        return {"base": {"w": learned}, "adapters": {"w": adapter}}

    one, other = (flat(sent(client(s), received, z=1e-9)) for s in (100.0, 0.01))
    assert np.linalg.norm(one - other) <= 2 * CLIP + 1e-5

    away = {"base": {"w": received["base"]["w"] + np.float32(9)}}
    back = {"base": {"w": received["base"]["w"] - np.float32(9)}}
    apart = np.linalg.norm(flat(sent(away, received)) - flat(sent(back, received)))
    assert apart == pytest.approx(2 * CLIP, rel=1e-5)


def test_what_was_not_sent_counts_as_not_changed():
    received = {"base": {"w": f32(0, 6, 7, 8)}}
    found = sent({"base": {"w": sparse(4, i1=6.3, i2=7.4)}}, received)["base"]["w"]
    assert isinstance(found, SparseArray)
    assert found.nnz == 4  # which entries are sent tells nothing
    np.testing.assert_allclose(found.to_dense(), [0, 6.3, 7.4, 8], rtol=1e-6)


def test_of_what_was_not_received_the_difference_is_from_zero():
    received = {"base": {"w": SparseArray.of_mask(f32(1, 2), np.array([True, True]))}}
    payload = {"base": {"w": f32(1, 2)}, "adapters": {"w": sparse(3, i2=-4)}}

    found = sent(payload, received, z=1e-9)

    np.testing.assert_allclose(found["base"]["w"], [1, 2])
    np.testing.assert_allclose(found["adapters"]["w"].to_dense(), [0, 0, -CLIP])


def test_counts_metrics_and_whole_numbers_do_not_tell_of_the_data():
    stage = TaskStage(3, 1, starts_task=False, ends_task=True)
    update = Update(
        {"base": {"n": np.array(12), "m": np.array([7]), "w": f32(1)}},
        num_examples=17,
        metrics={"loss": 0.25},
        stage=stage,
    )
    received = {"base": {"n": np.array(9), "w": f32(1)}}

    found = privatize(update, received, CLIP, Z, np.random.default_rng(0))

    assert (found.num_examples, found.metrics, found.stage) == (1, {}, stage)
    base = found.payload["base"]
    assert (base["n"], base["m"].tolist(), base["n"].dtype) == (9, [0], "i8")
    assert isinstance(base["n"], np.ndarray)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["a", "b"])
def test_a_client_that_diverged_sends_noise_alone(broken, where, caplog):
    received = {"base": {"a": f32(1, 2), "b": f32(3)}}
    diverged = {"base": {"a": f32(8, 7), "b": f32(9)}}
    diverged["base"][where][0] = broken
    before = flat(diverged)

    with caplog.at_level(logging.WARNING):
        found = sent(diverged, received, np.random.default_rng(4))

    unchanged = sent(received, received, np.random.default_rng(4))
    np.testing.assert_array_equal(flat(found), flat(unchanged))
    assert "noise is sent in its place" in caplog.text
    np.testing.assert_array_equal(flat(diverged), before)
    np.testing.assert_array_equal(flat(received), [1, 2, 3])


def test_a_variance_stays_one():
    name = "body.bn.running_var"
    received = {"base": {name: np.full(500, 0.1, np.float32), "w": f32(0)}}
    found = sent(received, received, np.random.default_rng(1))["base"]
    assert found[name].min() == 0
    assert found[name].max() > 1


# ---- the noise


def test_every_entry_has_gaussian_noise_of_the_stated_deviation():
    size = 40_000
    base = np.linspace(-1, 1, size).astype("f4")
    received = {"base": {"v": base, "w": base}}
    part = SparseArray.of_mask(base, np.arange(size) < 10)

    rng = np.random.default_rng(7)
    found = sent({"base": {"v": base, "w": part}}, received, rng)["base"]

    noises = [np.float64(found["v"]) - base, found["w"].to_dense() - np.float64(base)]
    for noise in noises:
        assert stats.kstest(noise / (Z * CLIP), "norm").pvalue > 0.01
        assert noise.std() == pytest.approx(Z * CLIP, rel=0.02)
    assert abs(np.corrcoef(*noises)[0, 1]) < 0.02


def test_no_tensor_is_without_noise():
    received = {
        "base": {
            "weight": f32(1, 2),
            "half": np.array([1, 2], np.float16),
            "bn.running_var": f32(3, 4),
            "scalar": np.array(5, np.float32),
        }
    }
    unknown = {"dense/2": {"weight": np.zeros((2, 1), np.float32)}}

    found = sent({**received, **unknown}, received, Constant(1))

    np.testing.assert_allclose(flat(found) - flat(received | unknown), Z * CLIP)


def test_an_adapter_that_was_not_learned_looks_like_noise():
    tensors = {str(number): sparse(2) for number in range(4_000)}

    found = sent({"adapters": tensors}, {}, np.random.default_rng(6))["adapters"]

    # Of two entries those beyond sqrt(2 ln 2) standard deviations.
    stand_out = 2 * stats.norm.sf(math.sqrt(2 * math.log(2)))
    share = np.mean([tensor.nnz / 2 for tensor in found.values()])
    assert share == pytest.approx(stand_out, abs=0.02)
    # A single number has a threshold, too.
    alone = sent({"adapters": {"w": sparse(1, i0=0.5)}}, {})["adapters"]["w"]
    assert alone.nnz == 0


def test_an_adapter_keeps_what_stands_out_of_its_noise_and_no_more():
    size = 20_000
    payload = {"adapters": {"w": sparse(size, i5=40 * Z * CLIP, i9=1e-3)}}

    rng = np.random.default_rng(3)
    found = sent(payload, {}, rng, clip=100.0, z=Z * CLIP / 100)["adapters"]["w"]

    least = Z * CLIP * math.sqrt(2 * math.log(size))
    assert (np.abs(found.values) > least).all()
    assert 5 in found.indices.tolist()
    # Noise exceeds the threshold in about 1 / sqrt(pi ln D) of the tensors only.
    assert found.nnz < 5
    assert found.shape == (size,)


# ---- noise that nobody else can repeat, but for simulations


def draw(*key):
    return secret_generator(*key).normal(size=8)


def test_the_operating_system_decides_outside_of_simulations(monkeypatch):
    assert not is_simulated()
    first, again = (draw(1, "privacy", 0, 3) for _ in range(2))
    assert not np.array_equal(first, again)

    asked = []
    monkeypatch.setattr(os, "urandom", lambda size: asked.append(size) or bytes(size))
    draw(1, "privacy", 0, 3)
    assert asked == [32]


def test_in_a_simulation_the_seed_decides():
    with simulated():
        found, other = (draw(1, "privacy", 0, key) for key in (3, 4))
    expected = np.random.default_rng(derive(1, "privacy", 0, 3)).normal(size=8)
    np.testing.assert_array_equal(found, expected)
    assert not np.array_equal(found, other)


def test_a_simulation_ends_where_it_ends(monkeypatch):
    with simulated():
        with simulated():
            pass
        assert is_simulated()
    with pytest.raises(KeyError), simulated():
        raise KeyError
    assert not is_simulated()
    monkeypatch.setenv(SIMULATION, "1")
    with simulated():
        pass
    assert is_simulated()
