"""The command ``fcl check-data``."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fcl_flower.cli.command import command
from fcl_flower.cli.options import configured, parse_pair, run_options
from fcl_flower.config.parsing import toml
from fcl_flower.config.run_config import DEFAULTS, RunConfig


@command
@run_options(without=frozenset({"scenario", "dataset", "local_only", "asynchronous"}))
def check_data(folders: tuple[Path, ...], **options: Any) -> None:  # noqa: ANN401
    """Check local data in FOLDERS, one a client, and propose the settings of a run.

    The files decide the settings that no option gives. Warnings are of data that a run
    accepts, such as look-alike classes, duplicates, or columns that tell the class.
    """
    # Imported late, since torch takes a second, and `fcl --help` needs none.
    from fcl_flower.data.local.client import load_task, local_vectors
    from fcl_flower.data.local.findings import class_counts, findings
    from fcl_flower.data.local.formats import empty_labels
    from fcl_flower.data.local.layout import find_tasks
    from fcl_flower.rounds.client import vector_file
    from fcl_flower.setup.build import Built
    from fcl_flower.setup.resolve import resolve, with_local_data

    config = with_local_data(configured(options), folders)
    run = Built(resolve(config))
    expected = run.local_data
    places = {str(folder): find_tasks(folder) for folder in folders}
    clients = {
        folder: [load_task(files, n, expected) for n, files in enumerate(listed)]
        for folder, listed in places.items()
    }
    for folder, tasks in clients.items():
        title = folder if len(clients) > 1 else None
        table = Table("task", "name", "train", "valid", "test", "classes", title=title)
        for number, task in enumerate(tasks):
            splits = (task.data.train, task.valid, task.data.test)
            counts = (f"{len(split.y):,}" for split in splits)
            classes = (f"{n} ({count:,})" for n, count in class_counts(task).items())
            name = escape(task.data.name)
            table.add_row(str(number), name, *counts, escape(", ".join(classes)))
        Console().print(table)
        if file := vector_file(run):
            words = local_vectors(tasks, file, expected)
            click.echo(f"word vectors: {words.origin}")
    for folder, listed in places.items():
        for files in listed:
            for label in empty_labels(files.train):
                click.echo(
                    f"warning: {folder}, {files.name}: the folder of class {label!r} "
                    "is empty: the task has no such class"
                )
    for finding in findings(clients, config.data.labels):
        click.echo(f"warning: {finding}")
    click.echo("settings: --scenario local-data " + " ".join(_options(config)))


def _options(config: RunConfig) -> Iterator[str]:
    for key, value in config.flat().items():
        if key in ("scenario.name", "scenario.clients") or DEFAULTS.get(key) == value:
            continue
        pair = f"{key}={value}"
        if parse_pair(pair) != (key, value):
            pair = f"{key}={toml(value)}"
        yield f"--set {shlex.quote(pair)}"
