"""Settings that suit local data, read off the files."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from fcl_flower.algorithms.registry import algorithm
from fcl_flower.config.parsing import Scalar
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError, config_error
from fcl_flower.data.arrays import (
    ImageDataset,
    TabularDataset,
    TimeSeriesDataset,
)
from fcl_flower.data.datasets import Dataset
from fcl_flower.data.labels import plain
from fcl_flower.data.local.formats import (
    FOLDER,
    check_columns,
    columns_of,
    ending,
    read_samples,
)
from fcl_flower.data.local.layout import find_tasks
from fcl_flower.data.tables import TEXT, read_arrays, read_rows
from fcl_flower.data.texts import TextDataset
from fcl_flower.models.registry import MODELS, model_entry

_USUAL = {
    ImageDataset: "lenet",
    TimeSeriesDataset: "har-cnn",
    TabularDataset: "mlp",
    TextDataset: "transformer",
}


def with_local_data(config: RunConfig, folders: Sequence[Path]) -> RunConfig:
    """Fill in what a user leaves open for clients with these folders of local data."""
    for key, value, wanted in (
        ("scenario.name", config.scenario.name, "local-data"),
        ("scenario.clients", config.scenario.clients, len(folders)),
    ):
        if value not in ("", 0, wanted):
            raise config_error(
                key, value, f"{wanted!r} with {len(folders)} folders of data"
            )
    proposed = propose(folders, config)
    blank = RunConfig().flat()
    open_keys = {
        key: value
        for key, value in proposed.items()
        if config.flat()[key] == blank[key]
    }
    return config.replace(
        **open_keys, **{"scenario.name": "local-data", "scenario.clients": len(folders)}
    )


def propose(
    folders: Sequence[Path], config: RunConfig | None = None
) -> dict[str, Scalar]:
    """Propose settings by ``section.key`` that suit local data.

    There is a folder for each client. A model that ``config`` names is kept.
    """
    tasks = []
    for folder in folders:
        found = find_tasks(folder)
        if not found:
            raise config_error("data-path", str(folder), "at least one task")
        tasks.append(found)
    first = tasks[0][0].train
    kind = _kind(first)
    given = config.model.name if config is not None else ""
    name = given or _of_strategy(kind, config) or _suitable(kind, first)
    entry = model_entry(name)
    names = columns_of(first) if kind is TabularDataset else ()
    columns = len(names) or (_columns(first) if kind is TabularDataset else 0)
    shape = (columns,) if columns else entry.input_shape
    merged = config is not None and config.data.labels == "merge"
    classes = 0
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
    wanted = 0 if config is None else config.model.num_features
    if names and listed and wanted in (0, columns):
        settings["data.columns"] = ",".join(names)
    if config is None or config.model.head != "single":
        settings["scenario.classes_per_task"] = max(2, classes)
    return settings


def _kind(path: Path) -> type[Dataset]:
    end = ending(path)
    if end == FOLDER:
        return ImageDataset
    if end == ".csv":
        return TextDataset if TEXT in _header(path) else TabularDataset
    if end in (".jsonl", ".jsonl.gz"):
        return TextDataset
    if end != ".npz":
        raise config_error(
            "data-path", str(path), "a file or a folder of a known format"
        )
    x = read_arrays(path, ("x", "y"))[0]["x"]
    if x.ndim == 2:
        return TabularDataset
    outside = x.dtype.kind == "f" and bool(((x < 0) | (x > 1)).any())
    return TimeSeriesDataset if x.ndim == 3 and outside else ImageDataset


def _suitable(kind: type[Dataset], path: Path) -> str:
    if kind is TimeSeriesDataset:
        shape = read_arrays(path, ("x", "y"))[0]["x"].shape[1:]
        fitting = [name for name, entry in MODELS.items() if entry.input_shape == shape]
        if not fitting:
            raise ConfigError(
                f"model.name: got '', expected a network of your own for series of "
                f"shape {shape}, since none of ours takes them"
            )
        return fitting[0]
    return _USUAL[kind]


def _of_strategy(kind: type[Dataset], config: RunConfig | None) -> str:
    wanted = () if config is None else algorithm(config.strategy.name).models
    fitting = [n for n in wanted if model_entry(n).modality == kind.modality]
    return fitting[0] if fitting else ""


def _columns(path: Path) -> int:
    return int(read_arrays(path, ("x", "y"))[0]["x"].shape[1])


def _header(path: Path) -> set[str]:
    return {*next(read_rows(path, ()))[1]}
