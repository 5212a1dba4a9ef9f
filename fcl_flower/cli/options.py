"""What the command line gives, made into a configuration."""

import re
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from fcl_flower.config.parsing import parse_pair
from fcl_flower.config.run_config import RunConfig, check_not_zero, long_keys
from fcl_flower.core.errors import config_error
from fcl_flower.results.run_folder import CHECKPOINT, free_folder, lost_first_round

if TYPE_CHECKING:
    from fcl_flower.setup.preset import Preset
    from fcl_flower.simulation.local_runs import Backend

_SETTING = re.compile(r"(?P<key>\w+\.\w+): got ")
F = TypeVar("F", bound=Callable[..., Any])

FLAGS: dict[str, tuple[Any, str]] = {
    "strategy": (str, "The algorithm.  [default: fedweit]"),
    "scenario": (str, "How tasks are made; by default what suits the data."),
    "dataset": (str, "Data sets, separated by commas."),
    "data_root": (str, "Folder with data sets.  [default: $FCL_DATA or data]"),
    "model": (str, "The network; by default what suits the data."),
    "clients": (int, "Number of clients."),
    "tasks": (int, "Tasks of each client.  [default: 4]"),
    "classes_per_task": (int, "Classes in a task."),
    "rounds": (int, "Communication rounds for each task."),
    "epochs": (int, "Local epochs in a round.  [default: 1]"),
    "batch_size": (int, "Samples in a training step."),
    "learning_rate": (float, "At the start of a task."),
    "seed": (int, "Of all random number generators.  [default: 0]"),
    "device": (str, "auto, cpu, or a torch device.  [default: auto]"),
    "local_only": (bool, "Clients learn alone, without communication."),
    "track": (str, "tensorboard, mlflow or wandb, separated by commas."),
    "asynchronous": (bool, "An update counts as it comes; no rounds."),
}
"""Short flags of settings that many need; all others are reached by ``--set``."""


def run_options(*, without: frozenset[str] = frozenset()) -> Callable[[F], F]:
    """Add the settings of a run to a command; a decorator."""

    def add(command: F) -> F:
        command = click.option(
            "--config",
            "config_file",
            type=click.Path(path_type=Path),
            help="config.toml of another run, to start from.",
        )(command)
        command = click.option(
            "--preset",
            metavar="NAME",
            help="A published protocol, such as fcil-cifar100; other options win.",
        )(command)
        command = click.option(
            "--set",
            "pairs",
            multiple=True,
            metavar="[SECTION.]KEY=VALUE",
            help="Any setting (fcl list NAME); of the strategy without a section.",
        )(command)
        for name, (kind, text) in reversed(FLAGS.items()):
            if name not in without:
                flag = f"--{name.replace('_', '-')}"
                given: dict[str, Any] = {"type": kind}
                if kind is bool:
                    given = {"is_flag": True, "default": None}
                command = click.option(flag, name, help=text, **given)(command)
        return command

    return add


workers_option = click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Clients of a run that train at the same time, a process each.",
)
jobs_option = click.option(
    "--jobs",
    "processes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Runs at the same time, a process each; --backend in-process only.",
)
gpus_option = click.option(
    "--gpus-per-client",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Share of a GPU for each client; --backend flower only.",
)
backend_option = click.option(
    "--backend",
    type=click.Choice(("in-process", "flower")),
    default="in-process",
    show_default=True,
    help="This process, or Flower's simulation runtime.",
)
data_option = click.option(
    "--data",
    "folders",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Local data: a client's folder; repeatable, one for each client.",
)
output_option = click.option(
    "--output", type=click.Path(path_type=Path), help="Folder for the results."
)
resume_option = click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Go on with the run in FOLDER; one that has finished with more --tasks.",
)


LONGER = ("tasks", "clients", "rounds")
"""Settings of which a run that goes on may have more."""


def resumed(
    folder: Path,
    given: dict[str, Any],
    output: Path | None,
    folders: Sequence[Path] | None = None,
) -> RunConfig:
    """Read the configuration with which a run goes on.

    One that has lost its first round, as training diverged, takes another learning rate
    from ``given``; every other one more tasks or clients, and rounds of these tasks. A
    run that has finished needs more tasks. ``output`` is refused. ``folders`` are those
    of local data in a simulation.
    """
    if output is not None:
        expected = "none beside resume, as the run goes on in its own folder"
        raise config_error("output", str(output), expected)
    rate = given.get("learning_rate")
    again = rate is not None and lost_first_round(folder)
    more: dict[str, Any] = {} if again else {key: given.get(key) for key in LONGER}
    for key, value in given.items():
        if key in more or (again and key == "learning_rate"):
            continue
        if value is not None and value != ():  # a number may be 0
            option = {"pairs": "set", "config_file": "config"}.get(key, key)
            raise config_error(
                option,
                value,
                "no settings beside resume but more --tasks and --clients, as the run "
                "has its own",
            )
    longer = any(value is not None for value in more.values())
    if (folder / "summary.json").exists() and not longer:
        expected = (
            "the folder of an interrupted run, or more --tasks; this one has finished"
        )
        raise config_error("resume", str(folder), expected)
    if not (again or (folder / CHECKPOINT).is_dir()):
        expected = (
            f"the folder of a run that has finished a round, with its {CHECKPOINT}, or "
            "that has lost its first, with another --learning-rate"
        )
        raise config_error("resume", str(folder), expected)
    config = RunConfig.read(folder / "config.toml", "resume").replace(resume=True)
    if folders is not None:
        wanted = given.get("clients") or config.scenario.clients
        _check_folders(config, folders, wanted)
    if longer:
        from fcl_flower.service.changes import extend

        return extend(folder, **more)
    return config.replace(learning_rate=rate) if again else config


def _check_folders(config: RunConfig, folders: Sequence[Path], clients: int) -> None:
    local_data = config.scenario.name == "local-data"
    if len(folders) != clients * local_data:
        expected = "none"
        if local_data:
            expected = f"{clients} folders, one for each client of the run"
        raise config_error("data", " ".join(map(str, folders)), expected)


def output_folder(output: Path | None, config: RunConfig) -> Path:
    """Choose the folder for the results: the one that is named, or a new one."""
    named = config.run.output
    if output is not None and named:
        raise config_error("run.output", named, "none beside --output")
    return output or (Path(named) if named else free_folder(config))


def chosen_preset(given: dict[str, Any]) -> "Preset":
    """Take the preset out of the options; an empty one where there is none."""
    from fcl_flower.setup.preset import read_preset

    name = given.pop("preset")
    if name is not None and given["config_file"] is not None:
        expected = "none beside --config, which has all settings"
        raise config_error("preset", name, expected)
    return read_preset(name)


def configured(given: dict[str, Any], preset: "Preset | None" = None) -> RunConfig:
    """Put the options that are given on top of a file's configuration, or a preset.

    Parameters of ``preset`` are left out; without it the options name one.
    """
    own = preset is None
    preset = chosen_preset(given) if preset is None else preset
    path, pairs = given.pop("config_file"), given.pop("pairs")
    config = RunConfig.of(preset.settings)
    if path is not None:
        config = RunConfig.read(path, "config")
        config = config.replace(output="", client_state="context", id="")
    flags = {key: value for key, value in given.items() if value is not None}
    settings = long_keys(flags)
    check_not_zero(settings)
    settings |= set_keys(pairs)
    name = str(settings.get("strategy.name", config.strategy.name))
    params = preset.params_for([name]) if own else {}
    return config.replace(**{**params, **settings})


def with_flag(sentence: str) -> str:
    """Name, behind a refusal, the option that gives another value."""
    found = _SETTING.match(sentence)
    if found is None or "--" in sentence or found["key"] not in RunConfig().flat():
        return sentence
    flags = {next(iter(long_keys({name: ""}))): name for name in FLAGS}
    key = found["key"]
    flag = f"--{flags[key].replace('_', '-')}" if key in flags else f"--set {key}=VALUE"
    return f"{sentence} ({flag})"


def set_keys(pairs: tuple[str, ...]) -> dict[str, object]:
    """Parse what ``--set`` gives; a key without a section is the strategy's."""
    found: dict[str, object] = {}
    for key, value in map(parse_pair, pairs):
        found[key if "." in key else f"strategy.{key}"] = value
    return found


def listed(text: str, key: str, what: str = "names") -> list[str]:
    """Split an option into different names, or ``what`` they are."""
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found or len(set(found)) < len(found):
        raise config_error(key, text, f"different {what} separated by commas")
    return found


def seeds_of(text: str) -> tuple[int, ...]:
    """Parse the seeds that an option lists."""
    found = listed(text, "seeds", "whole numbers")
    for seed in found:
        if not seed.isdecimal():
            raise config_error(
                "seeds", text, "different whole numbers separated by commas"
            )
    return tuple(int(seed) for seed in found)


def with_folders(config: RunConfig, folders: Sequence[Path]) -> RunConfig:
    """Add the settings for clients with these folders of local data."""
    if folders:
        from fcl_flower.setup.propose import with_local_data

        return with_local_data(config, folders)
    if config.scenario.name == "local-data":
        raise config_error(
            "data", "", "a folder for each client, for scenario local-data"
        )
    return config


def backend_of(
    name: str,
    workers: int | None,
    gpus_per_client: float,
    processes: int = 1,
    folders: tuple[Path, ...] = (),
) -> "Backend":
    """Build the backend of a command; refuse options of the other one."""
    from fcl_flower.simulation.local_runs import Backend

    if name == "flower" and folders:
        raise config_error("backend", name, "in-process, for local data")
    if name == "flower" and processes > 1:
        raise config_error(
            "jobs", processes, "1 with --backend flower, which has --workers"
        )
    if name == "in-process" and gpus_per_client:
        expected = "none but with --backend flower"
        raise config_error("gpus-per-client", gpus_per_client, expected)
    return Backend(name, workers, gpus_per_client, processes, folders)


def several_runs(command: F) -> F:
    """Give a command of several runs the options of where they go.

    It gets ``output`` and the ``backend``.
    """

    @wraps(command)
    def call(
        folders: tuple[Path, ...],
        backend: str,
        workers: int | None,
        gpus_per_client: float,
        processes: int,
        **given: Any,  # noqa: ANN401
    ) -> None:
        chosen = backend_of(backend, workers, gpus_per_client, processes, folders)
        command(backend=chosen, **given)

    options = (
        *(data_option, backend_option, workers_option, gpus_option, jobs_option),
        output_option,
    )
    for option in reversed(options):
        call = option(call)
    return cast(F, call)
