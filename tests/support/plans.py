"""Plans that are drawn without training, and small sets to draw them from."""

from pathlib import Path

import numpy as np

from fcl_flower.config.run_config import RunConfig
from fcl_flower.data.scenarios.registry import SCENARIOS, draw_scenario

NOWHERE = Path("no-such-folder")
TURNED = ["digits", *(f"rotated-{by}:digits" for by in (90, 180, 270))]


def draw(name="overlapped", root=NOWHERE, **changes):
    """Draw a plan of digits; some changes are the scenario's own parameters."""
    model = SCENARIOS[name].params
    params = {key: changes.pop(key) for key in model.model_fields if key in changes}
    usual = TURNED if name == "domains" else ["digits"]
    names = ",".join(changes.pop("datasets", usual))
    settings = {"dataset": names, "clients": 3, "tasks": 4, "seed": 7, **changes}
    config = RunConfig.from_settings(scenario=name, **settings)
    return draw_scenario(config, root, model(**params))


def all_tasks(plan):
    return [task for tasks in plan.clients for task in tasks]


def by_task(plan):
    return list(zip(*plan.clients, strict=True))


def learned(task):
    return np.concatenate([task.train, task.valid]).tolist()


def write_images(root, name, y, shape=(4, 4), names=None, first=0):
    """Write a set whose images are the grey levels of their rows; both splits alike."""
    y = np.array(y)
    levels = (np.arange(first, first + len(y)) % 256).astype(np.uint8)
    x = np.zeros((len(y), *shape), np.uint8) + levels.reshape(-1, *[1] * len(shape))
    names = {} if names is None else {"class_names": np.array(names)}
    np.savez(root / f"{name}.npz", x_train=x, y_train=y, x_test=x, y_test=y, **names)


def images_in_turn(root, name, classes, per_class=6, **others):
    """Write a set whose classes take turns."""
    write_images(root, name, np.tile(np.arange(classes), per_class), **others)
