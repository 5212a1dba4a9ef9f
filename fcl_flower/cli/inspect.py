"""The command ``fcl list``: what there is, and how it is set."""

import inspect
from collections.abc import Iterator
from typing import NamedTuple

import click
from pydantic import BaseModel
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from fcl_flower.config.describe import Setting, describe
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import unknown


@click.command("list")
@click.argument("name", required=False)
def list_(name: str | None) -> None:
    """Show all strategies, scenarios, data sets and models; or the settings of NAME.

    NAME is one of these, or a section of the configuration, such as training.
    """
    if name is None:
        _show_all(Console())
    else:
        _show_one(Console(), name)


def _show_all(console: Console) -> None:
    from fcl_flower.algorithms.registry import algorithms
    from fcl_flower.data.datasets.registry import known_datasets
    from fcl_flower.data.scenarios.registry import SCENARIOS
    from fcl_flower.models.entries import MODELS
    from fcl_flower.setup.resolve import data_root

    table = Table("strategy", "what it does", "paper", title="Strategies")
    for name, entry in algorithms().items():
        table.add_row(name, escape(entry.summary), escape(entry.paper))
    console.print(table)
    for title, lines in (
        ("Scenarios", {n: s.summary for n, s in SCENARIOS.items()}),
        ("Models", {n: m.summary for n, m in MODELS.items()}),
        ("Data sets", known_datasets(data_root(RunConfig()))),
        ("Sections", {n: _sentence(kind) for n, kind in _sections()}),
    ):
        table = Table("name", "what it is", title=title)
        for name, line in lines.items():
            table.add_row(escape(name), escape(line))
        console.print(table)
    console.print("fcl list NAME shows the settings of a strategy, scenario or model.")


def _show_one(console: Console, name: str) -> None:
    """Show every setting of all that has this name.

    Raises:
        ConfigError: nothing has it.
    """
    everything = list(_described())
    found = [one for one in everything if one.name == name]
    if not found:
        raise unknown("name", name, sorted({one.name for one in everything}))
    for one in found:
        console.print(f"[bold]{escape(name)}[/bold]: {escape(one.summary)}")
        if not one.settings:
            console.print("It has no parameters.")
            continue
        for setting in one.settings:
            kind = " ".join(filter(None, [setting.type, setting.range]))
            default = f"default {setting.default}" if setting.default else "required"
            head = f"{one.section}.{setting.key}"
            console.print(f"\n[bold]{head}[/bold]  {escape(f'{kind}; {default}')}")
            console.print(Padding(escape(setting.help), (0, 0, 0, 4)))


class _Described(NamedTuple):
    """What has a name, with one sentence and its settings in a section."""

    section: str
    name: str
    summary: str
    settings: list[Setting]


def _described() -> Iterator[_Described]:
    from fcl_flower.algorithms.registry import STRATEGY, algorithms
    from fcl_flower.data.datasets.registry import known_datasets
    from fcl_flower.data.scenarios.registry import SCENARIOS
    from fcl_flower.models.entries import MODELS
    from fcl_flower.setup.resolve import data_root

    for name, entry in algorithms().items():
        preset = {
            key.removeprefix(STRATEGY): value
            for key, value in entry.defaults.items()
            if key.startswith(STRATEGY)
        }
        settings = describe(entry.params_type, preset)
        yield _Described("strategy", name, entry.summary, settings)
    for name, scenario in SCENARIOS.items():
        settings = describe(scenario.params)
        yield _Described("scenario", name, scenario.summary, settings)
    for name, model in MODELS.items():
        yield _Described("model", name, model.summary, describe(model.params))
    for name, kind in _sections():
        yield _Described(name, name, _sentence(kind), describe(kind))
    for name, line in known_datasets(data_root(RunConfig())).items():
        yield _Described("data", name, line, [])


def _sections() -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in RunConfig.model_fields.items():
        kind = field.annotation
        assert isinstance(kind, type)
        yield name, kind


def _sentence(kind: type[BaseModel]) -> str:
    return inspect.cleandoc(kind.__doc__ or "").partition("\n")[0]
