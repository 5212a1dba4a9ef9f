"""The command ``fcl export``: what others take from a run."""

from importlib import import_module
from pathlib import Path

import click

from fcl_flower.cli.options import listed
from fcl_flower.core.errors import unknown

FORMATS = ("csv", "parquet", "latex", "svg", "pdf")
WRITERS = {
    "parquet": "fcl_flower.exports.parquet",
    "svg": "fcl_flower.exports.figures",
    "pdf": "fcl_flower.exports.figures",
}
"""Modules that need an extra, by format."""


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--format",
    "formats",
    default="csv",
    show_default=True,
    help=f"Some of {', '.join(FORMATS)}, separated by commas.",
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
    from fcl_flower.exports.latex import write_latex
    from fcl_flower.exports.methods import methods_sheet
    from fcl_flower.exports.sheets import finished_runs, run_sheets, write_csv
    from fcl_flower.results.report import (
        comparison_charts,
        require_comparable,
        run_charts,
    )
    from fcl_flower.runtime.processes import make_folder

    wanted = listed(formats, "format")
    for name in wanted:
        if name not in FORMATS:
            raise unknown("format", name, FORMATS)
        if name in WRITERS:
            import_module(WRITERS[name])  # or says what to install, before all else
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
            from fcl_flower.exports.parquet import write_parquet

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
