"""The commands ``fcl export`` and ``fcl export-model``."""

from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import Annotated, TypeAlias

import click

from fcl_flower.cli.command import command
from fcl_flower.cli.options import listed
from fcl_flower.core.errors import config_error, require_extra, unknown_name

NETWORK_FORMATS = ("pt", "safetensors", "onnx", "pt2", "transformers", "hub", "peft")
NetworkFormats: TypeAlias = Annotated[str, ",".join(NETWORK_FORMATS)]


@command
def export_model(
    folder: Path | None = None,
    *,
    state: Path | None = None,
    run: str | None = None,
    client: int | None = None,
    task: str | None = None,
    version: str | None = None,
    format_: NetworkFormats = "pt",
    output: Path | None = None,
) -> None:
    """Write the model of a client or a server for other programs.

    FOLDER is that of a simulation, or of a federation's run at the server. onnx and pt2
    (torch.export) are the whole graph, from raw samples to a logit for each class; pt
    and safetensors are the weights. transformers, of a pre-trained encoder, is a folder
    that Hugging Face's library opens; hub is one with a card, weights and graph, of any
    network. A manifest in JSON describes inputs and outputs. Of a language model
    transformers is the whole model, and peft its changes of low rank.

    Options:
        state: A client's folder of states, in the place of FOLDER.
        run: The run, if --state holds several.
        client: Number of the client, from 0; none at a server.
        task: Number from 0, or name; of a hidden concept its number. None if one head
            serves all tasks.
        version: Name of a version (fcl models).
        format_: Formats, separated by commas.
        output: Folder for the files; by default export in FOLDER or in --state.
    """
    wanted = names_of(format_, NETWORK_FORMATS)
    place = folder or state
    if place is None or (folder and state):
        expected = "either a run's folder or --state"
        raise config_error("folder", "both" if place else "none", expected)
    from fcl_flower.core.processes import make_folder
    from fcl_flower.exports.files import WRITERS
    from fcl_flower.exports.manifest import manifest, write_manifest
    from fcl_flower.exports.networks import exported
    from fcl_flower.prediction.model import load

    model = load(place, client=client, run=run, version=version)
    owner = "server" if model.about.client is None else f"client-{model.about.client}"
    output = output or place / "export"
    if model.run.spec.modality == "instructions":
        from fcl_flower.exports import language

        names_of(format_, sorted(language.WRITERS))
        make_folder(output, "output")
        for name in wanted:
            path = output / f"{owner}.{name}"
            language.WRITERS[name](model, path)
            click.echo(path)
        return
    if "peft" in wanted:
        raise config_error("format", "peft", "another, but for a language model")
    wanted_task = int(task) if task is not None and task.isdecimal() else task
    network = exported(model, wanted_task)
    about = manifest(network)
    make_folder(output, "output")
    stem = owner if network.task is None else f"{owner}-task-{network.task}"
    paths = [output / f"{stem}.{name}" for name in wanted]
    for name, path in zip(wanted, paths, strict=True):
        WRITERS[name](network, about, path)
        click.echo(path)
    path = output / f"{stem}.json"
    write_manifest(about, path, [written for written in paths if written.is_file()])
    click.echo(path)
    if measured := about["accuracy"]:
        click.echo(f"accuracy {measured['value']:.3f} on {measured['on']}")


def names_of(text: str, known: Collection[str]) -> list[str]:
    """Split an option into names of formats."""
    names = listed(text, "format")
    for name in names:
        if name not in known:
            raise unknown_name("format", name, known)
    return names


TABLE_FORMATS = ("csv", "parquet", "latex", "svg", "pdf")
TableFormats: TypeAlias = Annotated[str, ",".join(TABLE_FORMATS)]
FIGURES = ("figures", "matplotlib")
NEEDS = {"parquet": ("frames", "pyarrow"), "svg": FIGURES, "pdf": FIGURES}
"""The extra and the package that a format needs."""


@command
def export(
    folders: tuple[Path, ...],
    *,
    format_: TableFormats = "csv",
    reference: Annotated[str, "TITLE"] | None = None,
    output: Path | None = None,
) -> None:
    """Write the numbers and the charts of runs or studies in FOLDERS as files.

    csv and parquet: each accuracy, each round, each run, each class where clients have
    counted by class, and each method with mean, deviation and a paired test over seeds.
    latex: the methods as a table. svg and pdf: the charts of the page.

    Options:
        format_: Formats, separated by commas.
        reference: Row that tests compare the others with; by default the most accurate.
        output: Folder for the files; by default export in the first FOLDER.
    """
    from fcl_flower.core.processes import make_folder
    from fcl_flower.exports.sheets import (
        finished_runs,
        methods_sheet,
        run_sheets,
        write_csv,
        write_latex,
        write_parquet,
    )
    from fcl_flower.results.report.comparison import comparison_charts
    from fcl_flower.results.report.run_page import run_charts

    wanted = names_of(format_, TABLE_FORMATS)
    for name in filter(NEEDS.get, wanted):
        extra, package = NEEDS[name]
        with require_extra(extra, f"format {name}"):
            import_module(package)  # refuses a missing package before all else
    runs = finished_runs(folders)
    methods = methods_sheet(runs, reference)
    sheets = [*run_sheets(runs), methods]
    folder = output or folders[0] / "export"
    make_folder(folder, "output")
    for name in wanted:
        if name == "csv":
            paths = [write_csv(sheet, folder) for sheet in sheets]
        elif name == "parquet":
            paths = [write_parquet(sheet, folder) for sheet in sheets]
        elif name == "latex":
            paths = [write_latex(methods, folder)]
        else:
            from fcl_flower.exports.figures import write_figures

            places = [run.folder for run in runs]
            alone = len(places) == 1
            charts = run_charts(places[0]) if alone else comparison_charts(places)
            paths = write_figures(charts, folder / "figures", name)
        for path in paths:
            click.echo(path)
