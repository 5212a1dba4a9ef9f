"""The commands that write what others take from a run: its numbers, its networks."""

from importlib import import_module
from pathlib import Path

import click

from fcl_flower.cli.options import listed
from fcl_flower.core.errors import require_extra, unknown_name

NETWORK_FORMATS = ("pt", "safetensors", "onnx", "transformers")


@click.command("export-model")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--client", type=int, required=True, help="Its number, from 0.")
@click.option("--task", type=int, required=True, help="Which of its tasks, from 0.")
@click.option(
    "--format",
    "formats",
    default="pt",
    show_default=True,
    help=f"Some of {', '.join(NETWORK_FORMATS)}, separated by commas.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Folder for the files; by default export in FOLDER.",
)
def export_model(
    folder: Path, client: int, task: int, formats: str, output: Path | None
) -> None:
    """Write the network with which a client predicts a task at the end of a run.

    FOLDER is that of a simulation with --set run.keep_clients=true. pt and safetensors
    are the weights for PyTorch; onnx is the whole network; transformers, of a
    pre-trained encoder, is a folder that Hugging Face's library opens.
    """
    wanted = listed(formats, "format")
    for name in wanted:
        if name not in NETWORK_FORMATS:
            raise unknown_name("format", name, NETWORK_FORMATS)
    from fcl_flower.exports.hugging_face import write_transformers
    from fcl_flower.exports.networks import (
        trained,
        write_onnx,
        write_pt,
        write_safetensors,
    )
    from fcl_flower.runtime.processes import make_folder

    found = trained(folder, client, task)
    place = output or folder / "export"
    make_folder(place, "output")
    writers = {
        "pt": write_pt,
        "safetensors": write_safetensors,
        "onnx": write_onnx,
        "transformers": write_transformers,
    }
    for name in wanted:
        path = place / f"client-{client}-task-{task}.{name}"
        writers[name](found, path)
        click.echo(path)
    samples = len(found.test.y)
    click.echo(f"accuracy {found.accuracy:.3f} on the task's {samples} test samples")


TABLE_FORMATS = ("csv", "parquet", "latex", "svg", "pdf")
NEEDS = {
    "parquet": ("frames", "pyarrow"),
    "svg": ("figures", "matplotlib"),
    "pdf": ("figures", "matplotlib"),
}
"""Extra and package that a format needs."""


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--format",
    "formats",
    default="csv",
    show_default=True,
    help=f"Some of {', '.join(TABLE_FORMATS)}, separated by commas.",
)
@click.option(
    "--reference",
    metavar="TITLE",
    help="Row that the others are tested against; by default the most accurate.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Folder for the files; by default export in the first FOLDER.",
)
def export(
    folders: tuple[Path, ...],
    formats: str,
    reference: str | None,
    output: Path | None,
) -> None:
    """Write the numbers and the charts of runs or studies in FOLDERS as files.

    csv and parquet: each accuracy, each round, each run, each class where clients have
    counted by class, and each method with mean, deviation and a paired test over seeds.
    latex: the methods as a table. svg and pdf: the charts of the page.
    """
    from fcl_flower.exports.sheets import (
        finished_runs,
        methods_sheet,
        run_sheets,
        write_csv,
        write_latex,
        write_parquet,
    )
    from fcl_flower.results.report.comparison import (
        comparison_charts,
        require_comparable,
    )
    from fcl_flower.results.report.run_page import run_charts
    from fcl_flower.runtime.processes import make_folder

    wanted = listed(formats, "format")
    for name in wanted:
        if name not in TABLE_FORMATS:
            raise unknown_name("format", name, TABLE_FORMATS)
        for needed, package in [NEEDS[name]] if name in NEEDS else []:
            with require_extra(needed, f"format {name}"):
                import_module(package)  # or says what to install, before all else
    runs = finished_runs(folders)
    places = [run.folder for run in runs]
    require_comparable(places)  # a row of the methods is a mean over its runs
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

            one = len(places) == 1
            charts = run_charts(places[0]) if one else comparison_charts(places)
            paths = write_figures(charts, folder / "figures", name)
        for path in paths:
            click.echo(path)
