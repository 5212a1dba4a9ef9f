"""The command ``fcl export-model``: the network of one client and task."""

from pathlib import Path

import click

from fcl_flower.cli.options import listed
from fcl_flower.core.errors import unknown

FORMATS = ("pt", "safetensors", "onnx", "transformers")


@click.command("export-model")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--client", type=int, required=True, help="Its number, from 0.")
@click.option("--task", type=int, required=True, help="Which of its tasks, from 0.")
@click.option(
    "--format",
    "formats",
    default="pt",
    show_default=True,
    help=f"Some of {', '.join(FORMATS)}, separated by commas.",
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
        if name not in FORMATS:
            raise unknown("format", name, FORMATS)
    from fcl_flower.exports.hugging_face.folder import write_transformers
    from fcl_flower.exports.networks import write_onnx, write_pt, write_safetensors
    from fcl_flower.exports.trained import trained
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
