"""Plain numbers: told from images and series, kept as they are, and learned from."""

import json

import numpy as np
import pytest
import torch
from fakes import run_in_process

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.data.arrays import TabularDataset
from fcl_flower.data.examples import to_inputs
from fcl_flower.data.registry import load_dataset
from fcl_flower.models.build import create_model
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve


@pytest.fixture(autouse=True)
def fresh_cache():
    load_dataset.cache_clear()


def arrays(classes=4, each=30, numbers=3):
    """Return clouds around far corners, one a class: easy to tell apart."""
    rng = np.random.default_rng(0)
    corners = rng.choice([-4.0, 4.0], size=(classes, numbers))
    corners[:, 0] = 4 * np.arange(classes)
    y = np.arange(classes * each) % classes
    x = corners[y] + rng.normal(size=(len(y), numbers))
    return {"x_train": x, "y_train": y, "x_test": x[:60] + 0.1, "y_test": y[:60]}


@pytest.fixture
def save(tmp_path):
    def saved(name="table", **changes):
        given = {**arrays(), **changes}
        np.savez(tmp_path / f"{name}.npz", **given)
        return given

    return saved


def test_numbers_stay_as_they_are_whatever_their_type(save, tmp_path):
    given = save()
    table = load_dataset("table", tmp_path)
    assert isinstance(table, TabularDataset)
    assert table.train.x.dtype == np.float32
    np.testing.assert_array_equal(table.train.x, given["x_train"].astype("f4"))
    x = to_inputs(table, table.test, np.array([3, 1]), (3,), None)
    np.testing.assert_array_equal(x.numpy(), given["x_test"].astype("f4")[[3, 1]])
    whole = np.arange(360).reshape(120, 3)
    save("whole", x_train=whole)
    np.testing.assert_array_equal(load_dataset("whole", tmp_path).train.x, whole)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"x_test": np.zeros((60, 2))},
            r"test samples of shape \(2,\), exp",
        ),
        ({"x_test": np.zeros((60, 0))}, r"x_test: got shape \(60, 0\)"),
        ({"x_test": np.full((60, 3), np.nan)}, "x_test: .*expected finite"),
        ({"x_test": np.full((60, 3), 1e39)}, "x_test: .*expected finite"),
        ({"x_test": np.full((60, 3), "1")}, "x_test: got dtype <U1, expected numbers"),
    ],
)
def test_a_wrong_array_is_refused_by_file_and_key(save, tmp_path, change, words):
    save(**change)
    with pytest.raises(ConfigError, match=words) as caught:
        load_dataset("table", tmp_path)
    assert str(tmp_path / "table.npz") in str(caught.value)


def test_the_width_of_the_model_is_that_of_the_data(save, tmp_path):
    save()
    config = RunConfig.from_settings(dataset="table", data_root=str(tmp_path), tasks=2)
    found = resolve(config)
    assert (found.config.model.name, found.config.model.num_features) == ("mlp", 3)
    assert resolve(found.config) == found
    assert Built(found).model().input_shape == (3,)
    with pytest.raises(
        ConfigError,
        match=r"model.num_features: got 5, expected 3, as the sam",
    ):
        resolve(config.replace(num_features=5))
    with pytest.raises(
        ConfigError, match=r"model.num_features: got 5, expected none, as"
    ):
        resolve(RunConfig.from_settings(num_features=5))


def test_data_sets_of_different_width_cannot_share_a_model(save, tmp_path):
    save()
    save("wide", **arrays(numbers=5))
    config = RunConfig.from_settings(
        dataset="table,wide",
        scenario="mixed",
        data_root=str(tmp_path),
        clients=2,
        tasks=1,
    )
    with pytest.raises(ConfigError, match=r"expected \(5,\) for the samples of 'wide"):
        Built(resolve(config)).model()


def test_the_network_is_two_normalised_layers():
    model = create_model(
        "mlp", tasks=1, classes=2, single_head=False, seed=0, columns=3
    ).eval()
    weights = {name: w.numpy() for name, w in model.body.state_dict().items()}
    x = np.float32([[1, -2, 3], [100, 0, 7]])
    expected = x
    for layer in "12":
        linear = expected @ weights[f"fc{layer}.weight"].T + weights[f"fc{layer}.bias"]
        centred = linear - linear.mean(1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
        expected = np.maximum(centred / deviation, 0)
    with torch.no_grad():
        found = model.body(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_model_for_numbers_needs_numbers():
    with pytest.raises(ConfigError, match="got 'mlp', expected one for images"):
        create_model("mlp", tasks=1, classes=2, single_head=False, seed=0)
    with pytest.raises(ConfigError, match="got 'small', expected one for tabular: m"):
        create_model("small", tasks=1, classes=2, single_head=False, seed=0, columns=3)


@pytest.mark.parametrize("strategy", ["fedavg", "fedweit"])
def test_a_run_learns_from_numbers(save, tmp_path, strategy):
    save()
    run_in_process(
        RunConfig.from_settings(
            strategy=strategy,
            dataset="table",
            data_root=str(tmp_path),
            clients=2,
            tasks=2,
            rounds=2,
            epochs=5,
            output=str(tmp_path / "run"),
        )
    )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    # Two classes a task, so that guessing gives a half.
    assert summary["average_accuracy"] > 0.8
