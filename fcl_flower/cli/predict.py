"""The commands ``fcl predict`` and ``fcl models``."""

import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from fcl_flower.cli.command import AtLeastOne, Count, Name, command
from fcl_flower.core.errors import config_error

if TYPE_CHECKING:
    from fcl_flower.prediction.model import Model, Prediction

STDIN = Path("-")


@command
def predict(
    inputs: tuple[Path, ...] = (),
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
    prompt: tuple[str, ...] = (),
    max_new_tokens: AtLeastOne = 64,
    temperature: float = 0.0,
    seed: Count = 0,
) -> None:
    """Predict the classes of samples with a trained model, or answer prompts.

    INPUTS are files of tables or texts (.csv, .jsonl), images or folders of images,
    arrays (.npz), or - for standard input. A column label is ignored. RUN comes
    first, unless --state is given: the folder of a simulation or of a server. A
    language model (causal-lm) answers --prompt, or the prompts of a file (.jsonl).

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
        prompt: A text to answer; may be repeated.
        max_new_tokens: Largest number of an answer's tokens.
        temperature: 0 for the likeliest tokens; above 0 they are drawn.
        seed: Seed of the draws.
    """
    if state is None:
        if not inputs:
            raise config_error("INPUTS", "none", "the folder of a run, or --state")
        state, *rest = inputs
        inputs = tuple(rest)
    if not (inputs or prompt):
        expected = "a file to predict behind the folder of a run, or --state"
        raise config_error("INPUTS", str(state), expected)
    if (STDIN in inputs) != (input_format is not None):
        expected = "csv or jsonl for standard input, and only for that"
        raise config_error("input-format", input_format, expected)
    # Imported late, since torch takes a second, and `fcl --help` needs none.
    from fcl_flower.prediction.model import load

    model = load(state, client=client, run=run, version=version)
    places = [*_places(inputs, input_format)]
    if not prompt and model.run.spec.modality != "instructions":
        shown = _Shown(task, recent, top, all_)
        _classify(model, places, shown, output_format)
        return
    classes = {"top": top - 1 and top, "all": all_, "recent": recent, "task": task}
    for key, value in classes.items():
        if value:
            expected = "none, as a language model has no classes"
            raise config_error(key, value, expected)
    decoding = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "seed": seed,
    }
    _answer(model, places, prompt, decoding, output_format)


class _Shown(NamedTuple):
    """The wishes of a user: a task, samples of the present, and classes to show."""

    task: str | None
    recent: Path | None
    top: int
    all_: bool


def _classify(
    model: "Model", places: Sequence["_Place"], shown: _Shown, form: str
) -> None:
    examples, task = None, shown.task
    if shown.recent is not None:
        samples = model.read(shown.recent, task)
        examples = model.examples(samples.x, samples.labels)
    names: list[str] = []
    answers: list[Prediction] = []
    for place in places:
        samples = model.read(place.file, task, place.form)
        answers += model.answer(samples.x, task, examples)
        names += map(place.called, samples.names)
    most = shown.top
    if shown.all_:
        most = max(len(answer.probabilities) for answer in answers)
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
    _write(form, heads, rows, answers, most)


def _answer(
    model: "Model",
    places: Sequence["_Place"],
    prompts: Sequence[str],
    decoding: Mapping[str, Any],
    form: str,
) -> None:
    from fcl_flower.prediction.answers import answers

    asked: list[Any] = [*prompts]
    names = [f"prompt {number}" for number in range(1, len(prompts) + 1)]
    for place in places:
        samples = model.read(place.file, None, place.form)
        asked += samples.x
        names += map(place.called, samples.names)
    texts = answers(model, asked, **decoding)
    rows = [[name, text] for name, text in zip(names, texts, strict=True)]
    heads = ("input", "answer")
    if form == "jsonl":
        for row in rows:
            line = dict(zip(heads, row, strict=True))
            click.echo(json.dumps(line, ensure_ascii=False))
    else:
        _write(form, heads, rows, (), 0)


class _Place(NamedTuple):
    """A file of samples: its name for a user, the file, and its format if unnamed."""

    name: str
    file: Path
    form: str

    def called(self, sample: str) -> str:
        """Name a sample by the user's name of its file."""
        return sample.replace(str(self.file), self.name, 1)


def _places(inputs: Sequence[Path], input_format: str | None) -> Iterator[_Place]:
    for path in inputs:
        if path == STDIN:
            yield _Place(str(path), Path("/dev/stdin"), f".{input_format}")
        else:
            yield _Place(str(path), path, "")


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
