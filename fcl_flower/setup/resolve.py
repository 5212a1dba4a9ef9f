"""A configuration with what the user left to us.

Names that suit each other, sizes that suit the data: both sides work them out alike.
"""

import os
from pathlib import Path

from fcl_flower.algorithms.registry import Algorithm, algorithm
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.data.datasets.registry import load_dataset
from fcl_flower.data.scenarios.registry import scenario_entry
from fcl_flower.models.registry import check_kind, model_entry
from fcl_flower.models.transformer.pretrained import MINILM, image_shape
from fcl_flower.setup.compatibility import check_settings, has_local_data

_SUITS = {
    "images": "lenet",
    "series": "har-cnn",
    "features": "mlp",
    "text": "kim-cnn",
}
"""The model for each kind of data."""


def resolve(config: RunConfig) -> RunConfig:
    """Return the configuration with what the user left to us.

    A data set and a scenario that suit the strategy, a model that suits the data, a
    batch size and a learning rate that suit the model, and a head, a number of rounds
    and of clients that suit the scenario.

    Raises:
        ConfigError: there is no such data set, scenario or network, the head or the
            concept ids do not suit the scenario, or something is left to us that only
            clients know.
    """
    method = algorithm(config.strategy)
    config = config.with_values(scenario=config.scenario or method.scenario)
    if config.public_data and not (has_local_data(config) and method.trainer):
        raise ConfigError(
            f"public-data: {config.public_data!r} is refused: expected none, but for a "
            "strategy whose server trains, where clients have data of their own"
        )
    if has_local_data(config):
        check_settings(config)
    elif config.labels:
        raise ConfigError(
            f"labels: {config.labels!r} is refused: expected none, since the data sets "
            "name their classes"
        )
    else:
        config = config.with_values(dataset=config.dataset or method.dataset)
    kind = data_kind(config)
    scenario = config.scenario or ("text" if kind == "text" else "overlapped")
    name = config.model or _suitable(method, config, kind)
    check_kind(name, kind)
    network, plan = model_entry(name), scenario_entry(scenario)
    if config.backbone and not network.encoder:
        raise ConfigError(
            f"backbone: {config.backbone!r} is refused: expected none, since model "
            f"{name} has no pre-trained encoder"
        )
    head = config.head or plan.head
    if plan.single and head != "single":
        raise ConfigError(
            f"head: {head!r} is refused: expected 'single' for scenario "
            f"{scenario}, {plan.single}"
        )
    if plan.hidden and config.mode == "asynchronous":
        raise ConfigError(
            f"mode: {config.mode!r} is refused: expected 'synchronous' for scenario "
            f"{scenario}, in which clients meet concepts by rounds"
        )
    if config.concept_ids and not (plan.hidden and config.stay):
        raise ConfigError(
            f"concept-ids: True is refused: expected it with hidden concepts that a "
            f"client meets one at a time, not with scenario {scenario} and stay "
            f"{config.stay}"
        )
    rounds = config.rounds or plan.rounds
    return config.with_values(
        scenario=scenario,
        model=name,
        backbone=config.backbone or MINILM * (network.encoder != "" and kind == "text"),
        features=_numbers(config, kind),
        head=head,
        clients=config.clients or plan.clients,
        classes_per_task=config.classes_per_task or len(config.label_names),
        rounds=rounds,
        evaluate_every=config.evaluate_every or max(1, rounds // 20) * plan.hidden,
        batch_size=config.batch_size or network.batch_size,
        learning_rate=config.learning_rate or network.learning_rate,
    )


def _suitable(method: Algorithm, config: RunConfig, kind: str) -> str:
    """Return the model that suits an algorithm and its data."""
    for name in method.models:
        if model_entry(name).kind == kind:
            return name
    return "small" if config.datasets == ("digits",) else _SUITS[kind]


def _numbers(config: RunConfig, kind: str) -> int:
    """Return how many numbers a sample is made of; 0 where it is not plain numbers.

    Raises:
        ConfigError: the data have another number of them than was given.
    """
    if has_local_data(config):
        return config.features
    source = load_dataset(config.datasets[0], data_root(config))
    found = source.train.x.shape[1] if kind == "features" else 0
    if config.features not in (0, found):
        raise ConfigError(
            f"features: {config.features} is refused: expected {found or 'none'}, as "
            f"{source.name!r} has {kind}"
        )
    return found


def input_shape(config: RunConfig) -> tuple[int, ...]:
    """Return the shape of one input of the model, of a completed configuration."""
    entry = model_entry(config.model)
    if entry.encoder and entry.kind == "images":
        return image_shape(config.backbone)
    return (config.features,) if entry.kind == "features" else entry.input_shape


def data_kind(config: RunConfig) -> str:
    """Return ``images``, ``series``, ``features`` or ``text``: what is learned from.

    Raises:
        ConfigError: a data set is missing, or kinds are mixed.
    """
    if has_local_data(config):
        return model_entry(config.model).kind
    root = data_root(config)
    kinds = {load_dataset(name, root).kind for name in config.sources}
    if len(kinds) > 1:
        raise ConfigError(
            f"dataset: {','.join(config.sources)!r} is refused: expected data sets of "
            f"one kind, not {' and '.join(sorted(kinds))}"
        )
    return kinds.pop()


def data_root(config: RunConfig) -> Path:
    """Return the folder with data sets: the setting, ``$FCL_DATA`` or ``./data``."""
    return Path(config.data_root or os.environ.get("FCL_DATA") or "data").absolute()
