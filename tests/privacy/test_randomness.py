"""Noise that nobody else can repeat, but for simulations."""

import os

import numpy as np
import pytest

from fcl_flower.core.schedule import derive
from fcl_flower.privacy.mechanism import (
    SIMULATION,
    is_simulated,
    secret_generator,
    simulated,
)


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
        found, again, other = (draw(1, "privacy", 0, key) for key in (3, 3, 4))
        expected = np.random.default_rng(derive(1, "privacy", 0, 3)).normal(size=8)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(found, again)
    assert not np.array_equal(found, other)


def test_a_simulation_ends_where_it_ends(monkeypatch):
    with simulated():
        with simulated():
            pass
        assert is_simulated()
    assert not is_simulated()
    with pytest.raises(KeyError), simulated():
        raise KeyError
    assert not is_simulated()
    monkeypatch.setenv(SIMULATION, "1")
    with simulated():
        pass
    assert is_simulated()
