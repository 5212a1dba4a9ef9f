"""The commands ``fcl simulate``, ``fcl compare`` and ``fcl study``."""

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markdown import Markdown

from fcl_flower.cli.command import Folder, command
from fcl_flower.cli.options import (
    Place,
    Places,
    chosen_preset,
    configured,
    listed,
    output_folder,
    resumed,
    run_options,
    seeds_of,
    set_keys,
    with_folders,
)
from fcl_flower.core.errors import ConfigError, FclError, config_error, unknown_name

if TYPE_CHECKING:
    from fcl_flower.config.run_config import RunConfig
    from fcl_flower.simulation.local_runs import Backend, Job, RunResult
    from fcl_flower.simulation.study import Study


@command
@run_options()
def simulate(
    *,
    place: Place,
    overwrite: bool = False,
    resume: Folder | None = None,
    **options: Any,  # noqa: ANN401
) -> None:
    """Run one strategy on this machine.

    Options:
        overwrite: Replace a finished run in --output.
        resume: Go on with the run in FOLDER; a finished run needs more --tasks.
    """
    from fcl_flower.core.processes import make_folder
    from fcl_flower.results.run_folder import lost_first_round, resumable
    from fcl_flower.setup.resolve import resolve
    from fcl_flower.simulation.local_runs import Job
    from fcl_flower.simulation.progress import shown

    backend, folders = place.chosen(), place.data
    if resume:
        run = resolve(resumed(resume, options, place.output, folders))
    else:
        run = resolve(with_folders(configured(options), folders))
    # Imported after the look-up of names, since it loads torch.
    from fcl_flower.setup.build import validate

    validate(run)
    console = Console()
    folder = resume or output_folder(place.output, run.config)
    if (folder / "summary.json").exists() and not overwrite:
        raise ConfigError(
            f"output: got {str(folder)!r} with a finished run, expected another "
            "folder, or --overwrite"
        )
    make_folder(folder, "output")
    try:
        ((_, summary),) = shown(console, backend, [Job(run, folder)])
    except KeyboardInterrupt:
        if resumable(folder):
            again = f"fcl simulate --resume {folder}"
            click.echo(f"interrupted; {again} goes on with this run", err=True)
        raise
    if isinstance(summary, FclError):
        if lost_first_round(folder):
            again = f"fcl simulate --resume {folder} --learning-rate RATE"
            click.echo(f"{again} begins the first round again", err=True)
        raise summary
    for line in _told(run.config, folder, summary):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _told(
    config: "RunConfig", folder: Path, summary: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what a user has to know of a run that is over."""
    from fcl_flower.results.run_folder import CLIENTS, clients_bytes

    accuracy = summary["average_accuracy"]
    if stopped := summary.get("privacy", {}).get("stopped"):
        effect = ", so that there is no accuracy over all tasks" * (accuracy is None)
        yield f"privacy budget: {stopped}{effect}"
    elif not config.privacy.scores:
        yield "no client was evaluated: privacy.scores is false"
    for topic in ("divergence", "advice"):
        if remark := summary["remarks"].get(topic):
            yield remark
    yield from _untrained(summary)
    if summary["honest_accuracy"] is not None:
        yield f"honest clients: accuracy {summary['honest_accuracy']:.3f}"
    scores = {
        "accuracy": accuracy,
        "balanced accuracy": summary.get("balanced_accuracy"),
        "average incremental accuracy": summary.get("average_incremental_accuracy"),
        "forgetting": summary["forgetting"],
    }
    shown = [
        f"{name} {'unknown' if score is None else format(score, '.3f')}"
        for name, score in scores.items()
        if score is not None or name in ("accuracy", "forgetting")
    ]
    yield f"{', '.join(shown)}; report: {folder / 'report.html'}"
    for client, why in summary["left_out"].items():
        yield f"client {client} took part in no round: {why}"
    if (size := clients_bytes(folder)) > _WORTH_A_LINE:
        yield (
            f"{folder / CLIENTS} keeps the clients' states, {size / 1e6:.0f} MB, for "
            "fcl predict and fcl export-model; none with --set run.keep_clients=false"
        )


_WORTH_A_LINE = 10 * 10**6
"""The bytes of clients' states from which on a line names them."""


def _untrained(summary: Mapping[str, Any], name: str = "") -> Iterator[str]:
    """Tell how many client-tasks were tested without training, if any."""
    from fcl_flower.results.report.wording import untrained

    if count := summary.get("untrained_client_tasks"):
        yield name + untrained(count, summary["clients"] * summary["tasks"])


@command
@run_options(without=frozenset({"strategy", "seed", "local_only"}))
def compare(
    *,
    strategies: str = "fedavg,fedweit",
    seeds: str = "0",
    local_only: bool = True,
    places: Places,
    **options: Any,  # noqa: ANN401
) -> None:
    """Run several strategies on the identical scenario and compare them.

    Each strategy gets the --set pairs whose key it has. A comparison goes on where it
    stopped, since finished runs in --output stay.

    Options:
        strategies: Names separated by commas.
        seeds: Numbers separated by commas.
        local_only: Also run each strategy without communication.
    """
    from fcl_flower.simulation.study import Study, variants_of

    backend = places.chosen()
    pairs = set_keys(options["set"])
    params = {k: v for k, v in pairs.items() if k.startswith("strategy.")}
    preset, names = chosen_preset(options), listed(strategies, "strategies")
    shared = configured({**options, "set": ()}, preset).replace(
        **{k: v for k, v in pairs.items() if k not in params}
    )
    params = {**preset.params_for(names), **params}
    if backend.local_data and not shared.scenario.name:  # a strategy may have its own
        shared = shared.replace(scenario="local-data")
    variants = variants_of(names, shared, params, counterparts=local_only)
    folder = output_folder(places.output, shared.replace(strategy="compare"))
    chosen = Study(variants, seeds_of(seeds)).mapped(
        lambda config: with_folders(config, backend.local_data)
    )
    _study(chosen, folder, backend)


@command
def study(
    file: Path,
    *,
    data_root: str | None = None,
    dataset: str | None = None,
    seeds: str | None = None,
    only: str | None = None,
    places: Places,
) -> None:
    """Run the study in a TOML FILE; go on where it stopped.

    Candidates of a row are compared first, on held-out training samples. The row gets
    the best of them.

    Options:
        data_root: Folder with data sets.
        dataset: Data set in the place of the file's.
        seeds: Some of the study's seeds, separated by commas.
        only: Titles of rows, separated by commas; other rows do not run.
    """
    from fcl_flower.results.run_folder import RUNS
    from fcl_flower.simulation.study import read_study

    backend = places.chosen()
    whole = read_study(file)
    options = {"data_root": data_root, "dataset": dataset}
    changes = {key: value for key, value in options.items() if value}

    def changed(config: "RunConfig") -> "RunConfig":
        return with_folders(config.replace(**changes), backend.local_data)

    titles = [variant.title for variant in whole.variants]
    wanted = listed(only, "only") if only else titles
    for name in wanted:
        if name not in titles:
            raise unknown_name("only", name, titles)
    numbers = seeds_of(seeds) if seeds else whole.seeds
    for number in numbers:
        if number not in whole.seeds:
            expected = f"one of the study's: {', '.join(map(str, whole.seeds))}"
            raise config_error("seeds", number, expected)
    _study(
        whole.mapped(changed),
        places.output or RUNS / file.absolute().parent.name,
        backend,
        wanted,
        numbers,
    )


def _study(
    chosen: "Study",
    folder: Path,
    backend: "Backend",
    wanted: Collection[str] = (),
    seeds: Collection[int] = (),
) -> None:
    from fcl_flower.cli.tables import print_sheet
    from fcl_flower.results.tables import text_table
    from fcl_flower.simulation.progress import shown
    from fcl_flower.simulation.study_runs import run_study, settle

    console = Console()
    titles = wanted or [variant.title for variant in chosen.variants]
    numbers = seeds or chosen.seeds

    def run_all(jobs: Sequence["Job"]) -> Generator[tuple["Job", "RunResult"]]:
        return shown(console, backend, jobs)

    try:
        if chosen.candidates:
            chosen = settle(chosen, folder, run_all, titles)
            if (page := folder / "chosen.md").exists():
                console.print(Markdown(page.read_text()))
        summaries = run_study(
            chosen,
            folder,
            run_all,
            lambda run: run.title in titles and run.run.seed in numbers,
            backend.local_data,
        )
    except KeyboardInterrupt:
        again = f"the same command with --output {folder} goes on with it"
        click.echo(f"interrupted; {again}", err=True)
        raise
    print_sheet(console, text_table(summaries))
    for summary in summaries:
        for line in _untrained(summary, f"{summary['label']} seed {summary['seed']}: "):
            console.print(line, soft_wrap=True)
    console.print(f"report: {folder / 'comparison.html'}", soft_wrap=True)
