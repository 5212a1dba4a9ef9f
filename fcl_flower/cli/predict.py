"""The commands ``fcl predict`` and ``fcl models``."""

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    files = _read(model, inputs, input_format, task)
    if not prompt and model.run.spec.modality != "instructions":
        most = 0 if all_ else top
        _write(output_format, _classified(model, files, task, recent, most))
        return
    classes = {"top": top - 1 and top, "all": all_, "recent": recent, "task": task}
    for key, value in classes.items():
        if value:
            expected = "none, as a language model has no classes"
            raise config_error(key, value, expected)
    from fcl_flower.prediction.answers import answers

    asked: list[Any] = [*prompt]
    called = [f"prompt {number}" for number in range(1, len(prompt) + 1)]
    for samples, names in files:
        asked += samples
        called += names
    texts = answers(
        model,
        asked,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
    )
    pairs = zip(called, texts, strict=True)
    lines = [{"input": name, "answer": text} for name, text in pairs]
    _write(output_format, [_Row(line, line) for line in lines])


class _Row(NamedTuple):
    """An answer as the cells of a table, and as an object of JSON."""

    cells: Mapping[str, str]
    line: Mapping[str, Any]


def _read(
    model: "Model",
    inputs: Sequence[Path],
    input_format: str | None,
    task: str | None,
) -> Iterator[tuple[Any, list[str]]]:
    """Yield the samples of each file, and their names with the user's name of it."""
    for path in inputs:
        file, form = path, ""
        if path == STDIN:
            file, form = Path("/dev/stdin"), f".{input_format}"
        samples = model.read(file, task, form)
        names = (name.replace(str(file), str(path), 1) for name in samples.names)
        yield samples.x, [*names]


def _classified(
    model: "Model",
    files: Iterable[tuple[Any, list[str]]],
    task: str | None,
    recent: Path | None,
    most: int,
) -> list[_Row]:
    """Predict the samples of files; a row shows up to ``most`` classes, 0 for all."""
    examples = None
    if recent is not None:
        labelled = model.read(recent, task)
        examples = model.examples(labelled.x, labelled.labels)
    found: list[tuple[str, Prediction]] = []
    for samples, names in files:
        answers = model.answer(samples, task, examples)
        found += zip(names, answers, strict=True)
    most = most or max(len(answer.probabilities) for _, answer in found)
    rows = []
    for name, answer in found:
        likeliest = [*answer.probabilities.items()][:most]
        cells = {"input": name}
        for place in range(most):
            end = f" {place + 1}" if place else ""
            shown = likeliest[place : place + 1]
            cells[f"class{end}"] = "".join(name for name, _ in shown)
            cells[f"probability{end}"] = "".join(f"{p:.4f}" for _, p in shown)
        line: dict[str, Any] = {
            "input": name,
            "class": answer.name,
            "probability": answer.probability,
        }
        if most > 1:
            line["probabilities"] = dict(likeliest)
        if task == "auto":
            of = "" if answer.task is None else model.tasks[answer.task]
            cells["task"] = line["task"] = of
        rows.append(_Row(cells, line))
    return rows


def _write(form: str, rows: Sequence[_Row]) -> None:
    if form == "jsonl":
        for row in rows:
            click.echo(json.dumps(row.line, ensure_ascii=False))
        return
    heads = [*rows[0].cells] if rows else ["input"]
    lines = [[*row.cells.values()] for row in rows]
    if form == "csv":
        csv.writer(sys.stdout, lineterminator="\n").writerows([heads, *lines])
        return
    table = Table(*(Column(head, overflow="fold") for head in heads))
    for line in lines:
        table.add_row(*map(escape, line))
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
