"""The Python interface: run a federation, or compare several."""

import hashlib
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from rich.console import Console
from torch import nn

from fcl_flower.algorithms import registry as algorithm_registry
from fcl_flower.algorithms.registry import DATASET, Algorithm
from fcl_flower.config.run_config import RunConfig, check_not_zero, long_keys
from fcl_flower.core.errors import FclError, RoundError, config_error, unknown_name
from fcl_flower.core.files import check_path
from fcl_flower.core.processes import make_folder
from fcl_flower.core.registry import Registry
from fcl_flower.data import registry as dataset_registry
from fcl_flower.data.arrays import ARRAYS, from_arrays
from fcl_flower.data.datasets import Dataset
from fcl_flower.data.scenarios.given import GIVEN_TASKS, GivenTasks
from fcl_flower.data.scenarios.registry import SCENARIOS
from fcl_flower.data.transforms import TRANSFORMS
from fcl_flower.models.registry import MODELS, ModelEntry
from fcl_flower.results.result import Comparison, Result
from fcl_flower.service.changes import extend
from fcl_flower.setup.build import validate
from fcl_flower.setup.entries import data_root
from fcl_flower.setup.preset import read_preset
from fcl_flower.setup.resolve import resolve
from fcl_flower.simulation.local_runs import Backend, Job
from fcl_flower.simulation.progress import shown
from fcl_flower.simulation.study import Study, variants_of
from fcl_flower.simulation.study_runs import run_folder, run_study

BackendName: TypeAlias = Literal["in-process", "flower"]
BACKENDS = ("in-process", "flower")

Data: TypeAlias = Dataset | GivenTasks | Sequence[Any]
Augment: TypeAlias = str | Callable[..., Any]
Model: TypeAlias = str | Mapping[str, object] | ModelEntry | Callable[..., nn.Module]


def simulate(
    algorithm: str | Algorithm | RunConfig = "fedweit",
    *,
    preset: str | None = None,
    backend: BackendName = "in-process",
    output: Path | str | None = None,
    resume: Path | str | None = None,
    workers: int | None = None,
    progress: bool = True,
    data: Data | None = None,
    model: Model | None = None,
    augment: Augment | None = None,
    **settings: object,
) -> Result:
    """Run one federation on this machine.

    Args:
        algorithm: a name (``fcl list``), an algorithm of your own, or a whole
            configuration.
        preset: name of a published protocol, ``fcil-cifar100``, under the settings.
        backend: ``in-process``, or ``flower`` for Flower's simulation runtime, in
            which clients train in parallel; the numbers are the same.
        output: folder for the results; None for a temporary one that is kept as long
            as the result.
        resume: folder of a run that goes on in place of a new one: with its own
            settings, but for more ``tasks`` and ``rounds`` of these. An algorithm, data
            or a model of your own has to be given again. A run that has finished needs
            its clients' states (``keep_clients``).
        workers: clients that train at the same time, in processes of their own; None
            for one after the other in this process, or with ``flower`` for as many as
            there are cores.
        progress: show how far the run is.
        data: a data set, the arrays that `from_arrays` takes, or a data set with its
            tasks, such as `from_avalanche` gives; None for the data set that the
            setting ``dataset`` names.
        model: a name, a mapping with a name and parameters, or a body of your own: a
            module from (batch, *input_shape) to (batch, features), a callable without
            arguments that makes one, or a `ModelEntry`.
        augment: names as in ``training.augment``, or a callable of your own: from a
            batch of training samples, and a ``torch.Generator`` if it takes one, to
            samples of the same shape. Pixels of images are between 0 and 1.
        settings: as in `RunConfig.from_settings`, such as ``clients=4``, ``rounds=5``,
            ``scenario="concepts"`` or ``strategy={"lambda1": 0.001}``.

    Raises:
        ConfigError: a setting is unknown or refused; the message names it.
        RoundError: the run failed; the message says why.
    """
    where = _backend(backend, workers)
    protocol = read_preset(preset)
    base = RunConfig.of(protocol.settings)
    if preset is not None and (resume is not None or isinstance(algorithm, RunConfig)):
        expected = "none beside a run or a configuration, which has all settings"
        raise config_error("preset", preset, expected)
    if isinstance(algorithm, RunConfig):
        base, algorithm = algorithm, algorithm.strategy.name
    more: dict[str, Any] = {}
    if resume is not None:
        more = _longer(settings, output, model, augment)
        settings, output = {}, resume
        base = RunConfig.read(Path(resume) / "config.toml", "resume")
    own = data, model, augment
    with _registered(where, [algorithm], *own, settings, base) as given:
        (name,), named = given
        if resume is None:
            params = protocol.params_for([name])
            run = resolve(base.replace(**{**params, **named, "strategy.name": name}))
        else:
            run = resolve(extend(Path(resume), **more))
        validate(run)
        with _folder_for(output) as (folder, keeps):
            if (folder / "summary.json").exists():
                raise config_error(
                    "output", str(folder), "a folder without a finished run"
                )
            console = Console(quiet=not progress)
            ((_, result),) = shown(console, where, [Job(run, folder)])
            if isinstance(result, FclError):
                raise result
    return Result.load(folder, keeps)


def _longer(
    settings: Mapping[str, object],
    output: object,
    model: Model | None,
    augment: Augment | None,
) -> dict[str, object]:
    """Take what a run that goes on may have more of; it has all else."""
    named = {
        "output": output,
        "model": model if isinstance(model, str | Mapping) else None,
        "augment": augment if isinstance(augment, str) else None,
    }
    for key, value in {**settings, **named}.items():
        if value is not None and key not in ("tasks", "rounds"):
            expected = "none beside resume but more tasks, as the run has its own"
            raise config_error(key, value, expected)
    return dict(settings)


def compare(
    algorithms: Sequence[str | Algorithm],
    seeds: Sequence[int] = (0,),
    *,
    preset: str | None = None,
    counterparts: bool = True,
    backend: BackendName = "in-process",
    output: Path | str | None = None,
    workers: int | None = None,
    progress: bool = True,
    data: Data | None = None,
    model: Model | None = None,
    augment: Augment | None = None,
    **settings: object,
) -> Comparison:
    """Run several algorithms on the identical scenario, each with every seed.

    Args:
        algorithms: names, or algorithms of your own; a parameter in
            ``strategy={...}`` goes to those that know it.
        seeds: of the runs.
        preset: see `simulate`.
        counterparts: also run each algorithm without communication.
        backend: see `simulate`.
        output: see `simulate`; runs that are finished in the folder are kept, and
            interrupted ones are resumed.
        workers: see `simulate`.
        progress: see `simulate`.
        data: see `simulate`.
        model: see `simulate`.
        augment: see `simulate`.
        settings: see `simulate`.

    Raises:
        ConfigError: a setting is unknown or refused; the message names it.
        RoundError: some runs failed, all others are finished; the message says why.
    """
    where = _backend(backend, workers)
    if isinstance(algorithms, str) or not algorithms:
        raise config_error("algorithms", algorithms, "a list of one or more")
    if not (isinstance(seeds, Sequence | np.ndarray) and len(seeds)):
        raise config_error("seeds", seeds, "a list of one or more")
    seeds = [one.item() if isinstance(one, np.generic) else one for one in seeds]
    if "seed" in settings:
        raise config_error("seed", settings["seed"], "none, as there are seeds")
    protocol = read_preset(preset)
    base = RunConfig.of(protocol.settings)
    own = data, model, augment
    with _registered(where, algorithms, *own, settings, base) as given:
        names, named = given
        params = {k: v for k, v in named.items() if k.startswith("strategy.")}
        shared = base.replace(**{k: v for k, v in named.items() if k not in params})
        params = {**protocol.params_for(names), **params}
        variants = variants_of(names, shared, params, counterparts=counterparts)
        study = Study(variants, tuple(seeds))
        with _folder_for(output) as (folder, keeps):
            console = Console(quiet=not progress)
            run_study(study, folder, lambda jobs: shown(console, where, jobs))
    folders = dict.fromkeys(run_folder(folder, config) for config in study.runs())
    results = tuple(Result.load(place, keeps) for place in folders)
    return Comparison(folder, results, keeps)


def _backend(name: str, workers: int | None) -> Backend:
    if name not in BACKENDS:
        raise unknown_name("backend", name, BACKENDS)
    if workers is not None and (type(workers) is not int or workers < 1):
        raise config_error("workers", workers, "a whole number of at least 1, or None")
    return Backend(name, workers)


# ---- objects of this process, which a configuration can only name


@contextmanager
def _registered(
    backend: Backend,
    algorithms: Sequence[str | Algorithm],
    data: Data | None,
    model: Model | None,
    augment: Augment | None,
    settings: Mapping[str, object],
    base: RunConfig,
) -> Iterator[tuple[list[str], dict[str, object]]]:
    """Give objects names while the context lasts.

    Yields:
        the names of the algorithms, and the settings by ``section.key``.
    """
    given = long_keys(settings)
    check_not_zero(given)
    if "strategy.name" in given:
        expected = "only its parameters, as the algorithm is the first argument"
        raise config_error("strategy.name", given["strategy.name"], expected)
    with ExitStack() as stack:
        names = []
        for one in algorithms:
            if not isinstance(one, str | Algorithm):
                raise config_error(
                    "algorithm", one, "a name, or an Algorithm of your own"
                )
            names.append(one if isinstance(one, str) else one.name)
            if not isinstance(one, str) and not _is_known(one):
                _only_in_process(backend, "algorithm")
                stack.enter_context(algorithm_registry.registered(one))
        if data is not None:
            _only_in_process(backend, "data")
            if "data.datasets" in given:
                raise config_error(
                    "dataset", given["data.datasets"], "none, as data is given"
                )
            given = {**_register_data(stack, data, given), **given}
        if isinstance(model, str | Mapping):
            given |= long_keys({"model": model})
        elif model is not None:
            _only_in_process(backend, "model")
            config = base.replace(**given)
            given["model.name"] = _register_model(stack, model, names, config)
        if augment is not None:
            given["training.augment"] = _named_transform(stack, backend, augment)
        yield names, given


def _register_data(
    stack: ExitStack, data: Data, given: Mapping[str, object]
) -> dict[str, object]:
    settings: dict[str, object] = {}
    if isinstance(data, GivenTasks):
        if "scenario.name" in given:
            expected = "none, as data has its tasks"
            raise config_error("scenario", given["scenario.name"], expected)
        stack.enter_context(SCENARIOS.registered(GIVEN_TASKS, data.entry))
        settings.update(data.settings)
        data = data.data
    if not isinstance(data, Dataset):
        if isinstance(data, str) or not isinstance(data, Sequence) or len(data) < 4:
            got = type(data).__name__
            raise config_error(
                "data", got, f"a Dataset, or a list of {', '.join(ARRAYS)}"
            )
        data = from_arrays(*data)
    source = _named(data)
    stack.enter_context(dataset_registry.registered(source))
    return {**settings, "data.datasets": source.name}


def _register_model(
    stack: ExitStack,
    model: ModelEntry | Callable[..., nn.Module],
    names: Sequence[str],
    config: RunConfig,
) -> str:
    if isinstance(model, ModelEntry):
        entry = model
    elif callable(model):
        from fcl_flower.models.build import from_module  # imports torch: seconds

        entry = from_module(model, _input_shape(_first_dataset(names, config)))
    else:
        raise config_error("model", model, "a name, a mapping, or a body of your own")
    name = _free_name(model, MODELS, "model")
    stack.enter_context(MODELS.registered(name, entry))
    return name


def _named_transform(stack: ExitStack, backend: Backend, augment: Augment) -> str:
    if isinstance(augment, str):
        return augment
    if not callable(augment):
        expected = "names separated by commas, or a callable of your own"
        raise config_error("augment", augment, expected)
    _only_in_process(backend, "augment")
    name = _free_name(augment, TRANSFORMS, "transform")
    stack.enter_context(TRANSFORMS.registered(name, augment))
    return name


def _is_known(own: Algorithm) -> bool:
    return algorithm_registry.algorithms().get(own.name) is own


def _only_in_process(backend: Backend, key: str) -> None:
    if backend.name != "in-process":
        expected = f"in-process, as {key} is a Python object"
        raise config_error("backend", backend.name, expected)
    if backend.workers not in (None, 1):
        raise config_error(
            "workers", backend.workers, f"1, as {key} is a Python object"
        )


def _named(dataset: Dataset) -> Dataset:
    """Rename a data set so that the name stands for its samples alone."""
    digest = hashlib.sha256(repr((dataset.modality, dataset.class_names)).encode())
    for split in (dataset.train, dataset.test):
        for part in (split.x, split.y):
            if isinstance(part, tuple):
                digest.update("\0".join(part).encode())
            else:
                digest.update(f"{part.dtype}{part.shape}".encode() + part.tobytes())
    stem = re.sub(r"[^\w.-]", "-", dataset.name)
    return replace(dataset, name=f"{stem}-{digest.hexdigest()[:8]}")


def _first_dataset(names: Sequence[str], config: RunConfig) -> Dataset:
    own = (algorithm_registry.algorithm(name).dataset for name in names)
    usual = next((name for name in own if name != DATASET), DATASET)
    return dataset_registry.load_dataset(
        next(iter(config.data.names), usual), data_root(config)
    )


def _input_shape(dataset: Dataset) -> tuple[int, ...]:
    if dataset.modality == "text":
        raise config_error(
            "model", "a module", "the name of a model, as the data are text"
        )
    shape: tuple[int, ...] = dataset.train.x.shape[1:]
    if dataset.modality != "images":
        return shape
    return (1, *shape) if len(shape) == 2 else (shape[2], *shape[:2])


def _free_name(thing: object, taken: Registry[Any], kind: str) -> str:
    own = type(thing) if isinstance(thing, nn.Module | ModelEntry) else thing
    name = getattr(own, "__name__", "")
    name = name if name.isidentifier() and not isinstance(thing, ModelEntry) else "own"
    return f"{name}-{kind}" if name in taken else name


# ---- folders


class _TemporaryFolder:
    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="fcl-"))
        self.keep = weakref.finalize(self, shutil.rmtree, self.path, True).detach


@contextmanager
def _folder_for(output: Path | str | None) -> Iterator[tuple[Path, object]]:
    """Make the folder of a run; yield it with what keeps it in being.

    A temporary folder of a run that fails stays, as its log says why.
    """
    if output is not None:
        folder = check_path(Path(output).expanduser(), "output")
        make_folder(folder, "output")
        yield folder, None
        return
    temporary = _TemporaryFolder()
    try:
        yield temporary.path, temporary
    except RoundError as error:
        temporary.keep()
        error.add_note(f"the log and what there is of the run are in {temporary.path}")
        raise
