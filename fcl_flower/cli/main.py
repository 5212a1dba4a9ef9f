"""The command ``fcl`` with all its subcommands; a refusal is one sentence."""

import inspect
import signal
import sys
import warnings
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import click
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from fcl_flower import __version__
from fcl_flower.cli.check_data import check_data
from fcl_flower.cli.command import Count, command
from fcl_flower.cli.deploy import certs, client, clients, run, server
from fcl_flower.cli.export import export, export_model
from fcl_flower.cli.options import configured, run_options, with_flag
from fcl_flower.cli.predict import models, predict
from fcl_flower.cli.run import compare, simulate, study
from fcl_flower.cli.serve import serve
from fcl_flower.config.parsing import Setting, describe
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import (
    ConfigError,
    FclError,
    PluginWarning,
    config_error,
    unknown_name,
)


@command
def list_(name: str | None = None) -> None:
    """Show all strategies, scenarios, data sets and models; or the settings of NAME.

    NAME is one of these, or a section of the configuration, such as training.
    """
    console, entries = Console(), [*_entries()]
    if name is None:
        _show_all(console, entries)
        return
    named = [entry for entry in entries if entry.name == name]
    if not named:
        raise unknown_name("name", name, sorted({entry.name for entry in entries}))
    for entry in named:
        console.print(f"[bold]{escape(name)}[/bold]: {escape(entry.summary)}")
        if not entry.settings:
            console.print("It has no parameters.")
        for setting in entry.settings:
            kind = " ".join(filter(None, [setting.type, setting.range]))
            default = f"default {setting.default}" if setting.default else "required"
            head = f"{entry.section}.{setting.key}"
            console.print(f"\n[bold]{head}[/bold]  {escape(f'{kind}; {default}')}")
            console.print(Padding(escape(setting.help), (0, 0, 0, 4)))


class _Entry(NamedTuple):
    title: str
    section: str
    name: str
    summary: str
    settings: list[Setting]
    paper: str = ""


def _show_all(console: Console, entries: list[_Entry]) -> None:
    for title, listed in groupby(entries, lambda entry: entry.title):
        of_strategies = title == "Strategies"
        heads = ("strategy", "what it does", "paper")
        table = Table(
            *(heads if of_strategies else ("name", "what it is")), title=title
        )
        for entry in listed:
            cells = (entry.name, entry.summary, *[entry.paper] * of_strategies)
            table.add_row(*map(escape, cells))
        console.print(table)
    console.print("fcl list NAME shows the settings of a strategy, scenario or model.")


def _entries() -> Iterator[_Entry]:
    from fcl_flower.algorithms.registry import STRATEGY, algorithms
    from fcl_flower.data.registry import known_datasets
    from fcl_flower.data.scenarios.registry import SCENARIOS
    from fcl_flower.models.registry import MODELS
    from fcl_flower.setup.entries import data_root

    for name, method in algorithms().items():
        own = {key.removeprefix(STRATEGY): v for key, v in method.defaults.items()}
        settings = describe(method.params_type, own)
        about = method.summary, settings, method.paper
        yield _Entry("Strategies", "strategy", name, *about)
    for name, scenario in SCENARIOS.items():
        settings = describe(scenario.params)
        yield _Entry("Scenarios", "scenario", name, scenario.summary, settings)
    for name, model in MODELS.items():
        settings = describe(model.params)
        yield _Entry("Models", "model", name, model.summary, settings)
    for name, line in known_datasets(data_root(RunConfig())).items():
        yield _Entry("Data sets", "data", name, line, [])
    for name, field in RunConfig.model_fields.items():
        kind = field.annotation
        assert isinstance(kind, type)
        line = inspect.cleandoc(kind.__doc__ or "").partition("\n")[0]
        yield _Entry("Sections", name, name, line, describe(kind))


@command
def forget(
    folder: Path,
    *,
    client: Count,
    task: Count | None = None,
    certs: Path | None = None,
) -> None:
    """Take a client out of the run in FOLDER, as if it had never contributed.

    This works for strategies that keep contributions apart, such as analytic, and while
    the run's server is not running.

    Options:
        client: From 0.
        task: From 0; all of its tasks if none.
        certs: Folder of fcl certs: also remove the client's key, which lets it in.
    """
    from fcl_flower.service import changes

    public = None
    if certs is not None:
        from fcl_flower.deploy.certificates import Certificates

        if task is not None:
            expected = "none with --task, as the client stays"
            raise config_error("certs", str(certs), expected)
        files = Certificates(certs)
        public = files.client_key(client).with_suffix(".pub")
        files.require(public)
    forgotten = changes.forget(folder, client, task)
    tasks = "all tasks" if task is None else f"task {task}"
    click.echo(f"forgotten: {tasks} of client {client}, after round {forgotten.round}")
    for name, value in forgotten.before.items():
        now = forgotten.after.get(name)
        left = "nothing left" if now is None else f"{now:g}"
        click.echo(f"{name}: {value:g} before, {left}")
    click.echo(f"not forgotten: {'; '.join(changes.REMAINS)}")
    if public is not None:
        public.unlink()
        click.echo(f"removed {public}: the server lets client {client} in no more")
    elif task is None:
        key = f"clients/client-{client}.pub"
        click.echo(f"client {client} is let in until its {key} is removed (--certs)")


@command
@run_options()
def scenario(*, save: Path | None = None, **options: Any) -> None:  # noqa: ANN401
    """Show which client would learn which task when, without a run.

    Options:
        save: Also write it as JSON.
    """
    from fcl_flower.setup.build import Built
    from fcl_flower.setup.resolve import resolve

    plan = Built(resolve(configured(options))).scenario
    click.echo(plan.describe())
    if save:
        try:
            plan.save(save)
        except OSError as error:
            expected = f"a file that can be written ({error.strerror})"
            raise config_error("save", str(save), expected) from error


@command
def report(folders: tuple[Path, ...], *, output: Path | None = None) -> None:
    """Make the page of a run's FOLDER again, or compare runs, or those of a study.

    Options:
        output: Folder for a comparison; by default this one, or a study's own.
    """
    from fcl_flower.results.record import is_run, runs_in
    from fcl_flower.results.report.comparison import write_comparison
    from fcl_flower.results.report.run_page import write_report

    # A folder without a run is refused when its page is made.
    runs = [run for folder in folders for run in runs_in(folder) or [folder]]
    first, *others = folders
    if runs == [first]:
        click.echo(write_report(first))
    else:
        here = Path() if others or is_run(first) else first
        click.echo(write_comparison(output or here, runs))


@click.group(
    commands=[
        *(simulate, compare, study, list_),
        *(export, export_model, predict, models),
        *(forget, check_data, certs, server, client, clients, run, serve),
        *(scenario, report),
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


def main() -> None:
    """Run the command; exit with 2 and one sentence if its input is refused."""
    warnings.showwarning = _show_warning
    # The processes of a run end together with the command.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        # Click alone would answer a wrong option with four lines.
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
    """Show a `PluginWarning` as a sentence, and other warnings as Python does."""
    if issubclass(category, PluginWarning):
        click.echo(f"fcl: warning: {message}", err=True)
    else:
        text = warnings.formatwarning(message, category, filename, lineno, line)
        click.echo(text, err=True, nl=False)


if __name__ == "__main__":
    main()
