"""The command ``fcl check-data``: a client looks at its own data before a run does."""

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from fcl_flower.cli.options import configured, run_options
from fcl_flower.core.errors import ConfigError


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@run_options(without=frozenset({"scenario", "dataset"}))
def check_data(folder: Path, **given: Any) -> None:  # noqa: ANN401
    """Check a client's own data in FOLDER as a run with these options would.

    The same settings as in the run are needed: --model, --classes-per-task, and
    --features or --labels where the run has them.
    """
    # Imported here since torch takes a second, and `fcl --help` does without.
    from fcl_flower.data.local.client_data import local_vectors
    from fcl_flower.data.local.layout import find_tasks
    from fcl_flower.data.local.task import load_task
    from fcl_flower.federation.client import vector_file
    from fcl_flower.setup import resolve
    from fcl_flower.setup.factory import local_data_spec

    config = configured(given)
    config = resolve.resolve(config.replace(scenario="own"))
    expected = local_data_spec(config, resolve.input_shape(config))
    places = find_tasks(folder)
    if not places:
        raise ConfigError(
            f"data-path: {str(folder)!r} is refused: expected at least one task"
        )
    tasks = [load_task(files, n, expected) for n, files in enumerate(places)]
    table = Table("task", "name", "train", "valid", "test", "classes")
    for number, task in enumerate(tasks, 1):
        splits = (task.data.train, task.valid, task.data.test)
        counts = (f"{len(split.y):,}" for split in splits)
        table.add_row(str(number), task.data.name, *counts, ", ".join(task.classes))
    Console().print(table)
    if file := vector_file(config):
        words = local_vectors(tasks, file, expected)
        click.echo(f"word vectors: {words.origin}")
