"""The command ``fcl forget``: take out what a client has contributed to a run."""

from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--client", type=click.IntRange(0), required=True, help="From 0.")
@click.option(
    "--task", type=click.IntRange(0), help="From 0; all of its tasks if none."
)
def forget(folder: Path, client: int, task: int | None) -> None:
    """Take a client out of the run in FOLDER, as if it had never contributed.

    For strategies that keep what clients send apart, such as analytic. Refused while
    the run's server is running.
    """
    from fcl_flower.federation.forget import REMAINS
    from fcl_flower.federation.forget import forget as take_out

    done = take_out(folder, client, task)
    what = "all tasks" if task is None else f"task {task}"
    click.echo(f"forgotten: {what} of client {client}, after round {done.round}")
    for name, value in done.before.items():
        now = done.after.get(name)
        left = "nothing left" if now is None else f"{now:g}"
        click.echo(f"{name}: {value:g} before, {left}")
    click.echo(f"not forgotten: {'; '.join(REMAINS)}")
