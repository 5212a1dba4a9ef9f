"""The command ``fcl clients``."""

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text


@click.command()
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    default=Path("federation/server"),
    show_default=True,
    help="That of fcl server, on its machine.",
)
def clients(state: Path) -> None:
    """Show the clients of a federation, on the server's machine."""
    from fcl_flower.deploy.membership import membership, shown

    rows, unknown = membership(state)
    table = Table("number", "name", "state", "last seen", "version", "tasks")
    for row in rows:
        tasks = "" if row.tasks is None else str(row.tasks)
        cells = (str(row.number), row.name, row.state, shown(row.seen), row.version)
        table.add_row(*map(Text, (*cells, tasks)))
    Console().print(table)
    if unknown:
        click.echo(unknown)
