"""The page of one run: a section for each kind of result."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from fcl_flower.core.errors import config_error
from fcl_flower.data.labels import look_alikes, plain
from fcl_flower.results import measures, tables
from fcl_flower.results.events import About, Progress, Summary, TaskInfo
from fcl_flower.results.measures import Accuracy
from fcl_flower.results.record import Record, read
from fcl_flower.results.report import charts, diagnostics, wording
from fcl_flower.results.report.charts import Cells, Chart, Series, line_chart
from fcl_flower.results.report.page import Section, Tile, charts_of, write_page
from fcl_flower.results.report.wording import LEGIBLE, Cell, Table, Value

NOTICEABLE = 0.0005
"""The smallest difference that the page does not round to 0.000."""


def write_report(folder: Path) -> Path:
    """Write ``report.html`` of a run, which may still be under way; return its path.

    Raises:
        ConfigError: a file is missing or damaged; the message names it.
    """
    record = read(folder)
    about = record.about
    tasks = wording.plural(about.tasks, wording.noun(about))
    alone = ", local-only: no communication" if about.local_only else ""
    environment = about.environment.describe()
    progress = [] if record.progress is None else _progress(record, record.progress)
    return write_page(
        folder / "report.html",
        about.label if record.finished else f"{about.label}, under way",
        f"{about.strategy} on {wording.data(about)}, model {about.model}, "
        f"{wording.plural(about.clients, 'client')}, {tasks}, {wording.steps(about)}, "
        f"seed {about.seed}{alone}",
        _sections(record),
        (f"Run: {environment}. " if environment else "")
        + "Made from the files of the run's folder.",
        verdicts=((sentence, "") for sentence in _headlines(record)),
        tiles=[*progress, *_tiles(record.summary, record.finished)],
    )


def run_charts(folder: Path) -> list[Chart]:
    """List the charts of a finished run's page in their order.

    Raises:
        ConfigError: see `write_report`; also if the run has not finished.
    """
    record = read(folder)
    if not record.finished:
        raise config_error("folder", str(folder), "that of a finished run")
    return charts_of(_sections(record))


def _sections(record: Record) -> Iterator[Section]:
    yield from _accuracy(record)
    yield from _clients(record)
    yield _classes(record.summary)
    yield _names_of_classes(record)
    yield _training(record)
    yield _traffic(record.summary)
    yield _left_out(record)
    for report in record.diagnostics.values():
        yield diagnostics.section(report, record)
    yield _scenario(record)
    yield _settings(record.summary)


# ---- the head


def _headlines(record: Record) -> Iterator[str]:
    if not record.finished:
        last = ""
        if record.progress is not None and record.progress.at:
            at = datetime.fromtimestamp(record.progress.at, UTC)
            last = f" It was last heard of on {at:%Y-%m-%d at %H:%M:%S} UTC."
        yield (
            f"This run has not finished: it is {where(record.progress)}. All numbers "
            f"are those so far.{last}"
        )
    if np.isnan(record.latest).all():
        yield "No accuracy was measured" + ("." if record.finished else " so far.")
        return
    ends = "ends" if record.finished else "is so far"
    means = measures.mean_measured(record.latest, axis=1)
    if (~np.isnan(means)).sum() > 1:
        best, worst = int(np.nanargmax(means)), int(np.nanargmin(means))
        yield (
            f"Client {best} {ends} best ({means[best]:.3f}), client {worst} worst "
            f"({means[worst]:.3f})."
        )
    holders = record.begun.class_holders
    for names in look_alikes(holders):
        each = (f"{n!r} (client {', '.join(map(str, holders[n]))})" for n in names)
        yield f"Some classes look alike, yet are learned apart: {' and '.join(each)}."
    if record.finished and record.unbalanced:
        yield (
            "Classes of some test sets differ in size by a factor of three or more: in "
            "the balanced accuracy all classes count alike."
        )
    if record.about.hidden is None and record.finished and record.about.tasks > 1:
        yield from _forgotten(record.accuracy)
    if count := record.summary.untrained_client_tasks:
        yield wording.untrained(count, record.about.clients * record.about.tasks)


def _forgotten(accuracy: Accuracy) -> Iterator[str]:
    lost = measures.mean_measured(measures.forgetting_per_task(accuracy), axis=0)
    if np.isnan(lost).all():
        return
    worst = int(np.nanargmax(lost))
    if lost[worst] >= NOTICEABLE:
        end = f"it ends {lost[worst]:.3f} below its best."
        yield f"Task {worst} was forgotten most: {end}"
    else:
        yield "Nothing was forgotten: no task lost accuracy as later ones were learned."


def where(progress: Progress | None) -> str:
    """Name the task and the round of a run under way."""
    if progress is None:
        return wording.UNKNOWN
    if not progress.round:
        return "starting"
    task = f"task {progress.task} of 0 to {progress.tasks - 1}, "
    step = f"round {progress.round} of {progress.rounds}"
    return f"at {task if progress.tasks > 1 else ''}{step}"


def time_left(progress: Progress | None) -> str:
    """Foretell how long the rest will take."""
    if progress is None or progress.left is None:
        return wording.UNKNOWN
    return f"about {wording.duration(progress.left)}"


def _progress(record: Record, progress: Progress) -> Iterator[Tile]:
    done = "of the rounds are finished"
    if progress.clients:
        count = wording.plural(progress.clients, "client")
        done += f"; in this one {progress.clients_done} of {count} have answered"
    yield "Progress", wording.share(len(record.rounds) / progress.rounds), done
    yield "Time left", time_left(progress), "foretold from the rounds so far"
    unused = sum(len(line.failed) for line in record.rounds)
    what = "replies of clients that were refused, late or missing"
    yield "Not used", str(unused), what


def _tiles(summary: Summary, finished: bool) -> Iterator[Tile]:
    content = summary.content()
    for measure in tables.MEASURES:
        value = tables.value(content, measure)
        same = measure.key == "before_aggregation" and value == summary.average_accuracy
        if value is not None and not same and (value or finished):
            meaning = measure.meaning.format(noun=wording.noun(summary))
            yield measure.name, wording.FORMS[measure.form](value), meaning
    if (privacy := summary.privacy) is not None:
        hidden = "all data" if privacy.unit == "client" else "one example"
        budget = f", of a budget of {privacy.budget:g}" if privacy.budget else ""
        observer = "the server" if privacy.observer == "server" else "other clients"
        scores = "; no ε covers the exact scores" if privacy.scores else ""
        yield (
            "Differential privacy",
            f"ε = {privacy.epsilon:.3g}",
            f"at δ = {privacy.delta:g}{budget}; hides {hidden} of a client "
            f"from {observer}{scores}",
        )


# ---- accuracy


def _accuracy(record: Record) -> Iterator[Section]:
    about, mean = record.about, wording.mean_over(record.about.clients, "client")
    if about.hidden is not None:
        rounds, accuracy = record.by_round()
        means = measures.mean_measured(accuracy, axis=1)
        lines = [
            Series(name, rounds.tolist(), means[:, i], charts.category_colour(i))
            for i, name in enumerate(record.scenario.concepts)
        ]
        yield Section(
            "Accuracy of every hidden concept",
            f"One line per concept, {mean}, on test data. Each client is tested on all "
            "concepts.",
            [line_chart("Accuracy per concept over rounds", "round", lines)],
        )
        return
    if about.tasks == 1 or np.isnan(record.accuracy).all():
        return
    tasks = range(about.tasks)
    by_task = measures.mean_measured(record.accuracy, axis=0)
    lines = [
        Series(f"task {i}", tasks, by_task[:, i], charts.task_colour(i, about.tasks))
        for i in tasks
    ]
    note = f"One line per task, {mean}, on test data. Every line starts where its task "
    note += "was learned."
    if record.finished and about.incremental:
        note += " The accuracy over all classes so far counts each test sample once."
        seen = np.array(record.summary.sample_accuracy, np.float64)
        lines.append(Series("all classes so far", tasks, seen, "var(--ink)"))
    yield Section(
        "Accuracy of every task",
        note,
        [line_chart("Accuracy of every task over time", "task", lines)],
    )
    losses = measures.mean_measured(record.by_task(record.tests, "losses"), axis=0)
    for heading, note, values in (
        (
            "Accuracy on every task after every task",
            f"a[t, i]: accuracy on task i after learning task t, {mean}. The diagonal "
            "is the accuracy of each task just after it was learned, the last row the "
            "end.",
            by_task,
        ),
        (
            "Loss of a token on every task after every task",
            f"Nats for each token of the right answers, {mean}. Less is better.",
            losses,
        ),
    ):
        if not np.isnan(values).all():
            names, titles = [*map(str, tasks)], ("after task", "on task")
            chart = Cells(f"{heading}, {mean}", titles, names, names, values)
            yield Section(heading, note, [chart])


# ---- clients and classes


def _clients(record: Record) -> Iterator[Section]:
    count, noun = record.about.clients, wording.noun(record.about)
    if count == 1 or np.isnan(record.latest).all():
        return
    last = "Final" if record.finished else "Latest"
    note = f"{last} accuracy of every client on each of its {noun}s."
    rows = [*range(count)]
    if count > LEGIBLE:
        half = LEGIBLE // 2
        final = measures.mean_measured(record.latest, axis=1)
        ranked = np.argsort(-final, kind="stable").tolist()
        # Clients that were not measured rank last, and are left out if possible.
        end = max(int((~np.isnan(final)).sum()), LEGIBLE)
        rows = ranked[:half] + ranked[end - half : end]
        note += f" Shown are the best {half} and the worst {half} of {count:,} clients."
    chart = Cells(
        f"{last} accuracy of every client on every {noun}",
        ("client", noun),
        [*map(str, rows)],
        [*map(str, range(record.about.tasks))],
        record.latest[rows],
    )
    yield Section("Accuracy of every client", note, [chart])


def _classes(summary: Summary) -> Section:
    rows = [
        [
            result.name,
            f"{result.tested:,}",
            *map(wording.fraction, (result.recall, result.precision, result.f1)),
        ]
        for result in sorted(summary.per_class, key=lambda r: (r.recall, r.name))
    ]
    head = ["class", "tested", "recall", "precision", "F1"]
    return Section(
        "Accuracy of every class",
        "After the last task, over the test samples of all clients, worst first. "
        "Recall: fraction of a class's samples that were answered rightly; precision: "
        "fraction of its answers that were right; F1: the harmonic mean of the two.",
        [Table(head, rows, "classes", folded="Show every class")],
    )


def _names_of_classes(record: Record) -> Section:
    holders, of_spelling = record.begun.class_holders, defaultdict[str, set[int]](set)
    for name, clients in holders.items():
        of_spelling[plain(name)].update(clients)
    several = len(set[int]().union(*of_spelling.values())) > 1
    rows = [
        [name, str(client)]
        for name in sorted(holders)
        for client in of_spelling[plain(name)]
        if several and len(of_spelling[plain(name)]) == 1
    ]
    folded = "Show these classes"
    return Section(
        "Classes that one client alone has",
        "Clients name the classes of a single head as they meet them. A name that no "
        "other client has, in any spelling, may be right, or a slip in the labels.",
        [Table(["class", "client"], rows, "class-holders", 2, folded)],
    )


# ---- rounds and bytes


def _training(record: Record) -> Section:
    at, parts = [line.round for line in record.rounds], []
    for what, values, colour in (
        ("Validation accuracy", [r.valid_accuracy for r in record.rounds], "var(--c2)"),
        ("Training loss", [r.loss for r in record.rounds], "var(--c1)"),
    ):
        series = Series(what.lower(), at, np.array(values, np.float64), colour)
        parts.append(line_chart(what, "round", [series], what.lower()))
    note = "Mean over the clients that replied."
    return Section("Training, round by round", note, parts)


def _traffic(summary: Summary) -> Section:
    up, down = summary.bytes_by_kind["up"], summary.bytes_by_kind["down"]
    kinds = sorted(Counter(up) + Counter(down))  # without those of no byte
    counts = [(kind, up.get(kind, 0), down.get(kind, 0)) for kind in kinds]
    if counts:
        counts += [
            ("all", summary.bytes_up, summary.bytes_down),
            ("nominal", summary.nominal_bytes_up, summary.nominal_bytes_down),
        ]
    rows: list[list[Value]] = [
        [kind, *map(wording.size_exact, (sent, received, sent + received))]
        for kind, sent, received in counts
    ]
    return Section(
        "Bytes that travelled",
        "Bytes of the messages as they are sent, over all clients and rounds. Nominal "
        "bytes are the papers' count: 4 for each non-zero parameter, none for indices, "
        "masks and headers.",
        [Table(["kind", "up", "down", "both"], rows, "traffic")],
    )


def _left_out(record: Record) -> Section:
    last = {client: event for event in record.rounds for client in event.failed}
    times = Counter(client for event in record.rounds for client in event.failed)
    rows = [
        [str(client), event.failed[client], str(times[client]), str(event.round)]
        for client, event in sorted(last.items())
    ]
    head = ["client", "last reason", "times", "last in round"]
    return Section(
        "Clients left out of a round",
        "An update or an evaluation was refused, came late or did not come. The reason "
        "is the last one, in the server's words, and may quote the client's message.",
        [Table(head, rows, "left-out", 2, "Show the reasons")],
    )


# ---- scenario and settings


def _scenario(record: Record) -> Section:
    """List what each client has in each task, or of each hidden concept."""
    scenario, noun = record.scenario, wording.noun(record.about)
    clients, longest = len(scenario.clients), max(map(len, scenario.clients))
    size = f"{wording.plural(clients, 'client')}, {wording.plural(longest, noun)}"
    if not scenario.datasets:
        most = wording.plural(scenario.classes_per_task or 0, "class")
        note = (
            f"A task has up to {most}. What is in the tasks, and how many examples, is "
            "known to the client only."
        )
        return Section("Local data", note, [f"{size} each."])
    tasks = [info for stream in scenario.clients for info in stream]
    classes = len({name for info in tasks for name in info.class_names})
    rows: list[list[Value]] = [
        [str(client), *map(_task, stream), *[""] * (longest - len(stream))]
        for client, stream in enumerate(scenario.clients)
    ]
    head = ["client", *(f"{noun} {t}" for t in range(longest))]
    folded = "Show what every client has"
    return Section(
        "Scenario",
        f"{size} at most, {wording.plural(classes, 'different class')}; scenario "
        f"{scenario.name}, drawn with seed {scenario.seed} from "
        f"{', '.join(scenario.datasets)}: {sum(info.train for info in tasks):,} "
        f"training, {sum(info.valid for info in tasks):,} validation and "
        f"{sum(info.test for info in tasks):,} test examples. Under each name: its "
        "class group, its classes, and these counts.",
        [Table(head, rows, "scenario", longest + 1, folded)],
    )


def _task(task: TaskInfo) -> Cell:
    group = "" if task.group is None else f"group {task.group}"
    counts = f"{task.train:,} / {task.valid:,} / {task.test:,}"
    lines = (group, ", ".join(task.class_names), counts)
    return Cell(task.name, lines=tuple(line for line in lines if line))


def _settings(summary: Summary) -> Section:
    shown = {*About.model_fields, "privacy", "label_epsilon", "remarks"}
    content = summary.model_dump(include=shown, exclude={"privacy": {"by_client"}})
    table = Table(["setting", "value"], [*_flat(content)], "settings", words=2)
    note = (
        "How the run was made, by the keys of summary.json. The command runs the same "
        "again in the folder of the run."
    )
    return Section("Settings", note, [table])


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """List values that are known; a value is written as TOML does."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, bool):
            yield f"{prefix}{key}", str(value).lower()
        elif value not in (None, []):
            yield f"{prefix}{key}", str(value)
