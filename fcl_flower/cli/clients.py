"""The command ``fcl clients``."""

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fcl_flower.core.errors import RoundError, config_error


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
    from fcl_flower.deploy import commands
    from fcl_flower.service.members import HOME, membership

    home, nodes, silent = state / HOME, [], ""
    if not (home / "config.toml").is_file():
        expected = "the --state folder of fcl server"
        raise config_error("state", str(state), expected)
    try:
        listed = commands.flwr(home, "supernode", "list", commands.SUPERLINK)
        nodes = listed["nodes"]
    except RoundError:
        silent = "the server does not answer: this is what it knew last"
    table = Table("number", "name", "state", "last seen", "version", "tasks")
    for row in membership(state, nodes):
        seen = "" if row.seen is None else f"{row.seen:%Y-%m-%d %H:%M:%S} UTC"
        tasks = "" if row.tasks is None else str(row.tasks)
        cells = (str(row.number), row.name, row.state, seen, row.version, tasks)
        table.add_row(*map(Text, cells))
    Console().print(table)
    if silent:
        click.echo(silent)
