"""The command ``fcl``: text in, one sentence out where it cannot be done."""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from fcl_flower import __version__
from fcl_flower.algorithms.registry import DATASET, algorithm, algorithms
from fcl_flower.cli.check_data import check_data
from fcl_flower.cli.deploy import certs, client, run, server
from fcl_flower.cli.options import (
    configured,
    gpus_option,
    key_values,
    listed,
    output_option,
    resume_option,
    resumed,
    run_options,
    seeds_of,
    simulated,
    workers_option,
)
from fcl_flower.config.parsing import inline
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError, FclError
from fcl_flower.results.run_folder import RUNS, free_folder

if TYPE_CHECKING:
    from fcl_flower.runtime.study import Study


@click.group(
    commands=[check_data, certs, server, client, run],
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="fcl")
@click.pass_context
def cli(context: click.Context) -> None:
    """Federated continual learning on Flower."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@cli.command()
@run_options()
@workers_option
@gpus_option
@output_option
@click.option("--overwrite", is_flag=True, help="Replace a finished run in --output.")
@resume_option
def simulate(
    workers: int | None,
    gpus_per_client: float,
    output: Path | None,
    overwrite: bool,
    resume: Path | None,
    **given: Any,  # noqa: ANN401
) -> None:
    """Run one method on this machine, every client in Flower's simulation runtime."""
    from fcl_flower.setup.factory import validate

    config = resumed(resume, given) if resume else configured(given)
    config = validate(simulated(config))
    console = Console()
    folder = resume or output or free_folder(config)
    if (folder / "summary.json").exists() and not overwrite:
        raise ConfigError(
            f"output: {str(folder)!r} holds a finished run; expected another folder, "
            f"or --overwrite"
        )
    summary = _run(config, folder, console, workers, gpus_per_client)
    accuracy, forgetting = (
        "unknown" if summary[key] is None else f"{summary[key]:.3f}"
        for key in ("average_accuracy", "forgetting")
    )
    console.print(
        f"accuracy {accuracy}, forgetting {forgetting}; "
        f"report: {folder / 'report.html'}",
        highlight=False,
        soft_wrap=True,
    )


@cli.command()
@run_options(without=frozenset({"strategy", "seed", "local_only"}))
@click.option(
    "--strategies",
    default="fedavg,fedweit",
    show_default=True,
    help="Names separated by commas.",
)
@click.option(
    "--seeds", default="0", show_default=True, help="Numbers separated by commas."
)
@click.option(
    "--local-only/--no-local-only",
    "twins",
    default=True,
    help="Run each federated method alone as well, for the transfer gain.",
)
@workers_option
@gpus_option
@output_option
def compare(
    strategies: str,
    seeds: str,
    counterparts: bool,
    workers: int | None,
    gpus_per_client: float,
    output: Path | None,
    **given: Any,  # noqa: ANN401
) -> None:
    """Run several methods on the identical scenario and put them side by side.

    A --set goes to the methods that know its key. Runs that are finished in --output
    are kept, so that a comparison can go on where it stopped.
    """
    from fcl_flower.runtime.study import Study, with_local_only

    shared = simulated(configured({**given, "pairs": ()}))
    names = listed(strategies, "strategies")
    shared = shared.with_values(**_in_common(names, shared))
    variants = []
    pairs = key_values(given["pairs"])
    used: set[str] = set()
    for name in names:
        known = algorithm(name).params_type.model_fields
        own = {key: value for key, value in pairs.items() if key in known}
        used |= own.keys()
        variants.append(shared.with_values(strategy=name, set=inline(own)))
    for key in pairs.keys() - used:
        raise ConfigError(f"set {key}: none of {strategies} has a setting of that name")
    chosen = with_local_only(variants) if counterparts else tuple(variants)
    numbers = seeds_of(seeds)
    folder = output or free_folder(shared.with_values(strategy="compare"))
    _study(Study(chosen, numbers), folder, workers, gpus_per_client)


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--data-root", help="Folder with data sets.")
@click.option("--dataset", help="Another data set than the file's.")
@click.option("--seeds", help="Only these of the study's seeds, separated by commas.")
@click.option("--only", help="Only the rows of these labels, separated by commas.")
@workers_option
@gpus_option
@output_option
def study(
    file: Path,
    data_root: str | None,
    dataset: str | None,
    seeds: str | None,
    only: str | None,
    workers: int | None,
    gpus_per_client: float,
    output: Path | None,
) -> None:
    """Run what a study's TOML FILE describes; go on where it was stopped."""
    from fcl_flower.runtime.study import Study, read_study

    found = read_study(file)
    given = {"data_root": data_root, "dataset": dataset}
    changes = {key: value for key, value in given.items() if value}
    variants = tuple(simulated(v.with_values(**changes)) for v in found.variants)
    titles = [variant.title for variant in variants]
    wanted = listed(only, "only") if only else titles
    for name in wanted:
        if name not in titles:
            raise ConfigError(
                f"only: {name!r} is not in the study; expected {', '.join(titles)}"
            )
    numbers = seeds_of(seeds) if seeds else found.seeds
    for number in numbers:
        if number not in found.seeds:
            raise ConfigError(
                f"seeds: {number} is not in the study; expected "
                f"{', '.join(map(str, found.seeds))}"
            )
    _study(
        Study(variants, found.seeds),
        output or RUNS / file.absolute().parent.name,
        workers,
        gpus_per_client,
        lambda config: config.title in wanted and config.seed in numbers,
    )


@cli.command("list")
def list_() -> None:
    """Show the strategies, scenarios, data sets and models there are."""
    from fcl_flower.data.datasets.registry import known_datasets
    from fcl_flower.data.scenarios.registry import SCENARIOS
    from fcl_flower.models.registry import MODELS
    from fcl_flower.setup import resolve

    console = Console()
    table = Table("strategy", "what it does", "paper", title="Strategies")
    for name, entry in algorithms().items():
        table.add_row(name, entry.summary, entry.paper)
    console.print(table)
    for title, lines in (
        ("Scenarios", {n: s.summary for n, s in SCENARIOS.items()}),
        ("Models", {n: m.summary for n, m in MODELS.items()}),
        ("Data sets", known_datasets(resolve.data_root(RunConfig()))),
    ):
        table = Table("name", "what it is", title=title)
        for name, line in lines.items():
            table.add_row(name, line)
        console.print(table)


@cli.command()
@run_options()
@click.option("--save", type=click.Path(path_type=Path), help="Also write it as JSON.")
def scenario(save: Path | None, **given: Any) -> None:  # noqa: ANN401
    """Show who would learn what in which order, without running anything."""
    from fcl_flower.setup import factory

    plan = factory.build_scenario(configured(given))
    click.echo(plan.describe())
    if save:
        try:
            plan.save(save)
        except OSError as error:
            raise ConfigError(
                f"save: {str(save)!r} is refused: expected a file that can be written "
                f"({error.strerror})"
            ) from error


@cli.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), default=Path("."))
def report(folders: tuple[Path, ...], output: Path) -> None:
    """Make the page of one run FOLDER again, or compare several."""
    from fcl_flower.results.report import write_comparison, write_report

    if len(folders) == 1:
        click.echo(write_report(folders[0]))
    else:
        click.echo(write_comparison(output, folders))


def main() -> None:
    """Run the command; exit with 2 and one sentence where the user can mend it."""
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
        click.echo(f"fcl: {error}", err=True)
        sys.exit(2 if isinstance(error, ConfigError) else 1)


def _in_common(strategies: Iterable[str], shared: RunConfig) -> dict[str, str]:
    """Return data set and scenario for all: the first that a strategy has of its own.

    What the user named stays.
    """
    methods = [algorithm(name) for name in strategies]
    own = (m.dataset for m in methods if m.dataset != DATASET)
    hidden = (m.scenario for m in methods if m.scenario)
    return {
        "dataset": shared.dataset or next(own, DATASET),
        "scenario": shared.scenario or next(hidden, ""),
    }


def _run(
    config: RunConfig,
    folder: Path,
    console: Console,
    workers: int | None,
    gpus_per_client: float,
) -> Mapping[str, Any]:
    from fcl_flower.cli.progress import Display
    from fcl_flower.runtime.simulation import simulate

    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "flower.log").touch()
    except OSError as error:
        raise ConfigError(
            f"output: {str(folder)!r} is refused: expected a folder that can be "
            f"written ({error.strerror})"
        ) from error
    with Display(console, f"{config.title} seed {config.seed}") as display:
        return simulate(
            config,
            folder,
            workers=workers or len(os.sched_getaffinity(0)),
            gpus_per_client=gpus_per_client,
            watch=display.show,
        )


def _study(
    chosen: "Study",
    folder: Path,
    workers: int | None,
    gpus_per_client: float,
    wanted: Callable[[RunConfig], bool] = lambda config: True,
) -> None:
    from fcl_flower.results.tables import table
    from fcl_flower.runtime.study import run_study
    from fcl_flower.setup.factory import validate
    from fcl_flower.setup.resolve import resolve

    console = Console()
    chosen = replace(chosen, variants=tuple(map(resolve, chosen.variants)))
    for config in chosen.runs():  # a scenario may fail for one seed alone
        validate(config)
    summaries = run_study(
        chosen,
        folder,
        lambda config, place: _run(config, place, console, workers, gpus_per_client),
        wanted,
    )
    console.print(Markdown(table(summaries)))
    console.print(f"report: {folder / 'comparison.html'}", soft_wrap=True)


if __name__ == "__main__":
    main()
