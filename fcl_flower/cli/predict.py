"""The commands ``fcl predict`` and ``fcl models``."""

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from fcl_flower.cli.command import AtLeastOne, Count, Name, command
from fcl_flower.core.errors import config_error

if TYPE_CHECKING:
    from fcl_flower.prediction.model import Prediction

STDIN = Path("-")


@command
def predict(
    inputs: tuple[Path, ...],
    *,
    state: Path | None = None,
    run: str | None = None,
    client: Count | None = None,
    version: str | None = None,
    task: str | None = None,
    recent: Path | None = None,
    input_format: Literal["csv", "jsonl"] | None = None,
    output_format: Literal["table", "csv", "jsonl"] = "table",
    top: AtLeastOne = 1,
    all_: bool = False,
) -> None:
    """Predict the classes of samples with a trained model.

    INPUTS are files of tables or texts (.csv, .jsonl), images or folders of images,
    arrays (.npz), or - for standard input. A column label is ignored. RUN comes
    first, unless --state is given: the folder of a simulation or of a server.

    Options:
        state: Folder of a client's state, as of fcl client, in the place of RUN.
        run: The run, if the state has several; by default the last.
        client: Number of a client, from 0.
        version: A name of fcl models; by default the version in use.
        task: Number of the task from 0, its name, or auto.
        recent: Labelled samples of the present concept, if concepts are hidden.
        input_format: Format of standard input, which INPUTS call -.
        output_format: Format of the answers.
        top: Number of classes for each sample, the likeliest first.
        all_: All classes of each sample.
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
    # Imported late, since torch takes a second, and `fcl --help` needs none.
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
    most = max(len(answer.probabilities) for answer in answers) if all_ else top
    rows = [
        [name, *_cells(answer, most)]
        for name, answer in zip(names, answers, strict=True)
    ]
    heads = ["input", "class", "probability"]
    heads += [f"{what} {n}" for n in range(2, most + 1) for what in heads[1:3]]
    if task == "auto":
        heads.append("task")
        for row, answer in zip(rows, answers, strict=True):
            row += [""] * (len(heads) - 1 - len(row))
            row.append("" if answer.task is None else model.tasks[answer.task])
    _write(output_format, heads, rows, answers, most)


def _cells(answer: "Prediction", most: int) -> Iterator[str]:
    for name, probability in [*answer.probabilities.items()][:most]:
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
        for row, answer in zip(rows, answers, strict=True):
            line: dict[str, Any] = {
                "input": row[0],
                "class": answer.name,
                "probability": answer.probability,
            }
            if most > 1:
                line["probabilities"] = dict([*answer.probabilities.items()][:most])
            if heads[-1] == "task":
                line["task"] = row[-1]
            click.echo(json.dumps(line, ensure_ascii=False))
    else:
        table = Table(*(Column(head, overflow="fold") for head in heads))
        for row in rows:
            table.add_row(*map(escape, row))
        Console().print(table)


@command
def models(
    folder: Path,
    *,
    run: str | None = None,
    client: Count | None = None,
    use: Name | None = None,
) -> None:
    """List the versions of a model, or choose the version that predicts.

    FOLDER is the folder of a client's state, or of a server's run.

    Options:
        run: The run, if the state has several; by default the last.
        client: Number of a client, from 0.
        use: Predict with this version; newest undoes it.
    """
    from fcl_flower.prediction.places import models_in
    from fcl_flower.rounds import versions

    place = models_in(folder, run, client)
    if use is not None:
        versions.use(place, use)
    listed = versions.versions(place)
    chosen, best = versions.used(place), versions.best(listed)
    table = Table()
    for head in ("name", "round", "tasks", "written", "size", "validated"):
        table.add_column(head, no_wrap=True)
    table.add_column()  # wrapped, so that all fits into 80 columns
    for version in listed:
        about, damage = version.about, version.damage()
        notes = [versions.BEST] if version in best else []
        notes += [versions.NEWEST] if version is listed[-1] else []
        notes += ["in use"] if chosen in (about.name, *notes) else []
        table.add_row(
            about.name,
            str(about.round),
            str(len(about.tasks)),
            about.written[:16].replace("T", " "),
            f"{version.size / 1e6:.1f} MB",
            "" if about.accuracy is None else f"{about.accuracy:.3f}",
            escape(", ".join([*notes, *([f"damaged: {damage}"] if damage else [])])),
        )
    Console().print(table)
