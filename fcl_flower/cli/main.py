"""The command ``fcl``: text in, one sentence out where it cannot be done."""

import signal
import sys
import warnings
from pathlib import Path
from typing import Any, TextIO

import click

from fcl_flower import __version__
from fcl_flower.cli.check_data import check_data
from fcl_flower.cli.compare import compare, study
from fcl_flower.cli.deploy import certs, client, run, server
from fcl_flower.cli.export.network import export_model
from fcl_flower.cli.export.numbers import export
from fcl_flower.cli.forget import forget
from fcl_flower.cli.inspect import list_
from fcl_flower.cli.options import configured, run_options, with_flag
from fcl_flower.cli.simulate import simulate
from fcl_flower.core.errors import ConfigError, FclError, PluginWarning, refuse


@click.group(
    commands=[
        *(simulate, compare, study, list_),
        *(export, export_model),
        *(forget, check_data, certs, server, client, run),
    ],
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    },
)
@click.version_option(__version__, prog_name="fcl")
@click.pass_context
def cli(context: click.Context) -> None:
    """Federated continual learning on Flower."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@cli.command()
@run_options()
@click.option("--save", type=click.Path(path_type=Path), help="Also write it as JSON.")
def scenario(save: Path | None, **given: Any) -> None:  # noqa: ANN401
    """Show who would learn what in which order, without running anything."""
    from fcl_flower.setup.factory import build_scenario
    from fcl_flower.setup.resolve import resolve

    plan = build_scenario(resolve(configured(given)))
    click.echo(plan.describe())
    if save:
        try:
            plan.save(save)
        except OSError as error:
            expected = f"a file that can be written ({error.strerror})"
            raise refuse("save", str(save), expected) from error


@cli.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Folder for a comparison; by default this one, of one study its own.",
)
def report(folders: tuple[Path, ...], output: Path | None) -> None:
    """Make the page of one run FOLDER again, or compare those of several or a study."""
    from fcl_flower.results.report import write_comparison, write_report
    from fcl_flower.results.run_folder import begun, runs_in

    # Who makes a page says what a folder without a run lacks.
    runs = [run for folder in folders for run in runs_in(folder) or [folder]]
    first, *others = folders
    if runs == [first]:
        click.echo(write_report(first))
    else:
        here = Path() if others or begun(first) else first
        click.echo(write_comparison(output or here, runs))


def main() -> None:
    """Run the command; exit with 2 and one sentence where the user can mend it."""
    warnings.showwarning = _show_warning
    # So that a run's processes are ended when the command is, not left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        # Not standalone: click would answer a wrong option with four lines.
        sys.exit(cli.main(prog_name="fcl", standalone_mode=False))
    except click.Abort:
        sys.exit(130)
    except click.ClickException as error:
        click.echo(f"fcl: {error.format_message()}", err=True)
        sys.exit(2)
    except FclError as error:
        click.echo(f"fcl: {with_flag(str(error))}", err=True)
        sys.exit(2 if isinstance(error, ConfigError) else 1)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show what a user should know as a sentence, and other warnings as Python does."""
    if issubclass(category, PluginWarning):
        click.echo(f"fcl: warning: {message}", err=True)
    else:
        text = warnings.formatwarning(message, category, filename, lineno, line)
        click.echo(text, err=True, nl=False)


if __name__ == "__main__":
    main()
