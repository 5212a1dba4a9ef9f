"""The server's own samples, where clients have data of their own."""

import numpy as np
import pytest
from fakes import run_in_process, summary_of

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.setup import build
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve

pytest.importorskip("transformers")

COLOURS = {
    "apple": (230, 20, 20),
    "fire": (200, 60, 10),
    "sea": (20, 40, 230),
    "sky": (60, 120, 240),
    "zebra": (120, 120, 120),
}


def pictures(path, names, each, seed=0):
    """Write images of one colour each, but for some noise, with labels by name."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(names)), each)
    colours = np.array([COLOURS[name] for name in names], float)[y]
    x = colours[:, None, None] + rng.normal(0, 12, (len(y), 12, 12, 3))
    path.parent.mkdir(parents=True, exist_ok=True)
    x = np.clip(x, 0, 255).astype(np.uint8)
    np.savez(path, x=x, y=y, class_names=np.array(names))
    return path


@pytest.fixture
def public(tmp_path):
    return pictures(tmp_path / "public.npz", ["apple", "fire", "sea", "sky"], 8)


def config(tmp_path, backbone, public, **values):
    settings = {
        "strategy": "fedet",
        "scenario": "local-data",
        "model": "enhanced-vit",
        "model.encoder": backbone("vit"),
        "model.bottleneck": 4,
        "head": "single",
        "class_names": "apple,sea,fire,sky",
        "clients": 2,
        "tasks": 2,
        "rounds": 1,
        "epochs": 12,
        "learning_rate": 0.01,
        "public_path": str(public),
        "strategy.params": "groups = 2, buffer_fraction = 0.2, auxiliary = 32, "
        "server_epochs = 12",
        "output": str(tmp_path / "run"),
    }
    return RunConfig.from_settings(**{**settings, **values})


def test_labels_are_places_in_the_head_and_unknown_ones_nobodys(tmp_path, backbone):
    public = pictures(tmp_path / "x.npz", ["zebra", "sky", "apple"], 2)

    trainer = Built(resolve(config(tmp_path, backbone, public))).trainer()

    assert trainer.labels.tolist() == [-1, -1, 3, 3, 0, 0]
    # Counted in the alphabetical order of their names.
    assert trainer.classes.tolist() == [2, 2, 1, 1, 0, 0]
    assert trainer.features().shape == (6, 16)


@pytest.mark.run
def test_groups_are_made_and_distilled_of_the_servers_samples(
    tmp_path, backbone, public
):
    places = []
    for client in range(2):
        folder = tmp_path / f"client-{client}"
        for number, names in enumerate((["apple", "sea"], ["fire", "sky"]), 1):
            train = folder / f"task-{number:02}" / "train.npz"
            pictures(train, names, 20, seed=10 * client + number)
        places.append({"data-path": str(folder)})

    run_in_process(config(tmp_path, backbone, public), [71, 23], places=places)

    found = summary_of(tmp_path / "run")
    assert found["remarks"]["consolidation"] == (
        "distillation on 32 public samples and their labels"
    )
    assert found["average_accuracy"] > 0.6  # a quarter by chance


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("", r"strategy.groups: got 2, .*data.public_path\)"),
        ("none.npz", r"none\.npz is missing, expected a file"),
    ],
)
def test_without_them_several_groups_are_refused(tmp_path, backbone, path, sentence):
    with pytest.raises(ConfigError, match=sentence):
        build.validate(resolve(config(tmp_path, backbone, path)))


LOCAL = {"scenario": "local-data", "public_path": "x"}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"strategy": "fedet", "scenario": "class-incremental"}, "none for f"),
        (
            {"strategy": "fedavg", "model": "mlp", "num_features": 2}
            | {"classes_per_task": 2},
            "none for f",
        ),
        # Only clients can number these texts.
        (
            {"strategy": "fedet", "model": "kim-cnn", "num_features": 5},
            ".*word vectors",
        ),
    ],
)
def test_what_nobody_would_use_is_refused(values, sentence):
    sentence = f"data.public_path: got 'x', expected {sentence}"
    with pytest.raises(ConfigError, match=sentence):
        resolve(RunConfig.from_settings(**{**LOCAL, **values}))
