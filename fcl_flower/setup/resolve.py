"""What the user left open, decided once: names that suit each other, sizes, defaults.

Both sides of a federation resolve the same configuration and get the same result.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from fcl_flower.algorithms.registry import Algorithm, algorithm
from fcl_flower.config.parsing import Scalar, validate_params
from fcl_flower.config.run_config import RunConfig
from fcl_flower.config.sections import ModelSection, ScenarioSection
from fcl_flower.core.errors import refuse
from fcl_flower.data.registry import load_dataset
from fcl_flower.data.scenarios.registry import scenario_entry
from fcl_flower.models.pretrained import MINILM, EncoderParams
from fcl_flower.models.registry import ModelEntry, check_modality, model_entry
from fcl_flower.setup.checks import (
    check_choices,
    check_local_data,
    has_local_data,
)
from fcl_flower.setup.resolved_run import ResolvedRun

_SUITS = {
    "images": "lenet",
    "time-series": "har-cnn",
    "tabular": "mlp",
    "text": "kim-cnn",
}
"""The model for each modality."""


def resolve(config: RunConfig) -> ResolvedRun:
    """Return the run that a configuration describes.

    A data set and a scenario that suit the strategy, a model that suits the data, a
    batch size and a learning rate that suit the model, and a head, a number of rounds
    and of clients that suit the scenario.

    Raises:
        ConfigError: there is no such data set, scenario or network, a parameter is
            unknown or out of range, or two settings do not go together.
    """
    method = algorithm(config.strategy.name)
    if config.scenario.name:  # unknown names first: data sets take a while to load
        scenario_entry(config.scenario.name)
    if config.model.name:
        model_entry(config.model.name)
    config = config.replace(**_unset(config, method.defaults))
    local_data = has_local_data(config)
    if local_data:
        check_local_data(config)
    elif not config.data.datasets:
        config = config.replace(datasets=method.dataset)
    elif not config.data.names:
        expected = "names of data sets separated by commas"
        raise refuse("data.datasets", config.data.datasets, expected)
    root = data_root(config)
    modality = _modality(config, root, local_data=local_data)
    usual = "text" if modality == "text" else "overlapped"
    scenario_name = config.scenario.name or usual
    model_name = config.model.name or _suitable(method, config, modality)
    check_modality(model_name, modality)
    model, scenario = model_entry(model_name), scenario_entry(scenario_name)
    config = config.replace(**_of_model(config, method.defaults, model))
    model_params = validate_params(
        model.params, config.model.params, "model.", ModelSection.keys()
    )
    if isinstance(model_params, EncoderParams) and modality == "text":
        chosen = model_params.encoder or MINILM
        model_params = model_params.model_copy(update={"encoder": chosen})
    rounds = config.federation.rounds_per_task or scenario.rounds
    evaluate_every = config.federation.evaluate_every
    complete = config.replace(
        **{
            "scenario.name": scenario_name,
            "scenario.clients": config.scenario.clients or scenario.clients,
            "scenario.classes_per_task": config.scenario.classes_per_task
            or len(config.data.classes),
            "model.name": model_name,
            "model.head": config.model.head or scenario.head,
            "model.num_features": _num_features(
                config, root, modality, local_data=local_data
            ),
            "training.batch_size": config.training.batch_size or model.batch_size,
            "training.learning_rate": _learning_rate(config, model),
            "federation.rounds_per_task": rounds,
            "federation.evaluate_every": evaluate_every
            or max(1, rounds // 20) * scenario.hidden,
        }
    )
    run = ResolvedRun(
        config=complete,
        algorithm=method,
        params=method.params(complete.strategy.params),
        scenario=scenario,
        scenario_params=validate_params(
            scenario.params,
            complete.scenario.params,
            "scenario.",
            ScenarioSection.keys(),
        ),
        model=model,
        model_params=model_params,
        modality=modality,
        data_root=root,
    )
    check_choices(run)
    return run


def data_root(config: RunConfig) -> Path:
    """Return the folder with data sets: the setting, ``$FCL_DATA`` or ``./data``."""
    return Path(config.data.root or os.environ.get("FCL_DATA") or "data").absolute()


def _unset(config: RunConfig, defaults: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return those defaults of an algorithm for which the user gives nothing."""
    given, blank = config.flat(), RunConfig().flat()
    local_data = has_local_data(config)
    return {
        key: value
        for key, value in defaults.items()
        if given.get(key) == blank.get(key)
        and not key.startswith("strategy.")  # `Algorithm.params` knows these
        and not (key.startswith("model.") and key not in blank)  # `_of_model` does
        and not (local_data and key.startswith("data."))
    }


def _of_model(
    config: RunConfig, defaults: Mapping[str, Scalar], model: ModelEntry
) -> dict[str, Scalar]:
    """Return those of the model's parameters, where it has them and none is given."""
    keys = {key: f"model.{key}" for key in model.params.model_fields}
    return {
        full: defaults[full]
        for key, full in keys.items()
        if full in defaults and key not in config.model.params
    }


def _suitable(method: Algorithm, config: RunConfig, modality: str) -> str:
    """Return the model that suits an algorithm and its data."""
    for name in method.models:
        if model_entry(name).modality == modality:
            return name
    return "small" if config.data.names == ("digits",) else _SUITS[modality]


def _learning_rate(config: RunConfig, model: ModelEntry) -> float:
    """Return the rate that was given, or the one that suits the model.

    Raises:
        ConfigError: none was given, and the optimizer is not Adam.
    """
    if config.training.learning_rate == 0 and config.training.optimizer != "adam":
        raise refuse(
            "training.learning_rate",
            config.training.learning_rate,
            f"a rate above 0 with training.optimizer {config.training.optimizer!r}, as "
            "those that suit the models are Adam's",
        )
    return config.training.learning_rate or model.learning_rate


def _num_features(
    config: RunConfig, root: Path, modality: str, *, local_data: bool
) -> int:
    """Return how many numbers a sample of tabular data has; 0 for other data.

    Raises:
        ConfigError: the data have another number of them than was given.
    """
    if local_data:
        return config.model.num_features
    source = load_dataset(config.data.names[0], root)
    found = source.train.x.shape[1] if modality == "tabular" else 0
    if config.model.num_features not in (0, found):
        raise refuse(
            "model.num_features",
            config.model.num_features,
            f"{found or 'none'}, as the samples of {source.name!r} are {modality}",
        )
    return found


def _modality(config: RunConfig, root: Path, *, local_data: bool) -> str:
    """Return what is learned from.

    Raises:
        ConfigError: a data set is missing, or modalities are mixed.
    """
    if local_data:
        return model_entry(config.model.name).modality
    names = config.data.all_names
    modalities = {load_dataset(name, root).modality for name in names}
    if len(modalities) > 1:
        raise refuse(
            "data.datasets",
            ",".join(names),
            f"data sets of one modality, not {' and '.join(sorted(modalities))}",
        )
    return modalities.pop()
