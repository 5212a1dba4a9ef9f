"""What the user left open, decided once: names that suit each other, sizes, defaults.

Nothing else looks at data to find out what a run is: all others get its `RunSpec`.
"""

from collections.abc import Mapping
from pathlib import Path

from fcl_flower.algorithms.registry import Algorithm, algorithm
from fcl_flower.config.parsing import Scalar
from fcl_flower.config.run_config import RunConfig
from fcl_flower.config.run_spec import RunSpec
from fcl_flower.core.errors import config_error
from fcl_flower.data.registry import load_dataset
from fcl_flower.data.scenarios.registry import scenario_entry
from fcl_flower.models.pretrained import EncoderParams, image_shape
from fcl_flower.models.registry import ModelEntry, check_modality, model_entry
from fcl_flower.setup.checks import check, check_local_data
from fcl_flower.setup.entries import Entries, data_root, model_params

_SUITS = {
    "images": "lenet",
    "time-series": "har-cnn",
    "tabular": "mlp",
    "text": "kim-cnn",
}
"""The model for each modality."""


def resolve(config: RunConfig, clients: int = 0) -> RunSpec:
    """Decide what a configuration leaves open.

    A data set and a scenario that suit the strategy, a model that suits the data, a
    batch size and a learning rate that suit the model, and a head, a number of rounds
    and of clients that suit the scenario. ``clients`` are those that are connected; 0
    for those of the configuration.
    """
    if clients:
        config = config.replace(clients=clients)
    method = algorithm(config.strategy.name)
    if config.scenario.name:  # unknown names first: data sets take a while to load
        scenario_entry(config.scenario.name)
    if config.model.name:
        model_entry(config.model.name)
    config = config.replace(**_unset(config, method.defaults))
    local_data = _has_local_data(config)
    if local_data:
        check_local_data(config)
    elif not config.data.datasets:
        config = config.replace(datasets=method.dataset)
    elif not config.data.names:
        expected = "names of data sets separated by commas"
        raise config_error("data.datasets", config.data.datasets, expected)
    if local_data and config.model.head == "single" and not config.data.classes:
        config = config.replace(growing_head=True)
    root = data_root(config)
    modality = _modality(config, root, local_data=local_data)
    model_name = config.model.name or _suitable(method, config, modality)
    check_modality(model_name, modality)
    model = model_entry(model_name)
    config = config.replace(**_of_model(config, method.defaults, model))
    model_params(config, model)
    usual = "text" if modality == "text" else "overlapped"
    scenario_name = config.scenario.name or usual
    scenario = scenario_entry(scenario_name)
    rounds = config.federation.rounds_per_task or scenario.rounds
    config = config.replace(
        **{
            "scenario.name": scenario_name,
            "scenario.clients": config.scenario.clients or scenario.clients,
            "scenario.classes_per_task": config.scenario.classes_per_task
            or (config.model.places if local_data and config.model.growing_head else 0)
            or len(config.data.classes),
            "model.name": model_name,
            "model.head": config.model.head or scenario.head,
            "model.num_features": _num_features(
                config, root, modality, local_data=local_data
            ),
            "training.batch_size": config.training.batch_size or model.batch_size,
            "training.learning_rate": _learning_rate(config, model),
            "federation.rounds_per_task": rounds,
            "federation.evaluate_every": config.federation.evaluate_every
            or max(1, rounds // 20) * scenario.hidden,
        }
    )
    reveals_ids = bool(config.scenario.params.get("reveal_ids", False))
    spec = RunSpec(
        config=config,
        modality=modality,
        input_shape=_input_shape(config, model),
        hidden_tasks=scenario.hidden and not reveals_ids,
        local_data=local_data,
        tasks=1 if scenario.hidden else config.scenario.tasks,
    )
    check(Entries(spec))
    return spec


def _has_local_data(config: RunConfig) -> bool:
    name = config.scenario.name
    return bool(name) and scenario_entry(name).local_data


def _input_shape(config: RunConfig, model: ModelEntry) -> tuple[int, ...]:
    params = model_params(config, model)
    if isinstance(params, EncoderParams) and model.modality == "images":
        return image_shape(params.encoder, params.image_size)
    if model.modality == "tabular":
        return (config.model.num_features,)
    return model.input_shape


def _unset(config: RunConfig, defaults: Mapping[str, Scalar]) -> dict[str, Scalar]:
    given, blank = config.flat(), RunConfig().flat()
    local_data = _has_local_data(config)
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
    keys = {key: f"model.{key}" for key in model.params.model_fields}
    return {
        full: defaults[full]
        for key, full in keys.items()
        if full in defaults and key not in config.model.params
    }


def _suitable(method: Algorithm, config: RunConfig, modality: str) -> str:
    for name in method.models:
        if model_entry(name).modality == modality:
            return name
    return "small" if config.data.names == ("digits",) else _SUITS[modality]


def _learning_rate(config: RunConfig, model: ModelEntry) -> float:
    if config.training.learning_rate == 0 and config.training.optimizer != "adam":
        raise config_error(
            "training.learning_rate",
            config.training.learning_rate,
            f"a rate above 0 with training.optimizer {config.training.optimizer!r}, as "
            "those that suit the models are Adam's",
        )
    return config.training.learning_rate or model.learning_rate


def _num_features(
    config: RunConfig, root: Path, modality: str, *, local_data: bool
) -> int:
    if local_data:
        columns = config.data.column_names if modality == "tabular" else ()
        return config.model.num_features or len(columns)
    source = load_dataset(config.data.names[0], root)
    found = source.train.x.shape[1] if modality == "tabular" else 0
    if config.model.num_features not in (0, found):
        raise config_error(
            "model.num_features",
            config.model.num_features,
            f"{found or 'none'}, as the samples of {source.name!r} are {modality}",
        )
    return found


def _modality(config: RunConfig, root: Path, *, local_data: bool) -> str:
    if local_data:
        return model_entry(config.model.name).modality
    names = config.data.all_names
    modalities = {load_dataset(name, root).modality for name in names}
    if len(modalities) > 1:
        raise config_error(
            "data.datasets",
            ",".join(names),
            f"data sets of one modality, not {' and '.join(sorted(modalities))}",
        )
    return modalities.pop()
