"""Decisions on open settings: names that suit each other, sizes, defaults.

Each is taken here once. All other code gets the `RunSpec`, and looks at no data for it.
"""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from fcl_flower.algorithms.registry import STRATEGY, Algorithm, algorithm
from fcl_flower.config.parsing import Scalar
from fcl_flower.config.run_config import DEFAULTS, RunConfig
from fcl_flower.config.run_spec import RunSpec
from fcl_flower.core.errors import config_error
from fcl_flower.data.arrays import ImageDataset, TabularDataset, TimeSeriesDataset
from fcl_flower.data.datasets import Dataset
from fcl_flower.data.instructions import (
    CLASS,
    InstructionDataset,
    has_instructions,
)
from fcl_flower.data.labels import plain
from fcl_flower.data.local.formats import (
    ENDINGS,
    FOLDER,
    check_columns,
    columns_of,
    ending,
    read_samples,
)
from fcl_flower.data.local.layout import find_tasks
from fcl_flower.data.registry import load_dataset
from fcl_flower.data.scenarios.registry import SCENARIOS
from fcl_flower.data.tables import TEXT, read_arrays, read_rows
from fcl_flower.data.texts import TextDataset
from fcl_flower.models.pretrained import EncoderParams, image_shape
from fcl_flower.models.registry import MODELS, ModelEntry, check_modality
from fcl_flower.setup.checks import check, check_local_data
from fcl_flower.setup.entries import Entries, data_root, model_params

_SUITS = {
    "images": "lenet",
    "time-series": "har-cnn",
    "tabular": "mlp",
    "text": "kim-cnn",
    "instructions": "causal-lm",
}
"""The usual model of each modality."""
_SCENARIOS = {"text": "text", "instructions": "domains"}
"""The usual scenario of a modality; of others it is ``overlapped``."""


def resolve(config: RunConfig, clients: int = 0) -> RunSpec:
    """Decide the settings that a configuration leaves open.

    Data set and scenario suit the strategy, and the model suits the data. Batch size
    and learning rate suit the model. Head, rounds and clients suit the scenario.
    ``clients`` counts connected clients; 0 takes the number of the configuration.
    """
    if clients:
        config = config.replace(clients=clients)
    method = algorithm(config.strategy.name)
    local_data = _has_local_data(config)  # refuses an unknown name
    if config.model.name:
        MODELS[config.model.name]  # refuses an unknown name before data sets load
    config = config.replace(**_of_method(config, method, local_data=local_data))
    local_data = _has_local_data(config)
    named = MODELS[config.model.name] if config.model.name else None
    if local_data and named and named.modality == "instructions":
        config = config.replace(head="single", class_names=CLASS)
    if local_data:
        check_local_data(config)
        if config.model.head == "single" and not config.data.classes:
            config = config.replace(growing_head=True)
    elif not config.data.datasets:
        config = config.replace(datasets=method.dataset)
    elif not config.data.names:
        expected = "names of data sets separated by commas"
        raise config_error("data.datasets", config.data.datasets, expected)
    root = data_root(config)
    modality = _modality(config, root, local_data=local_data)
    model_name = config.model.name or _suitable(method, config, modality)
    check_modality(model_name, modality)
    model = MODELS[model_name]
    own = {
        f"model.{key}": method.defaults[f"model.{key}"]
        for key in model.params.model_fields
        if f"model.{key}" in method.defaults and key not in config.model.params
    }
    config = config.replace(**own)
    model_params(config, model)
    usual = _SCENARIOS.get(modality, "overlapped")
    scenario_name = config.scenario.name or usual
    scenario = SCENARIOS[scenario_name]
    rounds = config.federation.rounds_per_task or scenario.rounds
    features = _num_features(config, root, modality, local_data=local_data)
    config = config.replace(
        **{
            "scenario.name": scenario_name,
            "scenario.clients": config.scenario.clients or scenario.clients,
            "scenario.tasks": config.scenario.tasks
            or scenario.tasks
            or len(config.data.names),
            "scenario.classes_per_task": config.scenario.classes_per_task
            or (config.model.places if local_data and config.model.growing_head else 0)
            or len(config.data.classes),
            "model.name": model_name,
            "model.head": config.model.head or scenario.head,
            "model.num_features": features,
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
    return bool(name) and SCENARIOS[name].local_data


def _input_shape(config: RunConfig, model: ModelEntry) -> tuple[int, ...]:
    params = model_params(config, model)
    if isinstance(params, EncoderParams) and model.modality == "images":
        return image_shape(params.encoder, params.image_size)
    if model.modality == "tabular":
        return (config.model.num_features,)
    return model.input_shape


def _of_method(
    config: RunConfig, method: Algorithm, *, local_data: bool
) -> dict[str, Scalar]:
    """Choose the method's defaults of settings, but not of its parameters."""
    values = config.flat()
    return {
        key: value
        for key, value in method.defaults.items()
        if key in DEFAULTS
        and values[key] == DEFAULTS[key]
        and not key.startswith(STRATEGY)
        and not (local_data and key.startswith("data."))
    }


def _suitable(method: Algorithm, config: RunConfig, modality: str) -> str:
    usual = "small" if config.data.names == ("digits",) else _SUITS[modality]
    return _own_model(method, modality) or usual


def _own_model(method: Algorithm, modality: str) -> str:
    """Find the method's own network for a modality; empty if it has none."""
    fitting = (name for name in method.models if MODELS[name].modality == modality)
    return next(fitting, "")


def _learning_rate(config: RunConfig, model: ModelEntry) -> float:
    if config.training.learning_rate == 0 and config.training.optimizer != "adam":
        raise config_error(
            "training.learning_rate",
            config.training.learning_rate,
            f"a rate above 0 with training.optimizer {config.training.optimizer!r}, as "
            "the models' default rates are for Adam",
        )
    return config.training.learning_rate or model.learning_rate


def _num_features(
    config: RunConfig, root: Path, modality: str, *, local_data: bool
) -> int:
    if local_data:
        names = config.data.column_names if modality == "tabular" else ()
        return config.model.num_features or len(names)
    source = load_dataset(config.data.names[0], root)
    columns = source.train.x.shape[1] if modality == "tabular" else 0
    if config.model.num_features not in (0, columns):
        raise config_error(
            "model.num_features",
            config.model.num_features,
            f"{columns or 'none'}, as the samples of {source.name!r} are {modality}",
        )
    return columns


def _modality(config: RunConfig, root: Path, *, local_data: bool) -> str:
    if local_data:
        return MODELS[config.model.name].modality
    names = config.data.all_names
    modalities = {load_dataset(name, root).modality for name in names}
    if len(modalities) > 1:
        raise config_error(
            "data.datasets",
            ",".join(names),
            f"data sets of one modality, not {' and '.join(sorted(modalities))}",
        )
    return modalities.pop()


# ---- settings that suit the files of local data


def with_local_data(config: RunConfig, folders: Sequence[Path]) -> RunConfig:
    """Fill in open settings for clients with these folders of local data."""
    for key, value, wanted in (
        ("scenario.name", config.scenario.name, "local-data"),
        ("scenario.clients", config.scenario.clients, len(folders)),
    ):
        if value not in ("", 0, wanted):
            expected = f"{wanted!r} with {len(folders)} folders of data"
            raise config_error(key, value, expected)
    proposed = propose(folders, config)
    entry = MODELS[str(proposed["model.name"])]
    if entry.modality == "text" and not (entry.encoder or config.data.word_vectors):
        expected = f"a file of word vectors for model {proposed['model.name']}"
        raise config_error("data.word_vectors", "", expected)
    values = config.flat()
    open_keys = {k: v for k, v in proposed.items() if values[k] == DEFAULTS[k]}
    return config.replace(
        **open_keys, **{"scenario.name": "local-data", "scenario.clients": len(folders)}
    )


def propose(folders: Sequence[Path], config: RunConfig) -> dict[str, Scalar]:
    """Propose settings by ``section.key`` for a folder of local data per client.

    The proposal keeps the model that ``config`` names.
    """
    tasks = []
    for folder in folders:
        task_files = find_tasks(folder)
        if not task_files:
            raise config_error("data-path", str(folder), "at least one task")
        tasks.append(task_files)
    first = tasks[0][0].train
    kind = _kind(first, config.model.name)
    method = algorithm(config.strategy.name)
    name = config.model.name or _own_model(method, kind.modality)
    name = name or _for_files(kind, first)
    names = columns_of(first) if kind is TabularDataset else ()
    if kind is TabularDataset and ending(first) == ".csv" and not names:
        raise config_error(
            "data-path", str(first), "columns of numbers beside label in its first line"
        )
    columns = len(names) or (_columns(first) if kind is TabularDataset else 0)
    shape = (columns,) if columns else MODELS[name].input_shape
    merged, classes = config.data.labels == "merge", 0
    for task in chain.from_iterable(tasks):
        if kind is TabularDataset:
            where = str(task.train)
            check_columns(columns_of(task.train), where, names, str(first))
        labels = read_samples(task.train, kind, shape).names
        classes = max(classes, len(set(map(plain, labels)) if merged else labels))
    settings: dict[str, Scalar] = {
        "scenario.tasks": min(map(len, tasks)),
        "model.name": name,
    }
    if columns:
        settings["model.num_features"] = columns
    # A name with a comma in it cannot be listed.
    listed = not any("," in name or name != name.strip() for name in names)
    if names and listed and config.model.num_features in (0, columns):
        settings["data.columns"] = ",".join(names)
    if config.model.head != "single":
        settings["scenario.classes_per_task"] = max(2, classes)
    return settings


def _kind(path: Path, model: str) -> type[Dataset]:
    """Find the kind of a file's samples; of arrays a named model decides it."""
    end = ending(path)
    if end == FOLDER:
        return ImageDataset
    if end == ".csv":
        return TextDataset if TEXT in _header(path) else TabularDataset
    if end in (".jsonl", ".jsonl.gz"):
        return InstructionDataset if has_instructions(path) else TextDataset
    if end != ".npz":
        raise config_error(
            "data-path", str(path), "a file or a folder of a known format"
        )
    x = read_arrays(path, ("x", "y"))[0]["x"]
    if model:
        modality = MODELS[model].modality
        return next(kind for kind in ENDINGS if kind.modality == modality)
    if x.ndim == 2:
        return TabularDataset
    outside = x.dtype.kind == "f" and bool(((x < 0) | (x > 1)).any())
    return TimeSeriesDataset if x.ndim == 3 and outside else ImageDataset


def _for_files(kind: type[Dataset], path: Path) -> str:
    if kind is not TimeSeriesDataset:
        return "transformer" if kind is TextDataset else _SUITS[kind.modality]
    x = read_arrays(path, ("x", "y"))[0]["x"]
    shape = x.shape[1:]
    fitting = [name for name, entry in MODELS.items() if entry.input_shape == shape]
    if not fitting:
        expected = f"a network of your own for series of shape {shape}"
        expected += ", since no built-in one takes them"
        if x.min() >= 0 and x.max() <= 255 and (x % 1 == 0).all():
            values = f"{x.min():g} to {x.max():g}"
            expected += f"; for grey images uint8, or values in [0, 1], not {values}"
        raise config_error("model.name", "", expected)
    return fitting[0]


def _columns(path: Path) -> int:
    return int(read_arrays(path, ("x", "y"))[0]["x"].shape[1])


def _header(path: Path) -> set[str]:
    return {*next(read_rows(path, ()))[1]}
