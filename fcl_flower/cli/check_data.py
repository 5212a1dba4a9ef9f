"""The command ``fcl check-data``: validate a client's local data before a run."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from fcl_flower.cli.options import configured, run_options
from fcl_flower.config.parsing import parse_pair, toml
from fcl_flower.config.run_config import RunConfig


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@run_options(without=frozenset({"scenario", "dataset", "local_only", "asynchronous"}))
def check_data(folder: Path, **given: Any) -> None:  # noqa: ANN401
    """Check a client's local data in FOLDER, and propose the settings of a run.

    What the options leave open is read off the files.
    """
    # Imported here since torch takes a second, and `fcl --help` does without.
    from fcl_flower.data.local.client_data import local_vectors
    from fcl_flower.data.local.layout import find_tasks
    from fcl_flower.data.local.task import load_task
    from fcl_flower.federation.client import vector_file
    from fcl_flower.setup.factory import build_local_data_spec
    from fcl_flower.setup.local_proposal import with_local_data
    from fcl_flower.setup.resolve import resolve

    config = with_local_data(configured(given), [folder])
    run = resolve(config)
    expected = build_local_data_spec(run)
    tasks = [load_task(f, n, expected) for n, f in enumerate(find_tasks(folder))]
    table = Table("task", "name", "train", "valid", "test", "classes")
    for number, task in enumerate(tasks):
        splits = (task.data.train, task.valid, task.data.test)
        counts = (f"{len(split.y):,}" for split in splits)
        table.add_row(str(number), task.data.name, *counts, ", ".join(task.classes))
    Console().print(table)
    if file := vector_file(run):
        words = local_vectors(tasks, file, expected)
        click.echo(f"word vectors: {words.origin}")
    click.echo("settings: --scenario local-data " + " ".join(_options(config)))


def _options(config: RunConfig) -> Iterator[str]:
    """Yield the options that give what is no default, as one types them in a shell."""
    blank = RunConfig().flat()
    for key, value in config.flat().items():
        if key in ("scenario.name", "scenario.clients") or blank.get(key) == value:
            continue
        pair = f"{key}={value}"
        if parse_pair(pair) != (key, value):
            pair = f"{key}={toml(value)}"
        yield f"--set {shlex.quote(pair)}"
