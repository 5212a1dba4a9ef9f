"""Data sets in memory and of installed packages take part under their names."""

import numpy as np
import pytest
from fakes import run_in_process, summary_of, tiny
from packages import install
from plans import all_tasks, draw, learned

from fcl_flower.core.errors import ConfigError, ContractError
from fcl_flower.data.arrays import from_arrays
from fcl_flower.data.registry import known_datasets, load_dataset, registered


def bright(classes=4, each=30, name="mine", offset=0):
    """Return images whose brightness is their class."""
    y = np.arange(classes * each) % classes
    rng = np.random.default_rng(offset)
    noise = rng.integers(0, 20, (len(y), 8, 8))
    x = (y[:, None, None] * 50 + noise + offset).astype(np.uint8)
    return from_arrays(x, y, x[: 5 * classes], y[: 5 * classes], name=name)


def test_a_registered_data_set_is_loaded_by_its_name(tmp_path):
    mine = bright()
    with registered(mine):
        assert load_dataset("mine", tmp_path) is mine
        assert load_dataset("mine", tmp_path / "elsewhere") is mine
        assert "mine" in known_datasets(tmp_path)
        assert load_dataset("mine+digits", tmp_path).num_classes == 14
    for name in ("mine", "mine+digits"):
        with pytest.raises(ConfigError, match="dataset: got 'mine', expected one of"):
            load_dataset(name, tmp_path)


def test_another_data_set_of_the_same_name_has_plans_of_its_own():
    counts = []
    for each in (30, 40):
        with registered(bright(each=each)):
            plan = draw("classes", datasets=["mine"], clients=2, tasks=2)
        counts.append(sum(len(learned(task)) for task in all_tasks(plan)))
    assert counts == [4 * 30, 4 * 40]


@pytest.mark.parametrize("name", ["digits", "a+b", "a b", "hub:x/y", "", "a,b"])
def test_a_name_that_is_taken_or_no_name_is_refused(name):
    with (
        pytest.raises(ConfigError, match="dataset: got"),
        registered(bright(name=name)),
    ):
        pytest.fail("it was registered")


def test_a_file_of_the_same_name_is_not_silently_left_out(tmp_path):
    np.savez(tmp_path / "mine.npz", x=np.zeros(1))
    with (
        registered(bright()),
        pytest.raises(ConfigError, match=r"expected one of that name.*mine\.npz"),
    ):
        load_dataset("mine", tmp_path)


def test_the_nearest_name_is_offered(tmp_path):
    with pytest.raises(ConfigError, match=r"did you mean 'digits'\?"):
        load_dataset("digit", tmp_path)


@pytest.mark.run
def test_a_run_learns_from_arrays_in_memory(tmp_path):
    with registered(bright()):
        config = tiny(
            tmp_path, strategy="fedavg", dataset="mine", model="small", epochs=10
        )
        run_in_process(config)
    # Two classes a task, so that guessing gives a half.
    assert summary_of(tmp_path)["average_accuracy"] > 0.8


SOURCE = """
import numpy as np
from fcl_flower.data.arrays import from_arrays

def cats():
    x, y = np.eye(4), np.arange(4) % 2
    return from_arrays(x, y, x, y, ("cat", "dog"), name="cats")

def wrong():
    return 3
"""


def test_a_data_set_can_live_in_another_package(tmp_path, monkeypatch):
    points = {"cats": "cats", "wrong": "wrong"}
    install(monkeypatch, tmp_path, "fcl_flower.datasets", points, SOURCE)
    found = load_dataset("cats", tmp_path)
    assert (found.name, found.class_names) == ("cats", ("cat", "dog"))
    assert load_dataset("cats", tmp_path) is found
    assert "cats" in known_datasets(tmp_path)
    with pytest.raises(ContractError, match="data set wrong: got a int, expected a D"):
        load_dataset("wrong", tmp_path)
