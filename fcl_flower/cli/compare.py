"""The commands ``fcl compare`` and ``fcl study``."""

from collections.abc import Collection, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markdown import Markdown

from fcl_flower.cli.options import (
    configured,
    listed,
    output_folder,
    run_options,
    seeds_of,
    set_keys,
    several_runs,
    with_folders,
)
from fcl_flower.cli.simulate import print_untrained
from fcl_flower.core.errors import refuse, unknown

if TYPE_CHECKING:
    from fcl_flower.config.run_config import RunConfig
    from fcl_flower.runtime.simulation import Job, Outcome, Place
    from fcl_flower.runtime.studies.plan import Study


@click.command()
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
    "counterparts",
    default=True,
    help="Also run each strategy without communication.",
)
@several_runs
def compare(
    strategies: str,
    seeds: str,
    counterparts: bool,
    output: Path | None,
    place: "Place",
    port: int | None,
    **given: Any,  # noqa: ANN401
) -> None:
    """Run several strategies on the identical scenario and put them side by side.

    A --set of a strategy goes to those that know its key. Runs that are finished in
    --output are kept, so that a comparison can go on where it stopped.
    """
    from fcl_flower.runtime.studies.plan import Study, variants_of

    given_pairs = set_keys(given["pairs"])
    params = {k: v for k, v in given_pairs.items() if k.startswith("strategy.")}
    shared = configured({**given, "pairs": ()}).replace(
        **{k: v for k, v in given_pairs.items() if k not in params}
    )
    if (
        place.local_data and not shared.scenario.name
    ):  # before a strategy brings its own
        shared = shared.replace(**{"scenario.name": "local-data"})
    names = listed(strategies, "strategies")
    variants = variants_of(names, shared, params, counterparts=counterparts)
    folder = output_folder(output, shared.replace(strategy="compare"))
    chosen = Study(variants, seeds_of(seeds)).mapped(
        lambda config: with_folders(config, place.local_data)
    )
    _study(chosen, folder, place, port)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--data-root", help="Folder with data sets.")
@click.option("--dataset", help="Another data set than the file's.")
@click.option("--seeds", help="Only these of the study's seeds, separated by commas.")
@click.option("--only", help="Only the rows of these titles, separated by commas.")
@several_runs
def study(
    file: Path,
    data_root: str | None,
    dataset: str | None,
    seeds: str | None,
    only: str | None,
    output: Path | None,
    place: "Place",
    port: int | None,
) -> None:
    """Run what a study's TOML FILE describes; go on where it was stopped.

    Where rows have candidates, these are compared first, on held-out training samples,
    and each row gets its best.
    """
    from fcl_flower.results.run_folder import RUNS
    from fcl_flower.runtime.studies.file import read_study

    found = read_study(file)
    given = {"data_root": data_root, "dataset": dataset}
    changes = {key: value for key, value in given.items() if value}

    def changed(config: "RunConfig") -> "RunConfig":
        return with_folders(config.replace(**changes), place.local_data)

    titles = [variant.title for variant in found.variants]
    wanted = listed(only, "only") if only else titles
    for name in wanted:
        if name not in titles:
            raise unknown("only", name, titles)
    numbers = seeds_of(seeds) if seeds else found.seeds
    for number in numbers:
        if number not in found.seeds:
            expected = f"one of the study's: {', '.join(map(str, found.seeds))}"
            raise refuse("seeds", number, expected)
    _study(
        found.mapped(changed),
        output or RUNS / file.absolute().parent.name,
        place,
        port,
        wanted,
        numbers,
    )


def _study(
    chosen: "Study",
    folder: Path,
    place: "Place",
    port: int | None,
    wanted: Collection[str] = (),
    seeds: Collection[int] = (),
) -> None:
    """Run a study, or some rows and seeds of it, and show its table."""
    from fcl_flower.cli.terminal.study_progress import live_study, shown
    from fcl_flower.cli.terminal.wide_table import print_sheet
    from fcl_flower.results.tables import sheet
    from fcl_flower.runtime.studies.choice import FOLDER, candidate_study, settle
    from fcl_flower.runtime.studies.runs import run_study

    console = Console()
    titles = wanted or [variant.title for variant in chosen.variants]
    numbers = seeds or chosen.seeds

    def run_all(jobs: Sequence["Job"]) -> Generator[tuple["Job", "Outcome"]]:
        return shown(console, place, jobs)

    try:
        if chosen.choice is not None:
            trials = candidate_study(chosen.choice)
            with live_study(port, trials, folder / FOLDER, console):
                chosen = settle(chosen, folder, run_all, titles)
            if (told := folder / "chosen.md").exists():
                console.print(Markdown(told.read_text()))
        with live_study(port, chosen, folder, console):
            summaries = run_study(
                chosen,
                folder,
                run_all,
                lambda run: run.title in titles and run.run.seed in numbers,
                place.local_data,
            )
    except KeyboardInterrupt:
        again = f"the same command with --output {folder} goes on with it"
        click.echo(f"interrupted; {again}", err=True)
        raise
    print_sheet(console, sheet(summaries))
    for summary in summaries:
        name = f"{summary['label']} seed {summary['seed']}: "
        print_untrained(console, summary, name)
    console.print(f"report: {folder / 'comparison.html'}", soft_wrap=True)
