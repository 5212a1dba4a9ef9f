"""The options of a run, and their conversion to a configuration."""

import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import click

from fcl_flower.cli.command import AtLeastOne, Name, option
from fcl_flower.config.parsing import Scalar
from fcl_flower.config.run_config import (
    DEFAULTS,
    RunConfig,
    check_not_zero,
    field_of,
    long_keys,
)
from fcl_flower.core.errors import config_error
from fcl_flower.core.files import check_path
from fcl_flower.results.run_folder import CHECKPOINT, free_folder, lost_first_round

if TYPE_CHECKING:
    from fcl_flower.setup.preset import Preset
    from fcl_flower.simulation.local_runs import Backend

_SETTING = re.compile(r"(?P<key>\w+\.\w+): got ")
_KEY = re.compile(r"[a-z]\w*(\.[a-z]\w*)*", re.ASCII)
F = TypeVar("F", bound=Callable[..., Any])

FLAGS = {
    name: next(iter(long_keys({name: ""})))
    for name in (
        *("strategy", "scenario", "dataset", "data_root", "model", "clients", "tasks"),
        *("classes_per_task", "rounds", "epochs", "batch_size", "learning_rate"),
        *("seed", "device", "local_only", "track", "asynchronous"),
    )
}
"""The settings with a flag of their own; ``--set`` sets all others."""


def run_options(*, without: frozenset[str] = frozenset()) -> Callable[[F], F]:
    """Add the settings of a run to a command; a decorator."""
    pairs = "Any setting (fcl list NAME); one without a section is the strategy's."
    preset = "A published protocol, such as fcil-cifar100; other options win."
    options = [
        *(_flag(name) for name in FLAGS if name not in without),
        option("set", tuple[Annotated[str, "[SECTION.]KEY=VALUE"], ...], (), pairs),
        option("preset", Name, None, preset),
        option("config", Path, None, "config.toml of another run, to start from."),
    ]

    def add(function: F) -> F:
        others = getattr(function, "__click_params__", [])
        vars(function)["__click_params__"] = [*others, *reversed(options)]
        return function

    return add


def _flag(name: str) -> click.Option:
    """Make the flag of a setting; its help is the setting's up to a semicolon."""
    field, default = field_of(FLAGS[name]), DEFAULTS[FLAGS[name]]
    sentence = " ".join((field.description or "").split())
    text = f"{sentence.partition(';')[0].rstrip('.')}."
    left_open = default == "" or (default == 0 and "0 for" in sentence)
    if not (left_open or default is False):
        text += f"  [default: {default}]"
    return option(name, field.annotation, None, text)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Options of the place of a run on this machine.

    Options:
        data: Local data: a client's folder; repeatable, one for each client.
        backend: This process, or Flower's simulation runtime.
        workers: Clients of a run that train at the same time, a process each.
        gpus_per_client: Share of a GPU for each client; --backend flower only.
        output: Folder for the results.
    """

    data: tuple[Path, ...] = ()
    backend: Literal["in-process", "flower"] = "in-process"
    workers: AtLeastOne | None = None
    gpus_per_client: Annotated[float, click.FloatRange(min=0)] = 0.0
    output: Path | None = None
    jobs = 1

    def chosen(self) -> "Backend":
        """Build the backend; refuse options of the other one."""
        from fcl_flower.simulation.local_runs import Backend

        name, gpus = self.backend, self.gpus_per_client
        if name == "flower" and self.data:
            raise config_error("backend", name, "in-process, for local data")
        if name == "flower" and self.jobs > 1:
            expected = "1 with --backend flower, which has --workers"
            raise config_error("jobs", self.jobs, expected)
        if name == "in-process" and gpus:
            expected = "none but with --backend flower"
            raise config_error("gpus-per-client", gpus, expected)
        return Backend(name, self.workers, gpus, self.jobs, self.data)


@dataclass(frozen=True, kw_only=True)
class Places(Place):
    """Options of the places of several runs on this machine.

    Options:
        jobs: Runs at the same time, a process each; --backend in-process only.
    """

    jobs: AtLeastOne = 1


LONGER = frozenset({"tasks", "clients", "rounds"})
"""Settings that a resumed run may increase."""


def resumed(
    folder: Path,
    options: dict[str, Any],
    output: Path | None,
    folders: Sequence[Path] | None = None,
) -> RunConfig:
    """Read the configuration with which a run goes on.

    A run that lost its first round to divergence takes another learning rate from the
    ``options``. Other runs take more tasks, clients or rounds, and a finished run needs
    more tasks. ``output`` is refused. ``folders`` are those of local data in
    a simulation.
    """
    if output is not None:
        expected = "none beside resume, as the run goes on in its own folder"
        raise config_error("output", str(output), expected)
    given = {key: value for key, value in options.items() if value not in (None, ())}
    again = "learning_rate" in given and lost_first_round(folder)
    for key in given:
        if key in ({"learning_rate"} if again else LONGER):
            continue
        expected = "no settings beside resume but more --tasks and --clients"
        raise config_error(key, given[key], f"{expected}, as the run has its own")
    if (folder / "summary.json").exists() and not given:
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
    local_data = config.scenario.name == "local-data"
    wanted = (options.get("clients") or config.scenario.clients) * local_data
    if folders is not None and len(folders) != wanted:
        expected = f"{wanted} folders, one for each client of the run"
        expected = expected if local_data else "none"
        raise config_error("data", " ".join(map(str, folders)), expected)
    if again:
        return config.replace(**given)
    if given:
        from fcl_flower.service.changes import extend

        return extend(folder, **given)
    return config


def output_folder(output: Path | None, config: RunConfig) -> Path:
    """Choose the folder for the results: the named one, or a new one."""
    named = config.run.output
    if output is not None and named:
        raise config_error("run.output", named, "none beside --output")
    folder = output or (Path(named) if named else free_folder(config))
    return check_path(folder, "output")


def chosen_preset(options: dict[str, Any]) -> "Preset":
    """Take the preset out of the options; an empty one if none is named."""
    from fcl_flower.setup.preset import read_preset

    name = options.pop("preset")
    if name is not None and options["config"] is not None:
        expected = "none beside --config, which has all settings"
        raise config_error("preset", name, expected)
    return read_preset(name)


def configured(options: dict[str, Any], preset: "Preset | None" = None) -> RunConfig:
    """Apply the options to the configuration of a file, or of a preset.

    With ``preset`` its parameters are left out. Without it the options may name one.
    """
    with_params = preset is None
    preset = chosen_preset(options) if preset is None else preset
    path, pairs = options.pop("config"), options.pop("set")
    config = RunConfig.of(preset.settings)
    if path is not None:
        config = RunConfig.read(path, "config")
        config = config.replace(output="", client_state="context", id="")
    flags = {key: value for key, value in options.items() if value is not None}
    settings = long_keys(flags)
    check_not_zero(settings)
    settings |= set_keys(pairs)
    name = str(settings.get("strategy.name", config.strategy.name))
    params = preset.params_for([name]) if with_params else {}
    return config.replace(**{**params, **settings})


def with_flag(sentence: str) -> str:
    """Append to a refusal the option that sets its key."""
    match = _SETTING.match(sentence)
    if match is None or "--" in sentence or match["key"] not in DEFAULTS:
        return sentence
    key, flags = match["key"], {key: name for name, key in FLAGS.items()}
    flag = f"--{flags[key].replace('_', '-')}" if key in flags else f"--set {key}=VALUE"
    return f"{sentence} ({flag})"


def set_keys(pairs: tuple[str, ...]) -> dict[str, object]:
    """Parse the pairs of ``--set``; a key without a section is the strategy's."""
    settings: dict[str, object] = {}
    for key, value in map(parse_pair, pairs):
        settings[key if "." in key else f"strategy.{key}"] = value
    return settings


def parse_pair(pair: str) -> tuple[str, Scalar]:
    """Parse ``KEY=VALUE``; hyphens in the key count as underscores."""
    key, equals, text = (part.strip() for part in pair.partition("="))
    key = key.replace("-", "_")
    if not (equals and _KEY.fullmatch(key) and text):
        raise config_error("set", pair, "KEY=VALUE or SECTION.KEY=VALUE")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a word without quotes, as users type it in a shell
    if not isinstance(value, bool | int | float | str):
        value = text
    return key, value


def listed(text: str, key: str, what: str = "names") -> list[str]:
    """Split an option into different names; errors call them ``what``."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise config_error(key, text, f"different {what} separated by commas")
    return names


def seeds_of(text: str) -> tuple[int, ...]:
    """Parse the seeds that an option lists."""
    seeds = listed(text, "seeds", "whole numbers")
    if not all(seed.isdecimal() for seed in seeds):
        raise config_error("seeds", text, "different whole numbers separated by commas")
    return tuple(map(int, seeds))


def with_folders(config: RunConfig, folders: Sequence[Path]) -> RunConfig:
    """Add the settings for clients with these folders of local data."""
    if folders:
        from fcl_flower.setup.resolve import with_local_data

        return with_local_data(config, folders)
    if config.scenario.name == "local-data":
        raise config_error(
            "data", "", "a folder for each client, for scenario local-data"
        )
    return config
