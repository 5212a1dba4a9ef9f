"""The command ``fcl simulate``."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from fcl_flower.cli.options import (
    backend_option,
    configured,
    data_option,
    gpus_option,
    live_option,
    live_port,
    live_port_option,
    output_folder,
    output_option,
    place_of,
    resume_option,
    resumed,
    run_options,
    with_folders,
    workers_option,
)
from fcl_flower.core.errors import ConfigError, FclError

if TYPE_CHECKING:
    from fcl_flower.config.run_config import RunConfig


@click.command()
@run_options()
@data_option
@backend_option
@workers_option
@gpus_option
@output_option
@click.option("--overwrite", is_flag=True, help="Replace a finished run in --output.")
@resume_option
@live_option
@live_port_option
def simulate(
    folders: tuple[Path, ...],
    output: Path | None,
    overwrite: bool,
    resume: Path | None,
    live: bool,
    port: int | None,
    backend: str,
    workers: int | None,
    gpus_per_client: float,
    **given: Any,  # noqa: ANN401
) -> None:
    """Run one strategy on this machine."""
    from fcl_flower.cli.terminal.progress import Display, live_run
    from fcl_flower.results.run_folder import lost_first_round, resumable
    from fcl_flower.runtime.processes import make_folder
    from fcl_flower.runtime.simulation import Job, run_all
    from fcl_flower.setup.resolve import resolve

    place = place_of(backend, workers, gpus_per_client, folders=folders)
    port = live_port(live, port)
    config = resumed(resume, given, output) if resume else configured(given)
    run = resolve(with_folders(config, folders))
    # After the names have been looked up, since it loads torch.
    from fcl_flower.setup.factory import validate

    validate(run)
    console = Console()
    folder = resume or output_folder(output, run.config)
    if (folder / "summary.json").exists() and not overwrite:
        raise ConfigError(
            f"output: got {str(folder)!r} with a finished run, expected another "
            "folder, or --overwrite"
        )
    make_folder(folder, "output")
    job = Job(run, folder)
    try:
        with (
            live_run(port, folder, console),
            Display(console, job.name) as display,
        ):
            ((_, summary),) = run_all(
                place, [job], lambda job, progress: display.show(progress)
            )
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
    _print_summary(console, run.config, folder, summary)


def _print_summary(
    console: Console, config: "RunConfig", folder: Path, summary: Mapping[str, Any]
) -> None:
    accuracy, forgetting = (
        "unknown" if summary[key] is None else f"{summary[key]:.3f}"
        for key in ("average_accuracy", "forgetting")
    )
    if stopped := summary.get("privacy", {}).get("stopped"):
        lost = summary["average_accuracy"] is None
        rest = ", so that there is no accuracy over all tasks" * lost
        console.print(f"privacy budget: {stopped}{rest}", soft_wrap=True)
    elif not config.privacy.scores:
        console.print("no client was evaluated: privacy.scores is false")
    if diverged := summary["remarks"].get("divergence"):
        console.print(diverged, highlight=False, soft_wrap=True)
    print_untrained(console, summary)
    if summary["honest_accuracy"] is not None:
        console.print(f"honest clients: accuracy {summary['honest_accuracy']:.3f}")
    console.print(
        f"accuracy {accuracy}, forgetting {forgetting}; "
        f"report: {folder / 'report.html'}",
        highlight=False,
        soft_wrap=True,
    )
    for client, why in summary["left_out"].items():
        line = f"client {client} took part in no round: {why}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def print_untrained(
    console: Console, summary: Mapping[str, Any], name: str = ""
) -> None:
    """Say how many tasks of clients were tested without training, if there are any."""
    from fcl_flower.results.report.html.numbers import untrained

    if count := summary.get("untrained_client_tasks"):
        every = summary["clients"] * summary["tasks"]
        console.print(f"{name}{untrained(count, every)}", soft_wrap=True)
