"""The commands that use a trained model: what it predicts, and its versions."""

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from fcl_flower.core.errors import config_error

if TYPE_CHECKING:
    from fcl_flower.prediction.model import Prediction

STDIN = Path("-")


@click.command()
@click.argument("inputs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="Folder of a client's state, as fcl client has it, in the place of RUN.",
)
@click.option("--run", help="Of several in the state; by default the last.")
@click.option("--client", type=click.IntRange(0), help="Number of a client, from 0.")
@click.option("--version", help="A name of fcl models; by default that in use.")
@click.option("--task", help="Its number from 0, its name, or auto.")
@click.option(
    "--recent",
    type=click.Path(path_type=Path),
    help="Labelled samples of now, where concepts are hidden.",
)
@click.option(
    "--input-format",
    type=click.Choice(["csv", "jsonl"]),
    help="Of standard input, which INPUTS call -.",
)
@click.option(
    "--output-format",
    type=click.Choice(["table", "csv", "jsonl"]),
    default="table",
    show_default=True,
)
@click.option(
    "--top",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="So many classes of each sample, the likeliest first.",
)
@click.option("--all", "everything", is_flag=True, help="All classes of each sample.")
def predict(
    inputs: tuple[Path, ...],
    state: Path | None,
    run: str | None,
    client: int | None,
    version: str | None,
    task: str | None,
    recent: Path | None,
    input_format: str | None,
    output_format: str,
    top: int,
    everything: bool,
) -> None:
    """Predict the classes of samples with a trained model.

    INPUTS are files of tables or texts (.csv, .jsonl), images or folders of images,
    arrays (.npz), or - for standard input. A column label is not looked at. In front of
    them stands RUN, the folder of a simulation or of a server, unless --state names
    that of a client.
    """
    if state is None:
        state, *rest = inputs
        if not rest:
            expected = "a file to predict behind the folder of a run, or --state"
            raise config_error("INPUTS", str(state), expected)
        inputs = tuple(rest)
    if (STDIN in inputs) != (input_format is not None):
        expected = "csv or jsonl for standard input, and only for that"
        raise config_error("input-format", input_format, expected)
    # Imported here since torch takes a second, and `fcl --help` does without.
    from fcl_flower.prediction.model import load

    model = load(state, client=client, run=run, version=version)
    shown = None
    if recent is not None:
        samples = model.read(recent, task)
        shown = model.examples(samples.x, samples.labels)
    names: list[str] = []
    answers: list[Prediction] = []
    for path in inputs:
        place = Path("/dev/stdin") if path == STDIN else path
        form = f".{input_format}" if path == STDIN else ""
        samples = model.read(place, task, form)
        answers += model.answer(samples.x, task, shown)
        names += [name.replace(str(place), str(path), 1) for name in samples.names]
    most = max(len(one.probabilities) for one in answers) if everything else top
    found = zip(names, answers, strict=True)
    rows = [[name, *_cells(one, most)] for name, one in found]
    heads = ["input", "class", "probability"]
    heads += [f"{what} {n}" for n in range(2, most + 1) for what in heads[1:3]]
    if task == "auto":
        heads.append("task")
        for row, one in zip(rows, answers, strict=True):
            row += [""] * (len(heads) - 1 - len(row))
            row.append("" if one.task is None else model.tasks[one.task])
    _write(output_format, heads, rows, answers, most)


def _cells(one: "Prediction", most: int) -> Iterator[str]:
    for name, probability in [*one.probabilities.items()][:most]:
        yield name
        yield f"{probability:.4f}"


def _write(
    form: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    answers: Sequence["Prediction"],
    most: int,
) -> None:
    if form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([heads, *rows])
    elif form == "jsonl":
        for row, one in zip(rows, answers, strict=True):
            found: dict[str, Any] = {
                "input": row[0],
                "class": one.name,
                "probability": one.probability,
            }
            if most > 1:
                found["probabilities"] = dict([*one.probabilities.items()][:most])
            if heads[-1] == "task":
                found["task"] = row[-1]
            click.echo(json.dumps(found, ensure_ascii=False))
    else:
        table = Table(*(Column(head, overflow="fold") for head in heads))
        for row in rows:
            table.add_row(*map(escape, row))
        Console().print(table)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--run", help="Of several in the state; by default the last.")
@click.option("--client", type=click.IntRange(0), help="Number of a client, from 0.")
@click.option(
    "--use", metavar="NAME", help="Predict with this version; newest takes it back."
)
def models(folder: Path, run: str | None, client: int | None, use: str | None) -> None:
    """List the versions of a model, or choose one that predicts from now on.

    FOLDER is that of a client's state, or of a server's run.
    """
    from fcl_flower.prediction.places import models_in
    from fcl_flower.rounds import versions

    place = models_in(folder, run, client)
    if use is not None:
        versions.use(place, use)
    known = versions.versions(place)
    chosen, best = versions.used(place), versions.best(known)
    table = Table()
    for head in ("name", "round", "tasks", "written", "size", "validated"):
        table.add_column(head, no_wrap=True)
    table.add_column()  # wrapped, so that all fits into 80 columns
    for one in known:
        about, damage = one.about, one.damage()
        notes = [versions.BEST] if one in best else []
        notes += [versions.NEWEST] if one is known[-1] else []
        notes += ["in use"] if chosen in (about.name, *notes) else []
        table.add_row(
            about.name,
            str(about.round),
            str(len(about.tasks)),
            about.written[:16].replace("T", " "),
            f"{one.size / 1e6:.1f} MB",
            "" if about.accuracy is None else f"{about.accuracy:.3f}",
            escape(", ".join([*notes, *([f"damaged: {damage}"] if damage else [])])),
        )
    Console().print(table)
