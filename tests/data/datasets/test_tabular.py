"""Plain numbers: told from images and series, kept as they are, and learned from."""

import numpy as np
import pytest
import torch
from fakes import run_in_process, summary_of

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.data.examples import to_inputs
from fcl_flower.data.registry import load_dataset
from fcl_flower.models.build import create_model
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve


def save(folder, name="table", numbers=3):
    """Write clouds around far corners, one a class: easy to tell apart."""
    rng = np.random.default_rng(0)
    corners = rng.choice([-4.0, 4.0], size=(4, numbers))
    corners[:, 0] = 4 * np.arange(4)
    y = np.arange(120) % 4
    x = corners[y] + rng.normal(size=(len(y), numbers))
    given = {"x_train": x, "y_train": y, "x_test": x[:60] + 0.1, "y_test": y[:60]}
    np.savez(folder / f"{name}.npz", **given)
    return given


def test_a_model_gets_the_chosen_rows(tmp_path):
    given = save(tmp_path)
    table = load_dataset("table", tmp_path)
    x = to_inputs(table, table.test, np.array([3, 1]), (3,), None)
    np.testing.assert_array_equal(x.numpy(), given["x_test"].astype("f4")[[3, 1]])
    x.zero_()
    assert table.test.x[1].any()


def test_the_width_of_the_model_is_that_of_the_data(tmp_path):
    save(tmp_path)
    config = RunConfig.from_settings(dataset="table", data_root=str(tmp_path), tasks=2)
    found = resolve(config)
    assert (found.config.model.name, found.config.model.num_features) == ("mlp", 3)
    assert resolve(found.config) == found
    assert Built(found).model().input_shape == (3,)
    for wrong, expected in (
        (config.replace(num_features=5), "3, as the sam"),
        (RunConfig.from_settings(num_features=5), "none, as"),
    ):
        sentence = f"model.num_features: got 5, expected {expected}"
        with pytest.raises(ConfigError, match=sentence):
            resolve(wrong)


def test_data_sets_of_different_width_cannot_share_a_model(tmp_path):
    save(tmp_path)
    save(tmp_path, "wide", numbers=5)
    given = {"scenario": "mixed", "clients": 2, "tasks": 1}
    config = RunConfig.from_settings(
        dataset="table,wide", data_root=str(tmp_path), **given
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


@pytest.mark.run
@pytest.mark.parametrize("strategy", ["fedavg", "fedweit"])
def test_a_run_learns_from_numbers(tmp_path, strategy):
    save(tmp_path)
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
    # Two classes a task, so that guessing gives a half.
    assert summary_of(tmp_path / "run")["average_accuracy"] > 0.8
