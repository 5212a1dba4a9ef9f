"""What the command line gives, made into a configuration."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from fcl_flower.config.parsing import inline, read_toml, settings
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.results.run_folder import CHECKPOINT

F = TypeVar("F", bound=Callable[..., Any])

NOT_OPTIONS = {"label", "memory", "name", "output", "resume", "set"}


def run_options(*, without: frozenset[str] = frozenset()) -> Callable[[F], F]:
    """Return a decorator that adds one option for each field of `RunConfig`."""

    def add(command: F) -> F:
        for name, field in reversed(RunConfig.model_fields.items()):
            if name in NOT_OPTIONS | without:
                continue
            kind: Any = field.annotation
            flag = f"--{name.replace('_', '-')}"
            if kind is bool:
                flag += f"/--no-{name.replace('_', '-')}"
            elif get_args(kind):
                kind = click.Choice(get_args(kind))
            shown = "" if field.default == "" else f"  [default: {field.default}]"
            command = click.option(
                flag, name, type=kind, help=f"{field.description}{shown}"
            )(command)
        return click.option(
            "--config",
            "config_file",
            type=click.Path(path_type=Path),
            help="A config.toml of another run, to start from.",
        )(
            click.option(
                "--set",
                "pairs",
                multiple=True,
                metavar="KEY=VALUE",
                help="A setting of the algorithm, such as lambda1=0.001; repeatable.",
            )(command)
        )

    return add


workers_option = click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Clients that train at the same time; by default one for each CPU core.",
)
gpus_option = click.option(
    "--gpus-per-client",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Share of a GPU that each client is given.  [default: 0]",
)
output_option = click.option(
    "--output", type=click.Path(path_type=Path), help="Folder for the results."
)

resume_option = click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Go on with the run in FOLDER that was ended, after its last finished round.",
)


def resumed(folder: Path, given: dict[str, Any]) -> RunConfig:
    """Return the configuration of a run that was ended, with which it goes on.

    Raises:
        ConfigError: there is no such run, or settings are given anew.
    """
    for key, value in given.items():
        if value not in (None, (), False):
            option = {"pairs": "set", "config_file": "config"}.get(key, key)
            raise ConfigError(
                f"{option}: {value!r} is refused: expected no settings beside resume, "
                f"since the run has its own"
            )
    if not (folder / CHECKPOINT).is_dir():
        raise ConfigError(
            f"resume: {str(folder)!r} is refused: expected the folder of a run that "
            f"has finished a round, with its {CHECKPOINT}"
        )
    values = read_toml(folder / "config.toml", "resume")
    return RunConfig.of(values | {"resume": True})


def configured(given: dict[str, Any]) -> RunConfig:
    """Return the configuration of a file, with the options given on top."""
    values: dict[str, Any] = {}
    path = given.pop("config_file")
    pairs = given.pop("pairs")
    if path is not None:
        values = read_toml(path, "config") | {
            "output": "",
            "memory": "context",
            "name": "",
        }
    values |= {k.replace("_", "-"): v for k, v in given.items() if v is not None}
    if pairs:
        known = settings(str(values.get("set", "")))
        values["set"] = inline({**known, **key_values(pairs)})
    return RunConfig.of(values)


def simulated(config: RunConfig) -> RunConfig:
    """Return a configuration that a simulation can run.

    Raises:
        ConfigError: its clients have data of their own.
    """
    if config.scenario == "own":
        raise ConfigError(
            "scenario: 'own' is refused: expected another, since a simulation starts "
            "clients without data of their own"
        )
    return config


def listed(text: str, key: str) -> list[str]:
    """Return the different names that an option lists, separated by commas."""
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found or len(set(found)) < len(found):
        raise ConfigError(
            f"{key}: {text!r} is refused: expected different names separated by commas"
        )
    return found


def seeds_of(text: str) -> tuple[int, ...]:
    """Return the seeds that an option lists."""
    found = listed(text, "seeds")
    for seed in found:
        if not seed.isdecimal():
            raise ConfigError(f"seeds: {seed!r} is refused: expected whole numbers")
    return tuple(int(seed) for seed in found)


def key_values(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Return what KEY=VALUE arguments say; a value is TOML, or a word."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key, text = key.strip(), text.strip()
        if not (equals and key.replace("_", "").isalnum() and text):
            raise ConfigError(f"set: {pair!r} is refused: expected KEY=VALUE")
        try:
            found |= settings(f"{key} = {text}")
        except ConfigError:
            found[key] = text  # a word without quotes, as one types it in a shell
    return found
