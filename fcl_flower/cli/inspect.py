"""The commands ``fcl list`` and ``fcl config``: what there is, and how it is set."""

from collections.abc import Iterator
from pathlib import Path

import click
from pydantic import BaseModel
from rich.console import Console
from rich.table import Column, Table

from fcl_flower.config.describe import describe
from fcl_flower.config.parsing import read_toml
from fcl_flower.config.run_config import RunConfig
from fcl_flower.config.upgrade import is_flat, upgrade
from fcl_flower.core.errors import refuse, unknown


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


@click.group()
def config() -> None:
    """Work on configuration files."""


@config.command("upgrade")
@click.argument("file", type=click.Path(path_type=Path))
def upgrade_(file: Path) -> None:
    """Print a config.toml or study FILE of an earlier version in today's sections."""
    values = read_toml(file, "file")
    if not is_flat(values):
        raise refuse("file", str(file), "flat keys of an earlier version")
    click.echo(upgrade(values), nl=False)


def _show_all(console: Console) -> None:
    from fcl_flower.algorithms.registry import algorithms
    from fcl_flower.data.datasets.registry import known_datasets
    from fcl_flower.data.scenarios.registry import SCENARIOS
    from fcl_flower.models.registry import MODELS
    from fcl_flower.setup.resolve import data_root

    table = Table("strategy", "what it does", "paper", title="Strategies")
    for name, entry in algorithms().items():
        table.add_row(name, entry.summary, entry.paper)
    console.print(table)
    for title, lines in (
        ("Scenarios", {n: s.summary for n, s in SCENARIOS.items()}),
        ("Models", {n: m.summary for n, m in MODELS.items()}),
        ("Data sets", known_datasets(data_root(RunConfig()))),
        ("Sections", {n: _sentence(kind) for n, kind in _sections()}),
    ):
        table = Table("name", "what it is", title=title)
        for name, line in lines.items():
            table.add_row(name, line)
        console.print(table)
    console.print("fcl list NAME shows the settings of a strategy, scenario or model.")


def _show_one(console: Console, name: str) -> None:
    """Show every setting of all that has this name.

    Raises:
        ConfigError: nothing has it.
    """
    found = [entry for entry in _described() if entry[1] == name]
    if not found:
        raise unknown("name", name, sorted({entry[1] for entry in _described()}))
    for section, _, summary, kind in found:
        console.print(f"[bold]{name}[/bold]: {summary}", highlight=False)
        settings = describe(kind)
        if not settings:
            console.print("It has no parameters.")
            continue
        table = Table(
            Column("setting", no_wrap=True),
            *("type", "range", "default", "what it is"),
            show_lines=False,
        )
        for one in settings:
            key = f"{section}.{one.key}"
            table.add_row(key, one.type, one.range, one.default, one.help)
        console.print(table)


def _described() -> Iterator[tuple[str, str, str, type[BaseModel]]]:
    """Yield section, name, one sentence and parameters of all that has a name."""
    from fcl_flower.algorithms.registry import algorithms
    from fcl_flower.data.scenarios.registry import SCENARIOS
    from fcl_flower.models.registry import MODELS

    for name, algorithm in algorithms().items():
        yield "strategy", name, algorithm.summary, algorithm.params_type
    for name, scenario in SCENARIOS.items():
        yield "scenario", name, scenario.summary, scenario.params
    for name, model in MODELS.items():
        yield "model", name, model.summary, model.params
    for name, kind in _sections():
        yield name, name, _sentence(kind), kind


def _sections() -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in RunConfig.model_fields.items():
        kind = field.annotation
        assert isinstance(kind, type)
        yield name, kind


def _sentence(kind: type[BaseModel]) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]
